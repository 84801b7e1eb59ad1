"""Probes: minimal pairs, layers, and what a model knows of the village."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
import transformers

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.inference import Candidate, FillMask, Generate
from bertsmith.model import Backbone, BertConfig, BertForMaskedLM, BertModel
from bertsmith.seeding import generator
from bertsmith.tinyworld import draw_captions, draw_stories, draw_tagged_sentences, render
from bertsmith.tinyworld.stories import CAPTIONS, caption_odds, draw_facts, fill_pattern
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith_school.looking.pairs import (
    MinimalPair,
    judge_blimp,
    judged,
    read_blimp,
    read_pairs,
    sentence_scores,
    village_pairs,
)
from bertsmith_school.looking.probes import facts_known, probe, probe_layers
from typed_command import typed


def save(folder, *, is_decoder=False, vocab_size=1200):
    stories = [render(s) for story in draw_stories(0, 400) for s in story.sentences]
    captions = [render(caption) for caption in draw_captions(0, 2000)]
    tokenizer = WordPieceTokenizer.train([*stories, *captions], vocab_size=vocab_size)
    torch.manual_seed(1)
    shape = {"vocab_size": len(tokenizer), "max_position_embeddings": 48, "initializer_range": 0.1}
    BertForMaskedLM(BertConfig.named("2/64", is_decoder=is_decoder, **shape)).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("pattern", "filled", "blank"),
    [
        ("the {animal} sleeps at the {place}", {"place": "pier"}, "animal"),
        ("the {noun} {work_verb} the {work_object}", {"noun": "man", "work_object": "hay"}, "work_verb"),
        ("the {noun} reads the {reading}", {"noun": "woman"}, "reading"),
        ("the {noun} eats the {food}", {"food": "cake"}, "noun"),
        ("the {noun} sees the {animal} at the {place}", {"noun": "man", "animal": "fox"}, "place"),
    ],
)
def test_the_odds_of_a_blank_are_those_of_very_many_captions(pattern, filled, blank):
    places = [word[1:-1] if word.startswith("{") else "" for word in pattern.split()]
    seen = Counter()
    for number in range(12_000):
        rng = generator(7, "odds", number)
        facts = draw_facts(rng)
        words = [token.text for token in fill_pattern(pattern, facts, *facts.people, rng)]
        found = {slot: word for slot, word in zip(places, words, strict=True) if slot}
        if all(found[slot] == word for slot, word in filled.items()):
            seen[found[blank]] += 1
    odds = caption_odds(pattern, filled, blank)
    total = sum(seen.values())
    assert sum(odds.values()) == pytest.approx(1.0)
    assert set(seen) <= set(odds)
    for word, share in odds.items():
        assert seen[word] / total == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / total) + 1e-9)


def test_the_score_of_a_sentence_is_its_pseudo_log_likelihood(folder):
    peer = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    pipeline = FillMask.load(folder, precision="float32")
    text = "the man reads the book"
    ids = pipeline.tokenizer.template.wrap(pipeline.tokenizer.encode(text))
    expected = 0.0
    for place in range(1, len(ids) - 1):
        hidden = torch.tensor([ids])
        hidden[0, place] = pipeline.tokenizer.mask_token_id
        with torch.no_grad():
            expected += peer(hidden).logits[0, place].log_softmax(-1)[ids[place]].item()
    assert sentence_scores(pipeline, ["the dog", text])[1, 0] == pytest.approx(expected, abs=1e-3)


def test_from_left_to_right_it_is_the_chain_rule(tmp_path):
    folder = save(tmp_path, is_decoder=True)
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    pipeline = Generate.load(folder, precision="float32")
    ids = [pipeline.tokenizer.cls_token_id, *pipeline.tokenizer.encode("the man reads the book")]
    with torch.no_grad():
        odds = peer(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = sum(odds[place, ids[place + 1]].item() for place in range(len(ids) - 1))
    assert sentence_scores(pipeline, ["the man reads the book"])[0, 0] == pytest.approx(expected, abs=1e-3)


def test_pairs_are_judged_by_their_scores(folder):
    pipeline = FillMask.load(folder, precision="float32")
    pair = MinimalPair("the man reads the book", "book the the reads man", "order")
    right, wrong = sentence_scores(pipeline, [pair.right, pair.wrong])[:, 0]
    turned = MinimalPair(pair.wrong, pair.right, "turned")
    assert judged(pipeline, [pair, turned, pair]) == [
        {"order": (float(right > wrong), 2, 0), "turned": (float(wrong > right), 1, 0)}
    ]


def test_a_tie_counts_half_and_is_counted(folder, tmp_path, capsys):
    """The vocabulary knows no accents and no case: both sentences are the same pieces."""
    (tmp_path / "pairs.tsv").write_text("the man reads\tThe Man reads\tcase\nthe man\tthe mán\tcase\n", "utf-8")
    pipeline = FillMask.load(folder, precision="float32")
    assert judged(pipeline, read_pairs(tmp_path / "pairs.tsv")) == [{"case": (0.5, 2, 2)}]
    assert "ties" in typed(capsys, "probe", folder, "--pairs", tmp_path / "pairs.tsv")


def test_the_villages_pairs_differ_in_what_they_say():
    pairs = village_pairs(40)
    assert Counter(pair.kind for pair in pairs) == {"a thing of another kind": 40, "word order": 40}
    for pair in pairs:
        right, wrong = pair.right.split(), pair.wrong.split()
        assert right != wrong
        assert len(right) == len(wrong)
        if pair.kind == "word order":
            assert sorted(right) == sorted(wrong)
        else:
            assert right[:-1] == wrong[:-1]
    assert village_pairs(40) == pairs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no pair"),
        ("only one sentence\n", ":1: write a right"),
        ("a\tb\nc\t \n", ":2: write a right"),
        ("a\tb\tc\td\n", ":1: write a right"),
        ("a\tb\na b\ta b\n", ":2: the right and the wrong sentence are the same"),
    ],
)
def test_a_file_of_pairs_that_is_none(tmp_path, content, message):
    (tmp_path / "pairs.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_pairs(tmp_path / "pairs.tsv")


def test_pairs_in_another_encoding_or_missing(tmp_path):
    (tmp_path / "pairs.tsv").write_bytes(b"\xff\xfe\x00")
    for name in ("pairs.tsv", "none.tsv"):
        with pytest.raises(InputError, match=name):
            read_pairs(tmp_path / name)


def test_a_sentence_that_cannot_be_scored(folder):
    pipeline = FillMask.load(folder)
    with pytest.raises(InputError, match="the model reads 48"):
        sentence_scores(pipeline, ["the man reads the book " * 20])
    with pytest.raises(InputError, match="has no pieces"):
        sentence_scores(pipeline, ["\u200b"])


def test_a_layer_that_holds_the_tag_is_read_perfectly(folder):
    model = Backbone.from_pretrained(folder, need_pooler=False).eval()
    tokenizer = WordPieceTokenizer.load(folder)
    drawn = draw_tagged_sentences(0, 120, split="test")
    sentences = [TaggedWords(sentence.words, sentence.tags) for sentence in drawn]
    kinds = sorted({tag for sentence in sentences for tag in sentence.tags})
    with torch.no_grad():
        for word, tag in {pair for s in sentences for pair in zip(s.words, s.tags, strict=True)}:
            # 把标签写进词向量的一个方向：嵌入层必须读得出来
            model.embedding.word.weight[tokenizer.encode(word)[0], kinds.index(tag)] += 3.0

    def layers_of(batch):
        return model(batch, need_layers=True).layers

    found = probe_layers(layers_of, 48, tokenizer, sentences)
    assert len(found.tags) == len(found.places) == 3
    assert found.tags[0] > 0.97
    assert found.places[0] > 0.97
    shares = Counter(tag for sentence in sentences for tag in sentence.tags)
    assert found.usual_tag == pytest.approx(shares["O"] / shares.total(), abs=0.05)
    with pytest.raises(InputError, match="two tags"):
        probe_layers(
            layers_of,
            48,
            tokenizer,
            [TaggedWords(("a", "b"), ("X", "X"))] * 9,
        )
    with pytest.raises(InputError, match="sentences of two words or more"):
        probe_layers(layers_of, 48, tokenizer, [TaggedWords(("a",), (tag,)) for tag in "XXYY" * 4])


class PerfectReader:
    """A stand-in for a pipeline that knows the true odds."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, texts, *, top_k):
        words = texts[0].split()
        blank = words.index("[MASK]")
        for pattern in CAPTIONS:
            slots = pattern.split()
            plain = [slot if not slot.startswith("{") else None for slot in slots]
            if len(slots) == len(words) and all(p in (None, w) for p, w in zip(plain, words, strict=True)):
                filled = {s[1:-1]: w for s, w in zip(slots, words, strict=True) if s[0] == "{" and w != "[MASK]"}
                odds = caption_odds(pattern, filled, slots[blank][1:-1])
                if odds:
                    return [[[Candidate(w, p) for w, p in sorted(odds.items(), key=lambda item: -item[1])]]]
        raise AssertionError(texts)


def test_nobody_is_nearer_to_the_village_than_a_perfect_reader(folder):
    tokenizer = WordPieceTokenizer.load(folder)
    perfect = facts_known(PerfectReader(tokenizer), 60)
    assert perfect.distance == pytest.approx(0.0, abs=1e-9)
    assert perfect.right == 1.0
    found = facts_known(FillMask.load(folder), 60)
    assert found.blanks == perfect.blanks > 30
    assert found.entropy == pytest.approx(perfect.entropy)
    assert found.distance > 1.0


def test_a_vocabulary_that_cuts_the_villages_words_is_not_asked(tmp_path):
    assert facts_known(FillMask.load(save(tmp_path, vocab_size=60)), 10) is None


def test_a_model_without_a_head_has_layers_alone(folder, tmp_path):
    BertModel.from_pretrained(folder, need_pooler=False).save_pretrained(tmp_path)
    WordPieceTokenizer.load(folder).save(tmp_path)
    found = probe(tmp_path)
    assert found.pairs == {}
    assert found.facts is None
    (tmp_path / "pairs.tsv").write_text("a man\tman a\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="leave out --pairs"):
        probe(tmp_path, pairs=tmp_path / "pairs.tsv")


def test_the_command_with_files_of_ones_own(folder, tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text("the man reads\treads man the\torder\n", encoding="utf-8")
    lines = [f"{word} {tag}" for sentence in draw_tagged_sentences(0, 30, split="t") for word, tag in
             [*zip(sentence.words, sentence.tags, strict=True), ("", "")]]  # fmt: skip
    (tmp_path / "words.conll").write_text("\n".join(line.strip() for line in lines) + "\n", encoding="utf-8")
    given = ["--pairs", tmp_path / "pairs.tsv", "--tagged", tmp_path / "words.conll", "--out", tmp_path / "out"]
    shown = typed(capsys, "probe", folder, *given)
    assert "order" in shown
    assert "Facts" not in shown
    found = json.loads((tmp_path / "out/probe.json").read_text())
    assert found["pairs"]["order"][1] == 1
    assert np.isfinite(found["layers"]["tags"]).all()
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "Layer by layer" in page
    assert "of 1 pairs are judged right, no better than a coin; tags are clearest in " in page
    assert typed(capsys, "probe", folder, "--tagged", tmp_path / "none.conll", code=2).count("\n") == 1


def literal_score(peer, tokenizer, text, *, within_words):
    """The score as its paper has it, a piece after the other, from the reference library."""
    ids, words = (torch.tensor(tokenizer(text)[name]) for name in ("input_ids", "word_ids"))
    total = 0.0
    for place in range(1, len(ids) - 1):
        hidden = ids.clone()
        hidden[place] = tokenizer.mask_token_id
        if within_words:
            hidden[place:][words[place:] == words[place]] = tokenizer.mask_token_id
        with torch.no_grad():
            total += peer(hidden[None]).logits[0, place].log_softmax(-1)[ids[place]].item()
    return total


BLIMP = [
    ("the readers read the newspapers .", "the readers reads the newspapers .", "agreement", "subject_verb"),
    ("the farmer feeds the hedgehogs .", "the farmer feed the hedgehogs .", "agreement", "subject_verb"),
    ("who walks homewards ?", "walks who homewards ?", "questions", "islands"),
    ("the man reads", "The man reads", "case", "islands"),
    ("the man reads", "the man reads", "case", "islands"),
]


FIELDS = ("sentence_good", "sentence_bad", "UID", "linguistics_term")


def write_blimp(folder, rows=BLIMP):
    folder.mkdir(exist_ok=True)
    for kind in {row[2] for row in rows}:
        lines = [dict(zip(FIELDS, row, strict=True), field="syntax") for row in rows if row[2] == kind]
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_blimp_is_judged_by_both_scores_as_their_papers_have_them(tmp_path, capsys):
    model = save(tmp_path / "model", vocab_size=150)
    peer, tokenizer = transformers.AutoModelForMaskedLM.from_pretrained(model).eval(), WordPieceTokenizer.load(model)
    assert any(len(tokenizer.encode(word)) > 2 for word in ("newspapers", "hedgehogs", "homewards"))
    found = judge_blimp(model, write_blimp(tmp_path / "blimp"))
    assert found.phenomena == {"agreement": "subject_verb", "case": "islands", "questions": "islands"}
    scores = [[literal_score(peer, tokenizer, text, within_words=within) for text in row[:2]]
              for within in (False, True) for row in BLIMP]  # fmt: skip
    mine = sentence_scores(
        FillMask.load(model, precision="float32"), [t for r in BLIMP for t in r[:2]], ["piece", "word"]
    )
    np.testing.assert_allclose(mine.T.reshape(-1, 2), scores, atol=1e-3)
    assert not np.allclose(mine[:, 0], mine[:, 1], atol=0.1)
    for source, rows in zip(found.judged, (scores[:5], scores[5:]), strict=True):
        hits = [float(right > wrong) for right, wrong in rows[:3]]
        expected = {"agreement": (sum(hits[:2]) / 2, 2, 0), "questions": (hits[2], 1, 0), "case": (0.5, 2, 2)}
        assert found.judged[source] == expected
        assert found.together(source, "islands") == ((hits[2] + 1) / 3, 3, 2)
        assert found.together(source) == ((sum(hits) + 1) / 5, 5, 2)
    shown = typed(capsys, "probe", model, "--blimp", tmp_path / "blimp", "--out", tmp_path / "out")
    assert "Kauf & Ivanova 2023" in shown
    assert "subject verb" in shown
    assert found.same == 1
    kept = json.loads((tmp_path / "out/probe.json").read_text())["judged"]["Salazar et al. 2020"]
    assert kept["case"] == [0.5, 2, 2]
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "BLiMP by paradigm" in page
    weakest = min(("subject_verb", "islands"), key=lambda name: found.together("Salazar et al. 2020", name).share)
    assert f"of 5 pairs are judged right, no better than a coin (Salazar et al. 2020); weakest in {weakest[:7]}" in page


def test_only_line_feeds_end_a_pair_of_blimp(tmp_path):
    row = {"sentence_good": "a\u2028b", "sentence_bad": "c\x85d", "UID": "u", "linguistics_term": "l"}
    (tmp_path / "u.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\r\n", encoding="utf-8-sig", newline="")
    (pair,) = read_blimp(tmp_path)[0]
    assert (pair.right, pair.wrong) == ("a\u2028b", "c\x85d")


def test_a_masked_sentence_is_read_once_whoever_asks(folder, monkeypatch):
    """Hiding the word in which two sentences differ makes them the same; a word of one piece has no rest to hide."""
    pipeline, read = FillMask.load(folder, precision="float32"), []
    passes = pipeline.engine.passes
    monkeypatch.setattr(pipeline.engine, "passes", lambda rows, *rest: read.extend(rows) or passes(rows, *rest))
    texts = ["the man reads the book", "the man reads the hay", "the man reads the book"]
    assert all(len(pipeline.tokenizer.encode(text)) == 5 for text in texts)
    found = sentence_scores(pipeline, texts, ["piece", "word"])
    assert len(read) == 9
    assert (found[0] == found[2]).all()
    assert (found[:, 0] == found[:, 1]).all()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (None, "holds no .jsonl file of BLiMP"),
        ("{broken", ":2: is no pair of BLiMP; it needs sentence_good, sentence_bad, UID, linguistics_term"),
        ('{"good": "a", "bad": "b"}', ":2: is no pair of BLiMP"),
        ('{"sentence_good": 1, "sentence_bad": "b", "UID": "u", "linguistics_term": "l"}', ":2: is no pair of BLiMP"),
        ('["a"]', ":2: is no pair of BLiMP"),
    ],
)
def test_a_folder_that_is_no_blimp(tmp_path, line, message):
    if line is not None:
        (tmp_path / "x.jsonl").write_text("\n" + line + "\n")
    with pytest.raises(InputError, match=message):
        read_blimp(tmp_path)


def test_blimp_needs_a_head_and_nothing_beside_it(folder, tmp_path, capsys):
    BertModel.from_pretrained(folder, need_pooler=False).save_pretrained(tmp_path)
    WordPieceTokenizer.load(folder).save(tmp_path)
    write_blimp(tmp_path / "blimp")
    for model, more in ((tmp_path, []), (folder, ["--pairs", "pairs.tsv"])):
        assert typed(capsys, "probe", model, "--blimp", tmp_path / "blimp", *more, code=2).count("\n") == 1
