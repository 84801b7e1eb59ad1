"""`bertsmith compress`: each step on a trained model, what is stored, who reads it, and what is refused."""

import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

from bertsmith import compress, load_tokenizer
from bertsmith.errors import BertsmithError, CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import task_named
from bertsmith.inference import Classify, Embed, InferenceConfig
from bertsmith.inference.words import Words
from bertsmith.journeys import compress as journey
from bertsmith.model import ModelForPreTraining, ModelForSequenceClassification, cut_vocabulary, family_named, load_any
from bertsmith.tokenizer import WordPieceTokenizer, learn_tokenizer
from typed_command import typed

WORDS = ["man", "book", "bread", "woman", "dog", "house"]
EXAMPLES = [
    LabelledText(f"the {first} reads the {second} .", None, "good" if first in WORDS[:3] else "bad")
    for first in WORDS
    for second in WORDS
]
SETTINGS = FineTuningSettings(epochs=8, batch_size=8, learning_rate=1e-3, max_length=24, precision="float32")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_in(tmp_path_factory.mktemp("trained"), "bert")


def trained_in(folder, family):
    """A classifier of three layers that knows its examples, and a file of them."""
    torch.manual_seed(0)
    texts = [*(example.text for example in EXAMPLES), "another word that nobody reads anywhere"]
    tokenizer = WordPieceTokenizer.train(texts * 4, vocab_size=120)
    config = family_named(family).config.named("3/64", vocab_size=len(tokenizer)).with_position_limit(32)
    ModelForPreTraining(config.changed(num_attention_heads=4)).save_pretrained(folder / "start")
    tokenizer.save(folder / "start")
    fine_tune(task_named("classify").of(EXAMPLES), folder / "start", EXAMPLES, EXAMPLES, folder / "run", SETTINGS)
    lines = ["text\tlabel", *(f"{example.text}\t{example.label}" for example in EXAMPLES)]
    (folder / "dev.tsv").write_text("\n".join(lines), encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(example.text for example in EXAMPLES), encoding="utf-8")
    return folder


def test_every_step_is_scored_and_the_folder_is_used_like_any_other(trained, tmp_path, capsys):
    command = ["compress", str(trained / "run/model"), "--out", str(tmp_path / "small")]
    command += ["--dev", str(trained / "dev.tsv"), "--layers", "0,2", "--heads", "0.25"]
    shown = typed(capsys, *command, "--vocabulary", trained / "text.txt", "--int8")
    assert shown.splitlines()[:3] == [
        f"{trained / 'text.txt'}: 1 .txt; 0.0 MB; utf-8",
        f"dev.tsv: TSV with tabs between its columns, utf-8, with a header; {len(EXAMPLES)} rows for classify",
        "columns: text from text, label from label",
    ]
    assert "2 of 8 heads cut" in shown
    rows = json.loads((tmp_path / "small/steps.json").read_text())
    assert [row["step"].split()[0] for row in rows] == ["as", "layers", "2", rows[3]["step"].split()[0], "stored"]
    assert all(earlier["megabytes"] > later["megabytes"] for earlier, later in pairwise(rows))
    assert all(row["score"] is not None and row["per_second"] > 0 for row in rows)
    model = ModelForSequenceClassification.from_pretrained(tmp_path / "small")
    assert model.config.num_hidden_layers == 2
    assert sum(map(len, model.config.pruned_heads.values())) == 2
    assert len(load_tokenizer(tmp_path / "small")) == model.config.vocab_size < 120
    assert Classify.load(tmp_path / "small")(["the man reads the dog ."])[0].label in ("good", "bad")


def test_heads_of_layers_that_share_their_weights_are_cut_in_all_of_them(tmp_path):
    trained_in(tmp_path, "albert")
    compress(tmp_path / "run/model", tmp_path / "small", dev=tmp_path / "dev.tsv", heads=0.25)
    pruned = ModelForSequenceClassification.from_pretrained(tmp_path / "small").config.pruned_heads
    assert len(pruned) == 3
    assert len(set(pruned.values())) == 1


def test_8_bits_keep_the_judgement_and_take_a_quarter_of_the_place(trained, tmp_path):
    compress(trained / "run/model", tmp_path / "small", int8=True)
    whole, small = trained / "run/model/model.safetensors", tmp_path / "small/model.int8.safetensors"
    assert small.stat().st_size < 0.35 * whole.stat().st_size
    assert not (tmp_path / "small/model.safetensors").exists()
    with safe_open(small, framework="pt") as stored:
        name = "bert.encoder.layer.0.output.dense.weight"
        integers, scales = stored.get_tensor(name), stored.get_tensor(f"{name}_scale")
    assert integers.dtype == torch.int8
    weight = (
        ModelForSequenceClassification.from_pretrained(trained / "run/model").backbone.encoder.blocks[0].output.weight
    )
    # 每个数离原值至多半格
    assert ((integers * scales[:, None] - weight).abs() <= scales[:, None] * 0.5001).all()
    texts = [example.text for example in EXAMPLES]
    before, after = (Classify.load(folder)(texts) for folder in (trained / "run/model", tmp_path / "small"))
    assert [one.label for one in before] == [one.label for one in after]
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "small")
    # 再存一次普通的权重：旧的 8 位文件不能留下来冒充
    load_any(tmp_path / "small").save_pretrained(tmp_path / "small")
    assert not small.exists()


def test_bf16_and_fewer_pieces_load_in_transformers(trained, tmp_path):
    how = {"bf16": True, "vocabulary": [str(trained / "text.txt")], "layers": "0,1"}
    rows = compress(trained / "run/model", tmp_path / "small", **how).details
    assert rows[-1].megabytes < rows[0].megabytes / 2
    # 同一条命令再来一次：不是错误，结果也一样
    assert compress(trained / "run/model", tmp_path / "small", **how).details == rows
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "small", dtype=torch.float32)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    text = "the dog reads the book ."
    with torch.no_grad():
        theirs = peer.eval()(**words(text, return_tensors="pt")).logits.softmax(-1)[0]
    ours = Classify.load(tmp_path / "small", precision="float32")([text])[0].probabilities
    assert list(ours.values()) == pytest.approx(theirs.tolist(), abs=1e-5)


def test_a_text_of_known_pieces_reads_the_same_after_the_cut(trained):
    model = ModelForPreTraining.from_pretrained(trained / "start").eval()
    tokenizer = load_tokenizer(trained / "start")
    text = EXAMPLES[0].text
    before = tokenizer.encode(text)
    smaller = cut_vocabulary(model, tokenizer, set(before))
    assert [smaller.vocab[index] for index in smaller.encode(text)] == [tokenizer.vocab[index] for index in before]
    assert len(smaller) == model.config.vocab_size == len(model.backbone.embedding.word.weight) < len(tokenizer)
    assert smaller.vocab[model.config.pad_token_id] == "[PAD]"
    # 被裁掉的词仍能按字母拼出
    assert smaller.unk_token_id not in smaller.encode("anywhere")
    with pytest.raises(InputError, match="none of the tokenizer's pieces"):
        cut_vocabulary(model, smaller, {10_000})


def test_a_sentence_encoder_stays_one(trained, tmp_path):
    model = ModelForPreTraining.from_pretrained(trained / "start").backbone
    model.save_pretrained(tmp_path / "encoder")
    load_tokenizer(trained / "start").save(tmp_path / "encoder")
    compress(tmp_path / "encoder", tmp_path / "small", int8=True)
    texts = [example.text for example in EXAMPLES[:4]]
    whole, small = (Embed.load(folder)(texts) for folder in (tmp_path / "encoder", tmp_path / "small"))
    cosines = (whole * small).sum(1) / np.linalg.norm(whole, axis=1) / np.linalg.norm(small, axis=1)
    assert cosines.min() > 0.999


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to do"),
        ({"int8": True, "bf16": True}, "leave one out"),
        ({"heads": 0.5}, "give --dev"),
        ({"heads": 1.0}, "at most 0.95"),
        ({"layers": "0;2"}, "write numbers"),
        ({"layers": "0,7"}, "the model has 3 layers"),
        ({"vocabulary": ("nowhere.txt",)}, "nowhere"),
    ],
)
def test_what_cannot_be_compressed_leaves_nothing(trained, tmp_path, options, message):
    with pytest.raises(BertsmithError, match=message):
        compress(trained / "run/model", tmp_path / "small", **options)
    assert not (tmp_path / "small").exists()


def test_other_vocabularies_and_empty_text_are_refused(trained, tmp_path):
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match="no sentence found"):
        compress(trained / "run/model", tmp_path / "small", vocabulary=[str(tmp_path / "empty.txt")])
    bpe = learn_tokenizer(["the man eats bread"] * 5, kind="bpe", vocab_size=280)
    config = family_named("roberta").config.named("1/64", vocab_size=len(bpe), pad_token_id=0).with_position_limit(32)
    ModelForPreTraining(config, pair_head=False).save_pretrained(tmp_path / "roberta")
    bpe.save(tmp_path / "roberta")
    with pytest.raises(ConfigError, match="WordPiece"):
        compress(tmp_path / "roberta", tmp_path / "small", vocabulary=[str(trained / "text.txt")])
    with pytest.raises(BertsmithError, match="nowhere"):
        compress(tmp_path / "nowhere", tmp_path / "small", int8=True)


def test_a_damaged_8_bit_folder_is_named(trained, tmp_path):
    compress(trained / "run/model", tmp_path / "small", int8=True)
    file = tmp_path / "small/model.int8.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BertsmithError, match="damaged or truncated"):
        load_any(tmp_path / "small")


def test_a_folder_whose_answer_counts_words_is_refused(trained, tmp_path):
    shutil.copytree(trained / "run/model", tmp_path / "both")
    Words.none("single_label_classification", ["bad", "good"]).save(tmp_path / "both")
    with pytest.raises(ConfigError, match=r"counts words\.safetensors too; name a folder without"):
        compress(tmp_path / "both", tmp_path / "small", bf16=True)
    assert not (tmp_path / "small").exists()


def test_what_cannot_be_written_is_refused_before_anything_is_measured(trained, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/a.txt").write_text("a")
    with monkeypatch.context() as patched:
        patched.setattr(journey, "_Work", lambda *_: pytest.fail("measured"))
        with pytest.raises(RunFolderError, match="is not empty"):
            compress(trained / "run/model", tmp_path / "full", bf16=True)
    encoder = tmp_path / "encoder"
    ModelForPreTraining.from_pretrained(trained / "start").backbone.save_pretrained(encoder)
    load_tokenizer(trained / "start").save(encoder)
    (encoder / "2_Dense").mkdir()
    (encoder / "2_Dense/pytorch_model.bin").write_bytes(b"")
    steps = [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]
    (encoder / "modules.json").write_text(json.dumps(steps))
    with pytest.raises(CheckpointError, match="pickled"):
        compress(encoder, tmp_path / "small", bf16=True)
    assert not (tmp_path / "small").exists()


def test_where_8_bits_are_not_computed_they_are_scored_in_float32(trained, monkeypatch):
    """A GPU has no such kernels, whatever the processor beside it has."""
    work = journey._Work(trained / "run/model", trained / "dev.tsv", ReadingOptions(), None)
    asked, usual = [], type(work.task).predict

    def noted(task, model, tokenizer, examples, inference):
        asked.append(inference.precision)
        return usual(task, model, tokenizer, examples, InferenceConfig("cpu"))

    monkeypatch.setattr(type(work.task), "predict", noted)
    monkeypatch.setattr(journey, "best_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(journey, "has_int8_kernels", lambda: True)
    work.measure("stored in int8", "int8")
    assert asked == ["float32"] * 2
