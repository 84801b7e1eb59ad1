"""Tokenizer folders: written for the whole field, read from it, refused with one clear line."""

import json
import pickle
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda ids: {**ids, "the": ids["The"], "The": ids["the"]},
            r"piece 'the' has id 5, and 6 in .*tokenizer\.json",
        ),
        (
            lambda ids: {"[unused1]" if piece == "caf" else piece: ids[piece] for piece in ids},
            r"'\[unused1\]' has no place",
        ),
        (lambda ids: {**ids, "world": len(ids)}, f"piece 'world' has no place, and {len(VOCAB)} in"),
    ],
)
def test_two_vocabularies_that_contradict_each_other_are_refused(tmp_path: Path, change: Any, says: str) -> None:
    WordPieceTokenizer(VOCAB).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"] = change(content["model"]["vocab"])
    write(tmp_path / "tokenizer.json", json.dumps(content))
    with pytest.raises(InputError, match=rf"vocab\.txt: .*{says}.*; remove"):
        WordPieceTokenizer.load(tmp_path)


def test_what_two_vocabularies_may_tell_apart(tmp_path: Path) -> None:
    # of a repeated piece the last place counts, a blank line is none, and vocab.txt may have more
    WordPieceTokenizer([*VOCAB[:8], "##é", *VOCAB[9:], "##é"]).save(tmp_path)
    written = tmp_path / "vocab.txt"
    written.write_text(written.read_text(encoding="utf-8") + "\nmore\n", encoding="utf-8")
    assert WordPieceTokenizer.load(tmp_path).encode("more") == [len(VOCAB) + 2]
    # the other file has more where it says that they were added, and may keep or lose white space and blank lines
    WordPieceTokenizer(VOCAB).save(tmp_path)
    write(tmp_path / "vocab.txt", "".join(f"{piece}\n" for piece in [*VOCAB[:-1], "MASK\u3000"]) + "\n")
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"] |= {"<url>": len(VOCAB)}
    content["added_tokens"].append({"id": len(VOCAB), "content": "<url>", "normalized": False})
    write(tmp_path / "tokenizer.json", json.dumps(content))
    assert WordPieceTokenizer.load(tmp_path).encode("<url>") == [len(VOCAB)]


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


def test_user_tokens_survive_the_files_of_the_field(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = WordPieceTokenizer([*VOCAB, "<url>", "C++"], user_tokens=["<url>", "C++"])
    tokenizer.save(tmp_path / "ours")
    texts = ["the <url>C++ caf", "THE <URL>", "<url>"]
    expected = tokenizer(texts, parse_special=True)
    for loader in (transformers.AutoTokenizer, transformers.BertTokenizerFast):
        peer = loader.from_pretrained(str(tmp_path / "ours"))
        got = peer(texts, return_offsets_mapping=True)
        assert got["input_ids"] == expected["input_ids"]
        assert got["offset_mapping"] == expected["offsets"]
    peer.save_pretrained(str(tmp_path / "theirs"))
    for folder in ("ours", "theirs"):
        loaded = WordPieceTokenizer.load(tmp_path / folder)
        assert loaded.fingerprint == tokenizer.fingerprint
    (tmp_path / "ours" / "tokenizer.json").unlink()
    assert WordPieceTokenizer.load(tmp_path / "ours").fingerprint == tokenizer.fingerprint


def test_tokens_that_transformers_added_are_taken_over(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    WordPieceTokenizer(VOCAB).save(tmp_path / "ours")
    peer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "ours"))
    peer.add_tokens([transformers.AddedToken("<url>", normalized=False)])
    peer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    peer.save_pretrained(str(tmp_path / "theirs"))
    loaded = WordPieceTokenizer.load(tmp_path / "theirs")
    texts = ["the <url>", "[E1] the[E1]"]
    assert loaded(texts)["input_ids"] == peer(texts)["input_ids"]
    peer.add_tokens(["Normalised"])
    peer.save_pretrained(str(tmp_path / "normalised"))
    with pytest.raises(InputError, match="normalized"):
        WordPieceTokenizer.load(tmp_path / "normalised")


@pytest.mark.parametrize("lowercase", [False, True])
def test_tokens_that_older_versions_added_are_taken_over(tmp_path: Path, lowercase: bool) -> None:
    """`added_tokens.json` holds tokens and ids alone; how they match follows from the other files."""
    transformers = pytest.importorskip("transformers")
    write(tmp_path / "vocab.txt", "".join(f"{piece}\n" for piece in VOCAB))
    added = {"[E1]": len(VOCAB), "<url>": len(VOCAB) + 1, "[MASK]": VOCAB.index("[MASK]")}
    write(tmp_path / "added_tokens.json", json.dumps(added))
    settings, special = tmp_path / "tokenizer_config.json", tmp_path / "special_tokens_map.json"
    write(settings, json.dumps({"do_lower_case": lowercase, "additional_special_tokens": ["[E1]", "<url>"]}))
    peer = transformers.BertTokenizer.from_pretrained(str(tmp_path))
    texts = ["the <url> the", "[E1] the[E1]", "the [e1] <URL>"]
    loaded = WordPieceTokenizer.load(tmp_path)
    assert loaded(texts)["input_ids"] == peer(texts)["input_ids"]
    assert loaded.vocab_size == len(peer)
    write(settings, json.dumps({"do_lower_case": lowercase}))
    write(special, json.dumps({"additional_special_tokens": ["[E1]", {"content": "<url>"}]}))
    assert WordPieceTokenizer.load(tmp_path).fingerprint == loaded.fingerprint
    # a token that is not special is matched after normalising, which is another rule where text is lower-cased
    write(special, json.dumps({"additional_special_tokens": ["[E1]"]}))
    if lowercase:
        with pytest.raises(InputError, match=r"added_tokens\.json: added token '<url>' is normalized"):
            WordPieceTokenizer.load(tmp_path)
    else:
        peer = transformers.BertTokenizer.from_pretrained(str(tmp_path))
        assert WordPieceTokenizer.load(tmp_path)(texts)["input_ids"] == peer(texts)["input_ids"]
    # version 5 of transformers names its further special tokens
    write(special, json.dumps({"extra_special_tokens": {"first": "[E1]", "second": {"content": "<url>"}}}))
    assert WordPieceTokenizer.load(tmp_path).fingerprint == loaded.fingerprint
    for wrong in (True, [["[E1]"]], {"first": 3}):
        write(special, json.dumps({"extra_special_tokens": wrong}))
        with pytest.raises(InputError, match="extra_special_tokens is not a list of tokens"):
            WordPieceTokenizer.load(tmp_path)
    write(special, "{}")
    for wrong in (["[E1]"], {"first": {"content": "[E1]"}}):
        write(settings, json.dumps({"added_tokens_decoder": wrong}))
        with pytest.raises(InputError, match="added_tokens_decoder is not a table"):
            WordPieceTokenizer.load(tmp_path)
    write(settings, "{}")
    write(tmp_path / "added_tokens.json", '{"x": "y"}')
    with pytest.raises(InputError, match=r"added_tokens\.json: is not a table of tokens"):
        WordPieceTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"},
            "word_tokenizer_type is 'mecab', but BERT's is 'basic'",
        ),
        ({"subword_tokenizer_type": "character"}, "subword_tokenizer_type is 'character'"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class is 'BertJapaneseTokenizer'"),
        ({"tokenizer_class": "FunnelTokenizerFast"}, "tokenizer_class is 'FunnelTokenizerFast'"),
    ],
)
def test_a_folder_that_names_other_rules_is_refused(tmp_path: Path, config: dict[str, str], message: str) -> None:
    write(tmp_path / "vocab.txt", "".join(f"{piece}\n" for piece in VOCAB))
    write(tmp_path / "tokenizer_config.json", json.dumps(config))
    with pytest.raises(InputError, match=message):
        WordPieceTokenizer.load(tmp_path)
    # older folders keep the class with the model's settings
    if "tokenizer_class" in config:
        write(tmp_path / "tokenizer_config.json", "{}")
        write(tmp_path / "config.json", json.dumps(config))
        with pytest.raises(InputError, match=r"config\.json: tokenizer_class"):
            WordPieceTokenizer.load(tmp_path)


@pytest.mark.parametrize("name", [None, "BertTokenizer", "DistilBertTokenizerFast", "ElectraTokenizer"])
def test_other_names_for_berts_rules_are_accepted(tmp_path: Path, name: str | None) -> None:
    write(tmp_path / "vocab.txt", "".join(f"{piece}\n" for piece in VOCAB))
    config = {"tokenizer_class": name, "word_tokenizer_type": None, "subword_tokenizer_type": "wordpiece"}
    write(tmp_path / "tokenizer_config.json", json.dumps(config))
    assert WordPieceTokenizer.load(tmp_path).fingerprint == WordPieceTokenizer(VOCAB).fingerprint
    # where the rules are spelled out, their name does not matter
    WordPieceTokenizer(VOCAB).save(tmp_path)
    write(tmp_path / "tokenizer_config.json", json.dumps({"tokenizer_class": "SomeTokenizer"}))
    assert WordPieceTokenizer.load(tmp_path).fingerprint == WordPieceTokenizer(VOCAB).fingerprint


def test_renamed_special_tokens_keep_their_roles(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    names = {"[PAD]": "<pad>", "[UNK]": "<unk>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}
    (tmp_path / "vocab.txt").write_text("".join(f"{names.get(piece, piece)}\n" for piece in VOCAB), encoding="utf-8")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    config |= {f"{key[1:-1].lower()}_token": {"content": name} for key, name in names.items()}
    write(tmp_path / "tokenizer_config.json", json.dumps(config))
    loaded = WordPieceTokenizer.load(tmp_path)
    assert (loaded.pad_token_id, loaded.unk_token_id, loaded.cls_token_id) == (0, 1, 2)
    assert loaded(["the zzz", "the"], padding="longest")["input_ids"] == [[2, 5, 1, 3], [2, 5, 3, 0]]
    assert loaded.tokenize("the <mask>", parse_special=True) == ["the", "<mask>"]
    loaded.save(tmp_path / "again")
    again = WordPieceTokenizer.load(tmp_path / "again")
    assert again.fingerprint == loaded.fingerprint
    peer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "again"))
    assert peer(["the zzz <mask>"])["input_ids"] == again(["the zzz <mask>"], parse_special=True)["input_ids"]


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("normalizer", {"type": "Lowercase"}, "normalizer"),
        ("normalizer", {"type": "BertNormalizer", "clean_text": False}, "clean_text"),
        ("pre_tokenizer", {"type": "Whitespace"}, "pre_tokenizer"),
        ("model", {"type": "BPE"}, "WordPiece"),
    ],
)
def test_other_rules_than_berts_are_refused(tmp_path: Path, part: str, value: object, message: str) -> None:
    WordPieceTokenizer(VOCAB).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    write(tmp_path / "tokenizer.json", json.dumps(content | {part: value}))
    with pytest.raises(InputError, match=message):
        WordPieceTokenizer.load(tmp_path)


def test_another_longest_word_is_followed(tmp_path: Path) -> None:
    WordPieceTokenizer([*VOCAB, "a", "##a"], max_word_chars=5).save(tmp_path)
    assert WordPieceTokenizer.load(tmp_path).tokenize("aaaaa aaaaaa") == ["a", *["##a"] * 4, "[UNK]"]
