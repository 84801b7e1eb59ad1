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


OUTPUTS: dict[str, Any] = {
    "return_offsets_mapping": True,
    "return_special_tokens_mask": True,
    "return_token_type_ids": True,
}


@pytest.mark.parametrize("seed", range(10))
def test_pairs_truncation_and_padding_agree_with_transformers(ours: WordPieceTokenizer, peer: Any, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        count = draw.randint(1, 4)
        texts = [random_text(draw, 12) for _ in range(count)]
        pairs = [random_text(draw, 12) for _ in range(count)] if draw.random() < 0.6 else None
        options: dict[str, Any] = {
            # 从 4 起：只放得下特殊词元时 transformers 给出超过 max_length 的行
            "max_length": draw.randint(4, 30),
            "truncation": draw.choice(["longest_first", "only_first", "only_second", False]),
            "padding": draw.choice([False, "longest", "max_length"]),
        }
        same_or_both_refuse(ours, peer, texts, pairs, options)


@pytest.mark.parametrize("seed", range(10))
def test_windows_agree_with_transformers(ours: WordPieceTokenizer, peer: Any, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        count = draw.randint(1, 3)
        texts = [random_text(draw, 40) for _ in range(count)]
        pairs = [random_text(draw, 20) for _ in range(count)] if draw.random() < 0.7 else None
        stride = draw.randint(0, 4)
        options: dict[str, Any] = {
            # 窗口要大于步幅的两倍：再小时 transformers 会崩溃，或给出超过 max_length 的行
            "max_length": draw.randint(2 * stride + 5, 40),
            "truncation": draw.choice(["longest_first", "only_first", "only_second"]),
            "padding": draw.choice([False, "longest", "max_length"]),
            "stride": stride,
        }
        same_or_both_refuse(ours, peer, texts, pairs, options, windows=True)


def same_or_both_refuse(
    ours: WordPieceTokenizer,
    peer: Any,
    texts: list[str],
    pairs: list[str] | None,
    options: dict[str, Any],
    *,
    windows: bool = False,
) -> None:
    try:
        expected = peer(texts, pairs, return_overflowing_tokens=windows, **OUTPUTS, **options)
    except BaseException as error:
        # transformers 的拒绝来自 Rust：Exception，或继承自 BaseException 的 panic
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        with pytest.raises(InputError):
            ours(texts, pairs, return_overflowing=windows, **options)
        return
    got = ours(texts, pairs, return_overflowing=windows, **options)
    compare(got, expected)
    if windows:
        assert got["overflow_to_sample"] == expected["overflow_to_sample_mapping"]


def test_windows_of_both_texts_come_in_every_combination(ours: WordPieceTokenizer) -> None:
    windows = ours("a a b b", "the the man man", max_length=7, return_overflowing=True)["input_ids"]
    a, b, the, man = (ours.piece_to_id[piece] for piece in ("a", "b", "the", "man"))
    middles = [[a, a, the, the], [b, b, the, the], [b, b, man, man], [a, a, man, man]]
    assert windows == [[2, one, two, 3, three, four, 3] for one, two, three, four in middles]


def test_one_text_gives_flat_lists_and_many_give_rows(ours: WordPieceTokenizer) -> None:
    assert ours("the man")["input_ids"] == [2, 5, 6, 3]
    assert ours(["the man"])["input_ids"] == [[2, 5, 6, 3]]
    assert ours("the", "man")["token_type_ids"] == [0, 0, 0, 1, 1]


def test_arrays(ours: WordPieceTokenizer) -> None:
    encoding = ours(["the man", "fish"], padding="longest", return_tensors="np")
    assert encoding["input_ids"].dtype == np.int64
    assert encoding["input_ids"].tolist() == [[2, 5, 6, 3], [2, 12, 3, 0]]
    assert encoding["offsets"].shape == (2, 4, 2)


TEXT = "the man eats the fish"


@pytest.mark.parametrize(
    ("text", "pair", "options", "message"),
    [
        (TEXT, None, {"padding": "max_length"}, "max_length"),
        (TEXT, None, {"padding": "all"}, "padding"),
        (TEXT, None, {"truncation": "both"}, "truncation"),
        (TEXT, None, {"max_length": 1}, "special tokens"),
        (TEXT, None, {"max_length": 4, "truncation": "only_second"}, "second text"),
        (TEXT, None, {"max_length": 4, "stride": 2, "return_overflowing": True}, "stride"),
        (TEXT, None, {"stride": -1}, "stride"),
        (TEXT, None, {"return_overflowing": True}, "max_length"),
        (TEXT, None, {"return_tensors": "jax"}, "return_tensors"),
        (["the man", "fish"], None, {"return_tensors": "np"}, "padding"),
        (["the", "man"], ["fish"], {}, "pairs"),
        (["the"], "fish", {}, "the other a list"),
        ("the", ["fish"], {}, "the other a list"),
        (["the", float("nan")], None, {}, "text 2 is float, not str"),
        ([["the", "man"]], None, {}, "text 1 is list, not str"),
        (["the"], [None], {}, "second text 1 is NoneType, not str"),
        (b"the", None, {}, "text 1 is bytes, not str"),
        (None, None, {}, "text 1 is NoneType, not str"),
        # no room: refused instead of giving longer rows
        ("a b", None, {"max_length": 1}, "max_length"),
        ("a b", None, {"max_length": 2, "truncation": "only_first"}, "max_length"),
        ("a b", "a", {"max_length": 4, "truncation": "only_second"}, "max_length"),
        ("a b", "a b", {"max_length": 3, "truncation": "only_first"}, "max_length"),
        ("a b", "a b", {"max_length": 3, "return_overflowing": True}, "max_length"),
        ("a b", "a b", {"max_length": 2}, "max_length"),
    ],
)
def test_impossible_requests_are_refused(
    ours: WordPieceTokenizer, text: Any, pair: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ours(text, pair, **options)


def test_what_is_no_text_is_refused(ours: WordPieceTokenizer) -> None:
    with pytest.raises(InputError, match="the text is NoneType, not str"):
        ours.encode(None)  # type: ignore[arg-type]


def test_no_texts_give_no_rows(ours: WordPieceTokenizer) -> None:
    assert ours([])["input_ids"] == []
