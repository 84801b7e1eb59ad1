"""The tokenizer's files: what is read, what is written, and what is refused.

A tokenizer folder holds `vocab.txt` (one piece a line, the line number is the id), `tokenizer_config.json`,
`special_tokens_map.json` and `tokenizer.json`: the four files the field reads. `vocab.txt` alone is enough to load,
and so is a folder with `tokenizer.json` only, which is what newer versions of `transformers` write.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError, RunFolderError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


class Settings(NamedTuple):
    """What decides how text becomes words; `strip_accents=None` follows `lowercase`."""

    lowercase: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True


def read_tokenizer(path: Path) -> tuple[list[str], Settings]:
    """Reads a tokenizer folder, or a vocabulary file alone.

    Args:
        path: a folder, a `vocab.txt`, or a `tokenizer.json`.

    Returns:
        The pieces in the order of their ids, and the settings (the defaults, for a vocabulary file alone).

    Raises:
        InputError: something is missing or malformed.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; give a tokenizer folder or a vocab.txt")
    if path.is_file():
        return _read_json_tokenizer(path) if path.suffix == ".json" else (read_vocab(path), Settings())
    vocab_file, json_file, config_file = (
        path / name for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
    )
    if vocab_file.is_file():
        vocab, settings = read_vocab(vocab_file), Settings()
        if json_file.is_file() and not config_file.is_file():
            settings = _read_json_tokenizer(json_file)[1]
    elif json_file.is_file():
        vocab, settings = _read_json_tokenizer(json_file)
    else:
        raise InputError(f"{path}: holds neither vocab.txt nor tokenizer.json; give a tokenizer folder or a vocab.txt")
    if config_file.is_file():
        config = _read_json(config_file)
        settings = Settings(
            _flag(config, "do_lower_case", settings.lowercase, config_file),
            config.get("strip_accents", settings.strip_accents),
            _flag(config, "tokenize_chinese_chars", settings.tokenize_chinese_chars, config_file),
        )
    return vocab, settings


def read_vocab(path: Path) -> list[str]:
    r"""Reads a `vocab.txt`.

    A byte order mark, Windows line ends and blank lines at the end are tolerated. So is one blank line between
    pieces: it holds its place, and no text ever meets it (line 344 of the published Chinese vocabulary is one).

    Args:
        path: the file.

    Returns:
        The pieces; the place in the list is the id.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or is refused by `check_vocab`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}: line {line} is not UTF-8; save the vocabulary as UTF-8") from error
    # 只按 \n 切：splitlines 会在 U+2028 等字符处断行，而它们可能就是词表里的一项
    vocab = [line.removesuffix("\r") for line in text.split("\n")]
    while vocab and not vocab[-1]:
        vocab.pop()
    check_vocab(vocab, str(path))
    return vocab


def check_vocab(vocab: list[str], place: str) -> None:
    """Refuses a vocabulary no tokenizer can work with.

    A `##` piece may be there twice: the published Chinese vocabulary repeats 53 of them. The last place counts, as in
    the original release and in `tokenizers`. Any other repetition means a damaged file.

    Args:
        vocab: the pieces.
        place: what to call it in the message.

    Raises:
        InputError: it is empty, a piece that starts a word is there twice, or `[UNK]` is missing.
    """
    if not vocab:
        raise InputError(f"{place}: the vocabulary is empty; give one piece per line")
    if len(set(vocab)) != len(vocab):
        seen: dict[str, int] = {}
        for number, piece in enumerate(vocab, 1):
            # 已发布的中文词表就有重复的 ## 片段，拒绝它们等于拒绝该词表
            if piece in seen and not piece.startswith("##"):
                what = f"piece {piece!r}" if piece else "a blank line"
                raise InputError(f"{place}: {what} is on line {seen[piece]} and again on line {number}; remove one")
            seen[piece] = number
    if "[UNK]" not in vocab:
        raise InputError(f"{place}: has no [UNK], the piece for words it cannot spell; add a line [UNK]")


def write_tokenizer(folder: Path, vocab: list[str], settings: Settings, max_word_chars: int) -> None:
    """Writes the four files, each one whole or not at all.

    Args:
        folder: where; created if it is missing.
        vocab: the pieces in the order of their ids.
        settings: how text becomes words.
        max_word_chars: longer words are `[UNK]`.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    present = {role: token for role, token in zip(_ROLES, SPECIAL_TOKENS, strict=True) if token in vocab}
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": settings.lowercase,
        "strip_accents": settings.strip_accents,
        "tokenize_chinese_chars": settings.tokenize_chinese_chars,
        **present,
    }
    files = {
        "vocab.txt": "".join(f"{piece}\n" for piece in vocab),
        "tokenizer_config.json": _dump(config),
        "special_tokens_map.json": _dump(present),
        "tokenizer.json": _dump(_json_tokenizer(vocab, settings, max_word_chars)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            # 先写临时文件再改名：进程随时被杀也不会留下半个词表
            temporary = folder / f".{name}.{os.getpid()}.tmp"
            temporary.write_text(text, encoding="utf-8", newline="\n")
            temporary.replace(folder / name)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: the tokenizer cannot be written ({error.strerror}); choose another folder or free some space"
        ) from error


def _json_tokenizer(vocab: list[str], settings: Settings, max_word_chars: int) -> dict[str, Any]:
    """Describes the tokenizer in the format of the `tokenizers` library."""
    ids = {piece: index for index, piece in enumerate(vocab)}
    special = [token for token in SPECIAL_TOKENS if token in ids]
    processor = None
    if "[CLS]" in ids and "[SEP]" in ids:
        cls, sep = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]"))
        first = [cls, {"Sequence": {"id": "A", "type_id": 0}}, sep]
        second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
        processor = {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")
            },
        }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": ids[token], "content": token, **flags} for token in sorted(special, key=ids.__getitem__)
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.tokenize_chinese_chars,
            "strip_accents": settings.strip_accents,
            "lowercase": settings.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": processor,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": max_word_chars,
            "vocab": ids,
        },
    }


def _read_json_tokenizer(path: Path) -> tuple[list[str], Settings]:
    """Reads the vocabulary and the settings out of a `tokenizer.json`."""
    content = _read_json(path)
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type", "WordPiece") != "WordPiece":
        raise InputError(f"{path}: is not a WordPiece tokenizer; give the folder of a BERT model")
    ids = model.get("vocab")
    if not isinstance(ids, dict) or not all(isinstance(index, int) and 0 <= index < 1 << 24 for index in ids.values()):
        raise InputError(f"{path}: its vocabulary is not a table of pieces and their ids; save the tokenizer again")
    # 编号可以有空缺（词表有重复片段时，前一个位置无人使用），空缺处放占位符，后面的编号才不会错位
    vocab = [f"[vacant{index}]" for index in range(max(ids.values(), default=-1) + 1)]
    for piece, index in ids.items():
        vocab[index] = piece
    check_vocab(vocab, str(path))
    normalizer = content.get("normalizer") or {}
    settings = Settings(
        _flag(normalizer, "lowercase", True, path),
        normalizer.get("strip_accents"),
        _flag(normalizer, "handle_chinese_chars", True, path),
    )
    return vocab, settings


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error}); save the tokenizer again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: is not a JSON object; save the tokenizer again")
    return content


def _flag(content: dict[str, Any], name: str, default: bool, path: Path) -> bool:
    value = content.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"{path}: {name} is {value!r}; write true or false")
    return value


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
