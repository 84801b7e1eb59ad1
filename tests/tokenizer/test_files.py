"""Tokenizer folders: written for the whole field, read from it, refused with one clear line."""

import json
import pickle
from pathlib import Path

import pytest

from bertsmith.errors import InputError, RunFolderError
from bertsmith.tokenizer import WordPieceTokenizer

VOCAB = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "The",
    "caf",
    "##é",
    "##e",
    "é",
    "北",
    "京",
    "北京",
    "[",
    "]",
]
VOCAB += ["mask", "MASK"]
TEXTS = ["The café", "the cafe 北京", "unknown é", "the [MASK] The"]
SETTINGS = [
    {},
    {"lowercase": False},
    {"strip_accents": False},
    {"lowercase": False, "strip_accents": True},
    {"tokenize_chinese_chars": False},
]


@pytest.mark.parametrize("options", SETTINGS)
def test_save_and_load_give_the_same_tokenizer(tmp_path: Path, options: dict[str, bool]) -> None:
    tokenizer = WordPieceTokenizer(VOCAB, **options)
    tokenizer.save(tmp_path / "deep" / "folder")
    loaded = WordPieceTokenizer.load(tmp_path / "deep" / "folder")
    assert loaded.vocab == VOCAB
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)


@pytest.mark.parametrize("options", SETTINGS)
def test_transformers_and_tokenizers_load_what_we_save(tmp_path: Path, options: dict[str, bool]) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = WordPieceTokenizer(VOCAB, **options)
    tokenizer.save(tmp_path)
    expected = tokenizer(TEXTS, TEXTS[::-1], parse_special=True)["input_ids"]
    for loader in (transformers.AutoTokenizer, transformers.BertTokenizerFast):
        peer = loader.from_pretrained(str(tmp_path))
        assert peer(TEXTS, TEXTS[::-1])["input_ids"] == expected
        assert (peer.pad_token_id, peer.mask_token_id, peer.cls_token_id) == (0, 4, 2)
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [row.ids for row in rust.encode_batch(list(zip(TEXTS, TEXTS[::-1], strict=True)))] == expected


@pytest.mark.parametrize("options", SETTINGS)
def test_we_load_what_transformers_saves(tmp_path: Path, options: dict[str, bool]) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = WordPieceTokenizer(VOCAB, **options)
    tokenizer.save(tmp_path / "ours")
    transformers.AutoTokenizer.from_pretrained(str(tmp_path / "ours")).save_pretrained(str(tmp_path / "theirs"))
    loaded = WordPieceTokenizer.load(tmp_path / "theirs")
    assert loaded.vocab == VOCAB
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)


def test_the_published_chinese_vocabulary_keeps_its_ids(shared_data: Path, tmp_path: Path) -> None:
    # 这份已发布的词表第 344 行为空，并有 53 个重复的 ## 片段：编号必须仍与行号一致
    tokenizer = WordPieceTokenizer.load(shared_data / "vocab-chinese-21128.txt")
    assert tokenizer.vocab_size == 21128
    assert tokenizer.encode("玩") == [
        (shared_data / "vocab-chinese-21128.txt").read_text(encoding="utf-8").split("\n").index("玩")
    ]
    tokenizer.save(tmp_path)
    assert WordPieceTokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint
    (tmp_path / "vocab.txt").unlink()
    assert WordPieceTokenizer.load(tmp_path).encode("zz 玩") == tokenizer.encode("zz 玩")


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize("data", [b"\xef\xbb\xbf[UNK]\nthe\n", b"[UNK]\r\nthe\r\n", b"[UNK]\nthe", b"[UNK]\nthe\n\n\n"])
def test_byte_order_mark_line_ends_and_trailing_lines_are_tolerated(tmp_path: Path, data: bytes) -> None:
    assert WordPieceTokenizer.load(write(tmp_path / "vocab.txt", data)).vocab == ["[UNK]", "the"]


def test_unusual_line_separators_are_pieces(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.txt", "[UNK]\n\u2028\n\x0c\nthe\n")
    assert WordPieceTokenizer.load(path).encode("the") == [3]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"[PAD]\nthe\n", r"\[UNK\]"),
        (b"[UNK]\nthe\na\nthe\n", "'the' is on line 2 and again on line 4"),
        (b"[UNK]\n\na\n\nb\n", "blank line is on line 2 and again on line 4"),
        (b"[UNK]\nok\n\xff\xfe\n", "line 3 is not UTF-8"),
    ],
)
def test_malformed_vocabularies_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        WordPieceTokenizer.load(write(tmp_path / "vocab.txt", data))
    assert "vocab.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_things_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        WordPieceTokenizer.load(tmp_path / "absent")
    with pytest.raises(InputError, match=r"vocab\.txt"):
        WordPieceTokenizer.load(tmp_path)
    tokenizer = WordPieceTokenizer(["[UNK]", "a"])
    with pytest.raises(InputError, match=r"\[MASK\]"):
        _ = tokenizer.mask_token_id
    with pytest.raises(InputError, match=r"\[CLS\]"):
        tokenizer("a")


@pytest.mark.parametrize(
    "config", ["not json", "[]", json.dumps({"do_lower_case": "yes"}), json.dumps({"tokenize_chinese_chars": 1})]
)
def test_malformed_settings_are_refused(tmp_path: Path, config: str) -> None:
    WordPieceTokenizer(VOCAB).save(tmp_path)
    write(tmp_path / "tokenizer_config.json", config)
    with pytest.raises(InputError, match=r"tokenizer_config\.json"):
        WordPieceTokenizer.load(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = write(tmp_path / "file", b"")
    with pytest.raises(RunFolderError, match="file"):
        WordPieceTokenizer(VOCAB).save(blocked)


def test_fingerprint_follows_whatever_decides_the_ids() -> None:
    prints = {WordPieceTokenizer(VOCAB, **options).fingerprint for options in SETTINGS}
    prints.add(WordPieceTokenizer([*VOCAB, "more"]).fingerprint)
    assert len(prints) == len(SETTINGS) + 1
    assert WordPieceTokenizer(VOCAB, strip_accents=True).fingerprint == WordPieceTokenizer(VOCAB).fingerprint


def test_a_tokenizer_travels_to_another_process() -> None:
    tokenizer = WordPieceTokenizer(VOCAB, lowercase=False)
    tokenizer.encode("the the")
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("The the") == tokenizer.encode("The the")
    assert copy.fingerprint == tokenizer.fingerprint
