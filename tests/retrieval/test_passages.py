"""Passages: never longer than the model reads, nothing left out, cut where a reader would."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from bertsmith.errors import ConfigError
from bertsmith.retrieval.passages import Document, PassageCutter, Section
from bertsmith.tokenizer import WordPieceTokenizer, load_tokenizer

TOKENIZER = WordPieceTokenizer.train(["the man eats bread . the woman reads a book !"] * 3, vocab_size=200)


def cut(text, size=20, overlap=4, above=(), prompt="", tokenizer=TOKENIZER):
    """The passages of a text file, or of a section under the headings `above`."""
    sections = (Section(" > ".join(above), 0, len(text)),) if text.strip() else ()
    return list(PassageCutter(tokenizer, size, overlap, prompt).cut(Document("a.txt", text, sections, None, {})))


def length(passage, tokenizer=TOKENIZER):
    return len(tokenizer(passage.read)["input_ids"])


TEXTS = st.text(st.sampled_from("the man é́. \n!?中文#😀\tbook'"), max_size=400)


@hypothesis_settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS, overlap=st.integers(0, 6), above=st.sampled_from([(), ("the man",)]))
def test_passages_fit_and_hold_every_word(text, overlap, above):
    passages = cut(text, overlap=overlap, above=above)
    covered = set()
    for passage in passages:
        assert length(passage) <= 20
        assert passage.text == text[passage.start : passage.end] == passage.text.strip() != ""
        assert passage.place == text.count("\n", 0, passage.start) + 1
        covered |= set(range(passage.start, passage.end))
    if passages:
        assert all(text[place].isspace() for place in set(range(len(text))) - covered)


def test_neighbours_share_tokens():
    passages = cut("the man reads the book and the woman eats the bread " * 10, overlap=4)
    assert len(passages) > 5
    for left, right in itertools.pairwise(passages):
        assert left.start < right.start < left.end < right.end
    apart = cut("the man " * 50, overlap=0)
    assert all(right.start >= left.end for left, right in itertools.pairwise(apart))


def test_a_passage_ends_with_a_paragraph_else_a_sentence():
    text = "the man the man the man . the man the man .\n\nthe woman the woman the woman the woman the woman"
    assert cut(text, overlap=0)[0].text.endswith("the man .")
    text = "the man the man the man the man the man . the woman the woman the woman the woman the woman"
    assert cut(text, overlap=0)[0].text.endswith("the man .")


def test_headings_are_read_before_every_passage_and_cut_when_long():
    passages = cut("the woman reads " * 20, above=["the man"], prompt="book ")
    assert len(passages) > 2
    assert all(p.heading == "the man" and p.read == f"book the man\n{p.text}" for p in passages)
    long = cut("the woman reads", above=["the man " * 30, "a book"])
    assert [p.read for p in long] == ["a book\nthe woman reads"]
    assert all(length(p) <= 20 for p in cut("the woman reads", above=["the man " * 30]))


def test_equal_texts_have_equal_digests_and_others_do_not():
    one, two, three = (cut(text)[0] for text in ("the man", " the man\n", "the woman"))
    assert one.digest == two.digest != three.digest


def test_no_words_no_passages():
    assert cut("") == []
    assert cut(" \n\n ") == []


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="leave 7 for text"):
        cut("the man", size=9)
    with pytest.raises(ConfigError, match="overlap of 9"):
        cut("the man", overlap=9)


def test_real_texts_fit_the_real_model(minilm_folder, shared_data):
    tokenizer = load_tokenizer(minilm_folder)
    file = sorted((shared_data / "corpus").rglob("*.txt"))[0]
    text = file.read_text(encoding="utf-8", errors="replace")[:200_000]
    passages = cut(text, size=256, overlap=32, tokenizer=tokenizer)
    lengths = [length(passage, tokenizer) for passage in passages]
    assert max(lengths) <= 256
    assert sum(lengths) / len(lengths) > 128
