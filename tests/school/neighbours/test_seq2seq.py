"""The encoder–decoder: beside torch's own, its cache, its beam search, denoising, a killed run, what it learns."""

import itertools

import numpy as np
import pytest
import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.model import BertConfig
from bertsmith.seeding import generator
from bertsmith.tinyworld.stories import CAPTIONS
from bertsmith.tinyworld.words import CORNERS
from bertsmith_school.neighbours import Rewriter, Seq2SeqOptions, learn_to_rewrite, runs, seq2seq
from bertsmith_school.neighbours.encoder_decoder import EncoderDecoder
from bertsmith_school.neighbours.translation import (
    CHINESE_CAPTIONS,
    WORDS,
    draw_translations,
    rewriting_pairs,
    translated,
)
from typed_command import typed


def model_of(vocab_size=30, layers=2):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=24,
        initializer_range=0.2,
    )
    return EncoderDecoder(config).eval()


SOURCES = RaggedBatch.from_sequences([[2, 9, 11, 3], [2, 7, 3], [2, 8, 8, 12, 5, 6, 3]])
WRITTEN = torch.tensor([[2, 5, 6, 7, 9], [2, 4, 4, 8, 3], [2, 20, 21, 9, 1]])


def test_the_decoder_is_that_of_torch():
    model = model_of()
    layer = torch.nn.TransformerDecoderLayer(64, 2, 96, 0.0, "gelu", batch_first=True, norm_first=True)
    peer = torch.nn.TransformerDecoder(layer, 2, norm=torch.nn.LayerNorm(64)).eval()
    for ours, theirs in zip(model.blocks, peer.layers, strict=True):
        values = {
            "self_attn.in_proj_weight": ours.qkv.weight,
            "self_attn.in_proj_bias": ours.qkv.bias,
            "multihead_attn.in_proj_weight": torch.cat([ours.query.weight, ours.key_value.weight]),
            "multihead_attn.in_proj_bias": torch.cat([ours.query.bias, ours.key_value.bias]),
        }
        for name, module in (
            ("self_attn.out_proj", ours.self_output),
            ("multihead_attn.out_proj", ours.cross_output),
            ("linear1", ours.up),
            ("linear2", ours.down),
            *((f"norm{number + 1}", norm) for number, norm in enumerate(ours.norms)),
        ):
            torch.nn.init.normal_(module.bias, std=0.1)
            values |= {f"{name}.weight": module.weight, f"{name}.bias": module.bias}
        theirs.load_state_dict(values)
    peer.norm.load_state_dict(model.norm.state_dict())
    memory = model.read(SOURCES)
    table = model.encoder.embedding.word.weight
    entered = table[WRITTEN] * 8 + model.position.weight[:5]
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    hidden = memory.hidden[:, 0, 0]
    states = peer(entered, memory.states, tgt_mask=mask, memory_key_padding_mask=hidden, tgt_is_causal=True)
    torch.testing.assert_close(model(SOURCES, WRITTEN), states @ table.T + model.bias, atol=1e-4, rtol=1e-4)


def test_writing_token_by_token_with_the_cache_gives_the_same():
    model = model_of()
    whole = model(SOURCES, WRITTEN)
    memory = model.read(SOURCES)
    parts = [model.write(WRITTEN[:, place : place + 1], memory) for place in range(5)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=0)
    memory = model.read(SOURCES)
    model.write(WRITTEN[:, :3], memory)
    chosen = memory.select(torch.tensor([2, 0]))
    torch.testing.assert_close(model.write(WRITTEN[[2, 0], 3:4], chosen), whole[[2, 0], 3:4], atol=1e-5, rtol=0)


def test_nothing_later_is_seen_and_padding_neither():
    model = model_of()
    whole = model(SOURCES, WRITTEN)
    changed = WRITTEN.clone()
    changed[:, 3] = 13
    assert (model(SOURCES, changed)[:, :3] == whole[:, :3]).all()
    assert not (model(SOURCES, changed)[:, 3:] == whole[:, 3:]).all()
    for number in range(3):
        alone = model(SOURCES.sequences(number, number + 1), WRITTEN[number : number + 1])
        torch.testing.assert_close(alone[0], whole[number], atol=1e-5, rtol=0)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_wide_beam_finds_what_all_texts_together_hold_and_one_beam_is_greedy(alpha):
    model = model_of(vocab_size=6)
    source, begin, end, most = RaggedBatch.from_sequences([[2, 4, 5, 3]]), 2, 3, 4
    with torch.no_grad():
        best = (-float("inf"), None)
        for length in range(most):
            for text in itertools.product([0, 1, 2, 4, 5], repeat=length):
                odds = model(source, torch.tensor([[begin, *text]]))[0].log_softmax(-1)
                score = float(sum(odds[place, piece] for place, piece in enumerate([*text, end])))
                best = max(best, (score / ((5 + length + 1) / 6) ** alpha, list(text)))
        how = {"begin": begin, "end": end, "most": most}
        assert model.search(source, **how, beam=1000, length_penalty=alpha) == best[1]
        greedy: list[int] = []
        while len(greedy) < most:
            piece = int(model(source, torch.tensor([[begin, *greedy]]))[0, -1].argmax())
            if piece == end:
                break
            greedy.append(piece)
        assert model.search(source, **how, beam=1) == greedy


def test_denoising_cuts_out_what_it_writes():
    sentinels = [1000, 1001, 1002, 1003]
    shares, lengths = [], []
    for number in range(300):
        ids = list(range(2 + number % 60))
        source, target = seq2seq.denoised(ids, sentinels, generator(0, "test", number))
        spans: dict[int, list[int]] = {}
        for piece in target:
            if piece >= 1000:
                spans[piece] = []
            else:
                spans[list(spans)[-1]].append(piece)
        assert list(spans) == sentinels[: len(spans)]
        restored = [piece for each in source for piece in spans.get(each, [each])]
        assert restored == ids
        assert source[0] < 1000
        assert all(not (a >= 1000 and b >= 1000) for a, b in itertools.pairwise(source))
        if len(ids) > 30:
            shares.append(sum(map(len, spans.values())) / len(ids))
            lengths.append(np.mean([len(span) for span in spans.values()]))
    assert np.mean(shares) == pytest.approx(0.15, abs=0.01)
    assert np.mean(lengths) == pytest.approx(3.0, abs=0.5)


def test_the_village_in_chinese():
    named = {"man", "woman", "book"}
    for corner in CORNERS:
        named |= {*corner.places, *corner.animals, *corner.foods, corner.reading}
        named |= {word for pair in corner.work for word in pair}
    assert named == set(WORDS)
    assert len(set(WORDS.values())) == len(WORDS)
    assert set(CHINESE_CAPTIONS) == set(CAPTIONS)
    assert translated("the owl sleeps at the cave while the man feeds the bear") == "男人喂熊的时候，猫头鹰在山洞睡觉"
    assert translated("the woman eats the soup and the man eats the roast") == "女人喝汤，男人吃烤肉"
    pairs = list(draw_translations(0, 300, split="train"))
    assert pairs == list(draw_translations(0, 300, split="train"))
    assert len({chinese for _, chinese in pairs}) == len({english for english, _ in pairs})
    with pytest.raises(KeyError):
        translated("the dragon sleeps at the cave and the man reads the book")
    (first, backwards), *_ = rewriting_pairs("reverse", 0, split="dev")
    assert backwards.split() == first.split()[::-1]


SMALL = Seq2SeqOptions(layers=1, size=32, epochs=2, batch_size=32, max_length=30, vocab_size=400)


def test_a_run_that_dies_goes_on_bit_for_bit(tmp_path, monkeypatch):
    texts = [english for english, _ in rewriting_pairs("copy", 0, split="dev")]
    whole = learn_to_rewrite(tmp_path / "whole", texts, SMALL)
    monkeypatch.setattr(runs, "SAVE_EVERY", 0.0)
    train, taken = seq2seq.BertTrainer.train_batch, []

    def dying(self, *parts):
        taken.append(self.step)
        if len(taken) == 10:
            raise ConnectionError("the process dies here")
        return train(self, *parts)

    monkeypatch.setattr(seq2seq.BertTrainer, "train_batch", dying)
    with pytest.raises(ConnectionError):
        learn_to_rewrite(tmp_path / "killed", texts, SMALL)
    again = learn_to_rewrite(tmp_path / "killed", texts, SMALL)
    # 死在第二轮里：顺序与挖空都要接得上
    assert taken[9:11] == [9, 9]
    assert len(texts) / SMALL.batch_size < 9
    values = again.model.state_dict()
    assert all(torch.equal(value, values[name]) for name, value in whole.model.state_dict().items())
    loaded = Rewriter.load(tmp_path / "killed")
    assert loaded("the man eats the soup") == again("the man eats the soup")
    with pytest.raises(RunFolderError, match="another texts"):
        learn_to_rewrite(tmp_path / "killed", texts[1:], SMALL)
    (tmp_path / "killed" / seq2seq.TENSOR_FILE).write_bytes(b"no tensors")
    with pytest.raises(CheckpointError):
        Rewriter.load(tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["translate", "reverse"])
def test_the_village_is_translated_and_reversed(task, tmp_path):
    pairs = rewriting_pairs(task, 0, split="train")
    rewriter = learn_to_rewrite(tmp_path, pairs, Seq2SeqOptions(epochs=4))
    known = {source for source, _ in pairs}
    unseen = [pair for pair in rewriting_pairs(task, 0, split="dev") if pair[0] not in known]
    assert len(unseen) > 150
    assert rewriter.exact(unseen) > 0.95


@pytest.mark.parametrize(
    "change", [{"size": 40}, {"size": 0}, {"epochs": 0}, {"max_length": 2}, {"dropout": 1.0}], ids=str
)
def test_settings_that_cannot_work(change):
    with pytest.raises(ConfigError):
        Seq2SeqOptions(**change)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "holds no pairs"), ("one\n", "line 1 has 1"), ("a\tb\nc\t\n", "line 2"), ("a\tb\tc\n", "3 cells")],
)
def test_pairs_that_are_none(tmp_path, capsys, content, message):
    path = tmp_path / "pairs.tsv"
    path.write_text(content, encoding="utf-8")
    said = typed(capsys, "compare", "seq2seq", path, "--out", tmp_path / "out", code=2).strip()
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_commands(tmp_path, capsys):
    pairs, dev, out = tmp_path / "pairs.tsv", tmp_path / "dev.tsv", tmp_path / "out"
    lines = [f"{a}\t{b}\n" for a, b in dict.fromkeys(rewriting_pairs("copy", 0, split="dev"))]
    pairs.write_text("".join(lines[50:]), encoding="utf-8")
    dev.write_text("".join(lines) + f"{'the cow ' * 60}\tthe cow\n", encoding="utf-8")
    words = ["compare", "seq2seq", str(pairs), "--dev", str(dev), "--out", str(out), "--epochs", "1", "--size", "32"]
    said = typed(capsys, *words)
    assert said.splitlines()[:2] == [
        f"{pairs}: utf-8; {len(lines) - 50} pairs",
        f"{dev}: utf-8; {len(lines) + 1} pairs",
    ]
    assert "of 50 unseen" in said
    assert f"left out of {dev}: {len(lines) - 50} seen in training, 1 empty or too long" in said.replace("\n", " ")
    model = Rewriter.load(out)
    written = typed(capsys, "compare", "rewrite", out, "the man reads the book", " ", "the cow")
    assert written.splitlines() == [model("the man reads the book"), "", model("the cow")]
    for bad, message in (
        (["compare", "rewrite", str(out), "the cow " * 60], "the model reads 64"),
        (["compare", "rewrite", str(tmp_path), "a"], "shape.json"),
        (["compare", "seq2seq", "--out", str(out)], "give one of"),
        (["compare", "seq2seq", str(pairs), "--village", "copy", "--out", str(out)], "give one of"),
        (
            ["compare", "seq2seq", str(pairs), "--max-length", "4", "--out", str(tmp_path / "short")],
            "raise --max-length",
        ),
    ):
        said = typed(capsys, *bad, code=2).strip()
        assert message in said
        assert len(said.splitlines()) == 1
    with pytest.raises(InputError, match="beam 0"):
        model("the cow", beam=0)
