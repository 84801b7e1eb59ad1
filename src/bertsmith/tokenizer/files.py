"""The tokenizer's files: what is read, what is written, and what is refused.

The field reads four: `vocab.txt` (one piece a line, the line number is the id), `tokenizer_config.json`,
`special_tokens_map.json` and `tokenizer.json`. Either `vocab.txt` or `tokenizer.json` alone is enough to load; where
they give a piece different ids, the folder is refused. A file the field has published loads with its published ids; a
damaged one, or a folder that asks for other rules than BERT's, is refused with the rule named: ids that are nearly
right would make every model silently worse.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import make_folder, read_bounded, read_json, write_text
from bertsmith.tokenizer.settings import BERT_TOKENS, Settings, SpecialTokens


def read_vocab(path: Path, unk_token: str) -> list[str]:
    r"""Reads a `vocab.txt`.

    A byte order mark, Windows line ends and blank lines at the end are tolerated. So is one blank line between
    pieces: it holds its place, and no text ever meets it (line 344 of the published Chinese vocabulary is one).
    """
    try:
        data = read_bounded(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}; give a vocab.txt") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}: line {line} is not UTF-8; save the vocabulary as UTF-8") from error
    # 只按 \n 切：splitlines 会在 U+2028 等字符处断行，而它们可能就是词表里的一项
    vocab = [line.removesuffix("\r") for line in text.split("\n")]
    while vocab and not vocab[-1]:
        vocab.pop()
    check_vocab(vocab, str(path), unk_token)
    return vocab


def check_vocab(vocab: list[str], place: str, unk_token: str) -> None:
    """Refuses a vocabulary no tokenizer can work with.

    A `##` piece may be there twice: the published Chinese vocabulary repeats 53 of them. The last place counts, as in
    the original release and in `tokenizers`. Any other repetition means a damaged file.
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
    if unk_token not in vocab:
        raise InputError(f"{place}: has no {unk_token}, the piece for words it cannot spell; add a line {unk_token}")


# Whose tokenizer transformers calls BERT's WordPiece and its copies; each is `NAMETokenizer` and `NAMETokenizerFast`.
_BERT_CLASSES = (
    *("Bert", "ConvBert", "DPRContextEncoder", "DPRQuestionEncoder", "DPRReader", "DistilBert", "Electra", "LayoutLM"),
    *("Lxmert", "MobileBert", "PreTrained", "Realm", "RetriBert", "SqueezeBert"),
)
# 编号的空缺要用占位符填满：多到不像话的不信
_MOST_VACANT = 1 << 20
MATCHED_AS_WRITTEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
"""Flags of an added token that is found wherever it is written, before any other rule."""
_ROLES = tuple(f"{role}_token" for role in SpecialTokens._fields)


def read_tokenizer(path: Path) -> tuple[list[str], Settings]:
    """Reads a tokenizer folder, or a vocabulary file alone."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; give a tokenizer folder or a vocab.txt")
    is_folder = path.is_dir()
    if not is_folder and path.suffix != ".json":
        return read_vocab(path, BERT_TOKENS.unk), Settings()
    vocab_file, json_file, config_file = (
        path / name if is_folder else path for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
    )
    config = read_config(path)
    if is_folder:
        _check_rules(config, path, config_file, has_rules=json_file.is_file())
    settings = Settings(special_tokens=SpecialTokens(**special_names(config, config_file)))
    content: dict[str, Any] = {}
    if json_file.is_file():
        content = _read_json(json_file)
        vocab, settings = _parse_json_tokenizer(content, settings, json_file)
    has_vocab = is_folder and vocab_file.is_file()
    if has_vocab:
        vocab = read_vocab(vocab_file, settings.special_tokens.unk)
    elif not content:
        raise InputError(f"{path}: holds neither vocab.txt nor tokenizer.json; give a tokenizer folder or a vocab.txt")
    # 两个文件说法不同时听 tokenizer_config.json 的，与 transformers 一致
    settings = settings._replace(
        lowercase=_flag(config, "do_lower_case", settings.lowercase, config_file),
        strip_accents=_optional_flag(config, "strip_accents", settings.strip_accents, config_file),
        tokenize_chinese_chars=_flag(config, "tokenize_chinese_chars", settings.tokenize_chinese_chars, config_file),
    )
    listed = content.get("added_tokens") or []
    if not isinstance(listed, list):
        raise InputError(f"{json_file}: added_tokens is not a list of tokens; save the tokenizer again")
    added = [(token, json_file) for token in listed]
    decoder = config.get("added_tokens_decoder", {})
    rows: list[tuple[str, Any]] = list(decoder.items()) if isinstance(decoder, dict) else [("", None)]
    if not all(index.isdecimal() and isinstance(token, dict) for index, token in rows):
        raise InputError(
            f"{config_file}: added_tokens_decoder is not a table of ids and tokens; save the tokenizer again"
        )
    added += [({**token, "id": int(index)}, config_file) for index, token in rows]
    if is_folder and "added_tokens_decoder" not in config:
        added += _older_added_tokens(config, path / "added_tokens.json")
    vocab, settings = _add_tokens(vocab, settings, added)
    if content and has_vocab:
        # 加进来的词元可能也列在词表里：接好之后再比
        _check_same_ids(vocab, vocab_file, content["model"]["vocab"], json_file)
    return vocab, settings


def _check_same_ids(vocab: list[str], vocab_file: Path, ids: dict[str, int], json_file: Path) -> None:
    """Refuses a `tokenizer.json` with a piece that has another id, or none; `vocab.txt` may have more pieces."""
    # 重复的 ## 片段以最后一处为准
    places = {piece: index for index, piece in enumerate(vocab)}
    for piece, index in ids.items():
        place = places.get(piece)
        # 空行不是词元；一行两端的空白，各家去掉的不一样
        if place is None and index < len(vocab) and vocab[index].strip() in ("", piece.strip()):
            place = index
        if piece.strip() and place != index:
            found = "no place" if place is None else f"id {place}"
            raise InputError(
                f"{vocab_file}: piece {piece!r} has {found}, and {index} in {json_file}; remove the file that is not"
                " the model's"
            )


def write_tokenizer(folder: Path, vocab: list[str], settings: Settings, model_max_length: int | None = None) -> None:
    """Writes the four files, each one whole or not at all."""
    ids = {piece: index for index, piece in enumerate(vocab)}
    special = {role: token for role, token in zip(_ROLES, settings.special_tokens, strict=True) if token in ids}
    # transformers 的 BertTokenizer 不看 tokenizer.json 里的最长词长，总是 100：换成按文件读的类，编号才一致
    usual = settings.max_word_chars == Settings().max_word_chars
    config: dict[str, Any] = {
        "tokenizer_class": "BertTokenizer" if usual else "PreTrainedTokenizerFast",
        "do_lower_case": settings.lowercase,
        "strip_accents": settings.strip_accents,
        "tokenize_chinese_chars": settings.tokenize_chinese_chars,
        **special,
    }
    if model_max_length is not None:
        # 没有这一项，transformers 以为长度无限，截断不起作用，长文本会超出位置向量
        config["model_max_length"] = model_max_length
    if settings.user_tokens:
        added = _added_tokens(ids, settings)
        config["added_tokens_decoder"] = {str(token.pop("id")): token for token in added}
    files = {
        "vocab.txt": "".join(f"{piece}\n" for piece in vocab),
        "tokenizer_config.json": dump_json(config),
        "special_tokens_map.json": dump_json(special),
        "tokenizer.json": dump_json(_json_tokenizer(ids, settings)),
    }
    make_folder(folder)
    for name, text in files.items():
        write_text(folder / name, text)


def _json_tokenizer(ids: dict[str, int], settings: Settings) -> dict[str, Any]:
    """Describes the tokenizer in the format of the `tokenizers` library."""
    cls, sep = settings.special_tokens.cls, settings.special_tokens.sep
    processor = None
    if cls in ids and sep in ids:
        start, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in (cls, sep))
        first = [start, {"Sequence": {"id": "A", "type_id": 0}}, end]
        second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": sep, "type_id": 1}}]
        processor = {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (cls, sep)},
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(ids, settings),
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
            "unk_token": settings.special_tokens.unk,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": settings.max_word_chars,
            "vocab": ids,
        },
    }


def _added_tokens(ids: dict[str, int], settings: Settings) -> list[dict[str, Any]]:
    """Describes the special tokens and the user's, in the order of their ids."""
    tokens = [
        {"id": ids[token], "content": token, **MATCHED_AS_WRITTEN, "special": special}
        for special, group in ((True, settings.special_tokens), (False, settings.user_tokens))
        for token in group
        if token in ids
    ]
    return sorted(tokens, key=lambda token: int(token["id"]))


def _parse_json_tokenizer(content: dict[str, Any], settings: Settings, path: Path) -> tuple[list[str], Settings]:
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type", "WordPiece") != "WordPiece":
        raise InputError(f"{path}: is not a WordPiece tokenizer; give the folder of a BERT model")
    ids = model.get("vocab")
    most = len(ids) + _MOST_VACANT if isinstance(ids, dict) else 0
    if not isinstance(ids, dict) or not all(isinstance(index, int) and 0 <= index < most for index in ids.values()):
        raise InputError(f"{path}: its vocabulary is not a table of pieces and their ids; save the tokenizer again")
    normalizer, words = content.get("normalizer") or {}, content.get("pre_tokenizer") or {}
    unk, longest = model.get("unk_token", settings.special_tokens.unk), model.get("max_input_chars_per_word", 100)
    if not (isinstance(normalizer, dict) and isinstance(words, dict) and isinstance(unk, str) and type(longest) is int):
        raise InputError(f"{path}: a part of it has the wrong type; save the tokenizer again")
    # 规则与 BERT 不同的分词器一律拒绝：差一点点的编号比报错更糟
    for name, found, wanted in (
        ("normalizer", normalizer.get("type"), "BertNormalizer"),
        ("clean_text", normalizer.get("clean_text", True), True),
        ("pre_tokenizer", words.get("type"), "BertPreTokenizer"),
        ("continuing_subword_prefix", model.get("continuing_subword_prefix", "##"), "##"),
    ):
        if found != wanted:
            raise InputError(f"{path}: its {name} is {found!r}, but BERT's is {wanted!r}; only BERT's rules are known")
    settings = settings._replace(
        lowercase=_flag(normalizer, "lowercase", True, path),
        strip_accents=_optional_flag(normalizer, "strip_accents", None, path),
        tokenize_chinese_chars=_flag(normalizer, "handle_chinese_chars", True, path),
        special_tokens=settings.special_tokens._replace(unk=unk),
        max_word_chars=longest,
    )
    vocab = in_order_of_ids(ids)
    check_vocab(vocab, str(path), settings.special_tokens.unk)
    return vocab, settings


def in_order_of_ids(ids: Mapping[str, int]) -> list[str]:
    """Lists pieces by their ids."""
    # 编号可以有空缺（词表有重复片段时，前一个位置无人使用），空缺处放占位符，后面的编号才不会错位
    vocab = [f"[vacant{index}]" for index in range(max(ids.values(), default=-1) + 1)]
    for piece, index in ids.items():
        vocab[index] = piece
    return vocab


def check_added_token(token: Any, place: Path | str) -> None:
    """Refuses a token in a file that is no text with an id."""
    if not isinstance(token, dict) or not isinstance(token.get("content"), str) or type(token.get("id")) is not int:
        raise InputError(f"{place}: an added token has no text or no id: {str(token)[:60]}; save the tokenizer again")


def _add_tokens(
    vocab: list[str], settings: Settings, added: list[tuple[dict[str, Any], Path]]
) -> tuple[list[str], Settings]:
    """Takes over the tokens that were added to a vocabulary: ids past its end, and tokens to match as written."""
    user_tokens: list[str] = []
    for token, path in added:
        check_added_token(token, path)
    # 按 id 从小到大接：词表之后的词元必须首尾相连，中间不能有空位
    for token, path in sorted(added, key=lambda item: item[0]["id"]):
        content, index = token["content"], token["id"]
        if index == len(vocab):
            vocab.append(content)
        elif index > len(vocab) or vocab[index] != content:
            raise InputError(f"{path}: added token {content!r} has id {index}, which is not its place in vocab.txt")
        if content in settings.special_tokens or content in user_tokens:
            continue
        unsupported = [name for name in ("single_word", "lstrip", "rstrip") if token.get(name)]
        if token.get("normalized") and settings.lowercase and not token.get("special"):
            unsupported.append("normalized")
        if unsupported:
            raise InputError(
                f"{path}: added token {content!r} is {' and '.join(unsupported)}, which is not supported;"
                " add it again as AddedToken(..., normalized=False)"
            )
        user_tokens.append(content)
    return vocab, settings._replace(user_tokens=tuple(user_tokens))


def _older_added_tokens(config: dict[str, Any], path: Path) -> list[tuple[dict[str, Any], Path]]:
    """Reads `added_tokens.json`, where older versions of `transformers` kept tokens and their ids and nothing else."""
    if not path.is_file():
        return []
    ids = _read_json(path)
    if not all(isinstance(index, int) for index in ids.values()):
        raise InputError(f"{path}: is not a table of tokens and their ids; save the tokenizer again")
    special: set[Any] = set()
    for name in ("additional_special_tokens", "extra_special_tokens"):
        found = config.get(name) or []
        # 新版本给额外的特殊词元起名字：要的是词元，不是名字
        tokens = list(found.values()) if isinstance(found, dict) else found
        if not isinstance(tokens, list) or not all(isinstance(token, str | dict) for token in tokens):
            place = path.with_name("tokenizer_config.json")
            raise InputError(f"{place}: {name} is not a list of tokens; save the tokenizer again")
        special |= {token.get("content") if isinstance(token, dict) else token for token in tokens}
    # 旧格式不记匹配方式：transformers 读它时，特殊词元按原样匹配，其余先规范化再匹配
    return [
        ({"content": token, "id": index, "special": token in special, "normalized": token not in special}, path)
        for token, index in ids.items()
    ]


def _check_rules(config: dict[str, Any], folder: Path, path: Path, *, has_rules: bool) -> None:
    """Refuses a folder whose settings name another way of cutting text than BERT's."""
    # 日语 BERT 同样只有 vocab.txt，却先用 MeCab 切词：当作普通 BERT 读，编号悄悄就错了
    for name, wanted in (("word_tokenizer_type", "basic"), ("subword_tokenizer_type", "wordpiece")):
        if config.get(name) not in (None, wanted):
            raise InputError(
                f"{path}: {name} is {config[name]!r}, but BERT's is {wanted!r}; only BERT's rules are known"
            )
    if has_rules:
        return
    kind = config.get("tokenizer_class")
    if kind is None and (folder / "config.json").is_file():
        # 更早的文件夹把类名写在模型的设置里
        path = folder / "config.json"
        kind = _read_json(path).get("tokenizer_class")
    known = ("TokenizersBackend", *(f"{name}Tokenizer{fast}" for name in _BERT_CLASSES for fast in ("", "Fast")))
    if kind is not None and str(kind) not in known:
        raise InputError(
            f"{path}: tokenizer_class is {kind!r}, which may cut text by other rules than BERT's;"
            " save it as a fast tokenizer, whose tokenizer.json spells the rules out"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Reads a folder's `tokenizer_config.json`, and the names in `special_tokens_map.json` where it gives none."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= _read_json(folder / name)
    return config


def read_length_limit(config: Mapping[str, Any]) -> int | None:
    """Reads most ids of a row out of a folder's settings; None where nothing sensible is there."""
    limit = config.get("model_max_length")
    # transformers 没有上限时写 1e30：那不是长度
    return limit if isinstance(limit, int) and 0 < limit < 1 << 31 else None


def special_names(config: dict[str, Any], path: Path) -> dict[str, str]:
    """Finds what the special tokens are called; a name may be written plainly or as an added token."""
    names = {}
    for role, field in zip(_ROLES, SpecialTokens._fields, strict=True):
        value = config.get(role)
        name = value.get("content") if isinstance(value, dict) else value
        if name is None:
            continue
        if not isinstance(name, str) or not name:
            raise InputError(f"{path}: {role} is {value!r}; write the token as a string")
        names[field] = name
    return names


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path, dict, InputError, "save the tokenizer again")


def _flag(content: dict[str, Any], name: str, default: bool, path: Path) -> bool:
    value = content.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"{path}: {name} is {value!r}; write true or false")
    return value


def _optional_flag(content: dict[str, Any], name: str, default: bool | None, path: Path) -> bool | None:
    value = content.get(name, default)
    return None if value is None else _flag(content, name, value, path)


def dump_json(content: Mapping[str, Any]) -> str:
    """Returns the text of a JSON file."""
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
