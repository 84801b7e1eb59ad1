"""Model inputs agree with `transformers`' fast tokenizer on pairs, truncation, windows and padding."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith.tokenizer import WordPieceTokenizer

WORDS = ["the", "man", "café", "eats", "Unbelievable", "fish,", "don't", "北京", "a.b", "zzzqx", "x\u200by"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "man", "cafe", "eat", "##s", "un", "##believable", "fish"]
VOCAB += [",", "don", "'", "t", "北", "京", "a", ".", "b"]


@pytest.fixture(scope="module")
def ours() -> WordPieceTokenizer:
    return WordPieceTokenizer(VOCAB)


@pytest.fixture(scope="module")
def peer(ours: WordPieceTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers")
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    ours.save(folder)
    return transformers.BertTokenizerFast.from_pretrained(str(folder))


def random_text(draw: random.Random, most: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(0, most)))


def compare(ours: dict[str, Any], peer: Any) -> None:
    for name in ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask"):
        assert ours[name] == peer[name], name
    assert ours["offsets"] == peer["offset_mapping"]
    for row, words in enumerate(ours["word_ids"]):
        assert [None if word < 0 else word for word in words] == peer.word_ids(row)


@pytest.mark.parametrize("seed", range(60))
def test_pairs_truncation_and_padding_agree_with_transformers(ours: WordPieceTokenizer, peer: Any, seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 4)
    texts = [random_text(draw, 12) for _ in range(count)]
    pairs = [random_text(draw, 12) for _ in range(count)] if draw.random() < 0.6 else None
    options: dict[str, Any] = {
        "max_length": draw.randint(4, 30),
        "truncation": draw.choice(["longest_first", False]),
        "padding": draw.choice([False, "longest", "max_length"]),
    }
    expected = peer(
        texts,
        pairs,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_token_type_ids=True,
        **options,
    )
    compare(ours(texts, pairs, **options), expected)


@pytest.mark.parametrize("truncation", ["only_first", "only_second"])
@pytest.mark.parametrize("seed", range(20))
def test_windows_agree_with_transformers(ours: WordPieceTokenizer, peer: Any, truncation: str, seed: int) -> None:
    draw = random.Random(seed)
    long, short = random_text(draw, 60) + " fish", random_text(draw, 2)
    text, pair = (long, short) if truncation == "only_first" else (short, long)
    options: dict[str, Any] = {
        "max_length": draw.randint(18, 30),
        "truncation": truncation,
        "stride": draw.randint(0, 3),
    }
    expected = peer(
        [text],
        [pair],
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        return_overflowing_tokens=True,
        **options,
    )
    got = ours([text], [pair], return_overflowing=True, **options)
    compare(got, expected)
    assert got["overflow_to_sample"] == expected["overflow_to_sample_mapping"]


def test_one_text_gives_flat_lists_and_many_give_rows(ours: WordPieceTokenizer) -> None:
    assert ours("the man")["input_ids"] == [2, 5, 6, 3]
    assert ours(["the man"])["input_ids"] == [[2, 5, 6, 3]]
    assert ours("the", "man")["token_type_ids"] == [0, 0, 0, 1, 1]


def test_arrays(ours: WordPieceTokenizer) -> None:
    encoding = ours(["the man", "fish"], padding="longest", return_tensors="np")
    assert encoding["input_ids"].dtype == np.int64
    assert encoding["input_ids"].tolist() == [[2, 5, 6, 3], [2, 12, 3, 0]]
    assert encoding["offsets"].shape == (2, 4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": "max_length"}, "max_length"),
        ({"padding": "all"}, "padding"),
        ({"truncation": "both"}, "truncation"),
        ({"max_length": 1}, "special tokens"),
        ({"max_length": 4, "truncation": "only_second"}, "second text"),
        ({"max_length": 4, "stride": 2, "return_overflowing": True}, "stride"),
        ({"stride": -1}, "stride"),
        ({"return_overflowing": True}, "max_length"),
        ({"return_tensors": "jax"}, "return_tensors"),
    ],
)
def test_impossible_requests_are_refused(ours: WordPieceTokenizer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ours("the man eats the fish", **options)


def test_texts_and_pairs_must_match(ours: WordPieceTokenizer) -> None:
    with pytest.raises(InputError, match="pairs"):
        ours(["the", "man"], ["fish"])
    with pytest.raises(InputError, match="pairs"):
        ours(["the"], "fish")


def test_ragged_rows_make_no_array(ours: WordPieceTokenizer) -> None:
    with pytest.raises(InputError, match="padding"):
        ours(["the man", "fish"], return_tensors="np")
