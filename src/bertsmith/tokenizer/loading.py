"""Which tokenizer a folder holds: ours for WordPiece, the `tokenizers` library for the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import read_json
from bertsmith.hub import model_folder
from bertsmith.tokenizer.base import Tokenizer
from bertsmith.tokenizer.files import read_config, special_names
from bertsmith.tokenizer.library import LibraryTokenizer, import_library, model_type
from bertsmith.tokenizer.wordpiece import WordPieceTokenizer

_SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", *_SENTENCEPIECE)
"""Files by which a folder is known to hold a tokenizer, one that is read here or one that is refused."""


def load_tokenizer(path: str | Path, *, lowercase: bool | None = None) -> Tokenizer:
    """Loads the tokenizer of a folder: a `WordPieceTokenizer` where it is WordPiece, else a `LibraryTokenizer`.

    Args:
        path: a model folder or tokenizer folder, a `tokenizer.json`, or a `vocab.txt`, which is WordPiece.
        lowercase: overrules the folder's setting, for WordPiece.

    Raises:
        InputError: a file is missing, malformed or of a kind that has to be converted first.
        ConfigError: the library is needed and not installed.
    """
    path = model_folder(path, weights=False)
    # 写错的文件名也归它说，而不是去读旁边别的文件
    if not path.is_dir() and not (path.suffix == ".json" and path.is_file()):
        return WordPieceTokenizer.load(path, lowercase=lowercase)
    json_file = path / "tokenizer.json" if path.is_dir() else path
    config = read_config(path)
    names = special_names(config, path / "tokenizer_config.json")
    made: LibraryTokenizer
    if json_file.is_file():
        if model_type(read_json(json_file, dict, InputError, "save the tokenizer again")) == "WordPiece":
            return WordPieceTokenizer.load(path, lowercase=lowercase)
        made = LibraryTokenizer(json_file.read_text(encoding="utf-8"), config, str(json_file))
    elif (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        made = _read_merges(path, config, names)
    else:
        held = next((name for name in _SENTENCEPIECE if (path / name).is_file()), None)
        if held is not None and not (path / "vocab.txt").is_file():
            raise InputError(
                f"{path / held}: a SentencePiece model without tokenizer.json; convert it where sentencepiece is"
                f" installed: AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
            )
        return WordPieceTokenizer.load(path, lowercase=lowercase)
    if lowercase is not None and lowercase != made.lowercase:
        raise InputError(f"{path}: its rules say lowercase={made.lowercase}, which only WordPiece lets one overrule")
    return made


def _read_merges(folder: Path, config: dict[str, Any], names: dict[str, str]) -> LibraryTokenizer:
    """Reads the two files of byte-level BPE that RoBERTa folders of old have instead of a `tokenizer.json`."""
    library = import_library()
    try:
        model = library.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:
        reason = str(error).split("\n")[0][:120]
        raise InputError(
            f"{folder}: vocab.json and merges.txt make no tokenizer ({reason}); copy both again from where they came"
        ) from None
    made = library.Tokenizer(model)
    adds_space = bool(config.get("add_prefix_space", False))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    made.decoder = library.decoders.ByteLevel()
    cls, sep = names.get("cls", "<s>"), names.get("sep", "</s>")
    known = [name for name in (cls, names.get("pad", "<pad>"), sep, names.get("unk", "<unk>")) if _has(made, name)]
    made.add_special_tokens([library.AddedToken(name, special=True) for name in known])
    mask = names.get("mask", "<mask>")
    if _has(made, mask):
        # <mask> 吞掉它前面的空格：训练时遮住的正是带空格的词片
        made.add_special_tokens([library.AddedToken(mask, lstrip=True, special=True)])
    if _has(made, cls) and _has(made, sep):
        places = [(name, made.token_to_id(name)) for name in (sep, cls)]
        made.post_processor = library.processors.RobertaProcessing(
            *places, trim_offsets=True, add_prefix_space=adds_space
        )
    return LibraryTokenizer(made.to_str(pretty=True), config, str(folder / "vocab.json"))


def _has(made: Any, name: str) -> bool:
    return made.token_to_id(name) is not None
