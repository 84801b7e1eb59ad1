"""Ids and places of many texts as arrays: the same as text by text, in one process or several."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.tokenizer import WordPieceTokenizer

VOCAB = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "<url>",
    "the",
    "caf",
    "##e",
    "e",
    "un",
    "##s",
    "北",
    "京",
    ",",
    ".",
]
TEXTS = ["The café, the café.", "", "  ", "北京the 北", "<url> the<url>", "uns\tun\n\nuns", "x" * 300, "[SEP] the"]


def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(VOCAB, user_tokens=["<url>"])


def rows(flat: object, name: str) -> list[list[int]]:
    bounds = flat.bounds.tolist()  # type: ignore[attr-defined]
    return [getattr(flat, name)[start:end].tolist() for start, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("parse_special", [False, True])
def test_flat_ids_are_those_of_each_text(parse_special: bool) -> None:
    flat = tokenizer().encode_flat(TEXTS, parse_special=parse_special)
    assert flat.ids.dtype == np.int32
    assert rows(flat, "ids") == tokenizer().encode_batch(TEXTS, parse_special=parse_special)


@settings(deadline=None, max_examples=300)
@given(texts=st.lists(st.text(alphabet="the uns,é北。\0\x0b\x1c\u200b \n", max_size=12), max_size=6))
def test_no_text_can_reach_into_its_neighbour(texts: list[str]) -> None:
    """Texts are looked up joined by NUL; one that holds NUL, or ends in the middle of a word, keeps its ids."""
    one = WordPieceTokenizer(VOCAB)
    each = [one.encode(text) for text in texts]
    assert rows(one.encode_flat(texts), "ids") == each
    assert one.encode_batch(texts) == each


@pytest.mark.parametrize("user_tokens", [(), ("<url>",)])
def test_flat_places_are_those_of_each_text(user_tokens: tuple[str, ...]) -> None:
    one = WordPieceTokenizer(VOCAB, user_tokens=user_tokens)
    check_places(one, TEXTS)
    check_places(one, [])
    check_places(one, ["", ""])


@settings(deadline=None, max_examples=200)
@given(texts=st.lists(st.text(alphabet="the un,.é\u0301İßΣ北京한\t\n\u3000\x0b\u200b <url>", max_size=30), max_size=6))
def test_flat_places_of_any_texts(texts: list[str]) -> None:
    check_places(tokenizer(), texts)


def check_places(one: WordPieceTokenizer, texts: list[str]) -> None:
    flat = one.align_flat(texts)
    each = [one(text, truncation=False) for text in texts]
    encoding = {name: [row[name] for row in each] for name in ("input_ids", "offsets", "word_ids")}
    assert rows(flat, "ids") == [row[1:-1] for row in encoding["input_ids"]]
    assert rows(flat, "word_ids") == [row[1:-1] for row in encoding["word_ids"]]
    places = [[*zip(*pair, strict=True)] for pair in zip(rows(flat, "starts"), rows(flat, "ends"), strict=True)]
    assert places == [row[1:-1] for row in encoding["offsets"]]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_stream_is_in_order_whatever_the_workers(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.tokenizer.base._BATCH_CHARS", 500)
    draw = random.Random(0)
    texts = [" ".join(draw.choices(TEXTS, k=draw.randint(0, 5))) for _ in range(400)]
    one = tokenizer()
    parts = list(one.encode_stream(iter(texts), workers=workers))
    assert len(parts) > 10
    assert [row for part in parts for row in rows(part, "ids")] == one.encode_batch(texts)


def test_an_endless_stream_is_read_only_a_little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.tokenizer.base._BATCH_CHARS", 100)
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "the café, the café."

    stream = tokenizer().encode_stream(endless(), workers=2)
    for _ in range(5):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert read < 200


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InputError, match="single string"):
        list(tokenizer().encode_stream("the"))
    with pytest.raises(InputError, match="text 2 is bytes"):
        list(tokenizer().encode_stream(["the", b"the"]))  # type: ignore[list-item]
    with pytest.raises(InputError, match="workers=0"):
        tokenizer().encode_stream(["the"], workers=0)


@pytest.mark.parametrize("folder", ["corpus_zh", "corpus/wiki"])
def test_flat_ids_of_real_text(shared_data: Path, folder: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted((shared_data / folder).glob("*.txt"))]
    lines = [line for text in texts for line in text.split("\n")]
    one = WordPieceTokenizer.load(shared_data / "vocab-chinese-21128.txt")
    assert rows(one.encode_flat(lines), "ids") == one.encode_batch(lines)
    check_places(one, lines)
