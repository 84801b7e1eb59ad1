"""Reading a `tokenizer.json` as data: what the `tokenizers` library knows and does not tell.

The library runs these files; which special tokens stand where, what they are called, which pieces begin a word and
which could be forged by a text are questions to the file itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.tokenizer.characters import is_standalone
from bertsmith.tokenizer.settings import BERT_TOKENS
from bertsmith.tokenizer.template import Template

_AGAIN = "save the tokenizer again"
_SPACE_SIGNS = {"ByteLevel": "Ġ", "Metaspace": "▁"}
_CHINESE_LEADS = b"\xe4\xe5\xe6\xe7\xe8\xe9"
"""First bytes in UTF-8 of U+4000 to U+9FFF."""
_FAMILIAR = {
    "pad": ("<pad>", "[PAD]"),
    "unk": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("<mask>", "[MASK]"),
}
"""What special tokens are called in files that do not say it."""


def parse_library_json(source: str, names: Mapping[str, str], place: str) -> tuple[dict[str, Any], str]:
    """Checks a `tokenizer.json` and puts it in order.

    Tokens that have a role are special even where the file does not say so, as in `transformers`; truncation and
    padding are the caller's.

    Args:
        source: the text of the file.
        names: of the special tokens by role, as far as `tokenizer_config.json` gives them.
        place: for messages.

    Returns:
        The content, and its text: `source` itself where nothing had to be put in order.

    Raises:
        InputError: the file is damaged.
    """
    try:
        content = json.loads(source)
    except ValueError as error:
        raise InputError(f"{place}: damaged ({error}); {_AGAIN}") from None
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise InputError(f"{place}: holds no model of a tokenizer; {_AGAIN}")
    changed = "type" not in model
    model.setdefault("type", model_type(content))
    vocab = model.get("vocab")
    if not _is_vocabulary(vocab):
        raise InputError(f"{place}: its vocabulary is not a table of pieces; {_AGAIN}")
    added = content.get("added_tokens") or []
    for token in added if isinstance(added, list) else [None]:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str) or type(token.get("id")) is not int:
            raise InputError(f"{place}: an added token has no text or no id: {str(token)[:60]}; {_AGAIN}")
        if not 0 <= token["id"] < 1 << 24:
            raise InputError(f"{place}: added token {token['content']!r} has id {token['id']}; {_AGAIN}")
        token["special"] = bool(token.get("special"))
    content["added_tokens"] = added
    by_name = {token["content"]: token for token in added}
    ids = vocab if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab or ())}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for name in dict.fromkeys(names.values()):
        if name in by_name and not by_name[name]["special"]:
            by_name[name]["special"] = changed = True
        elif name not in by_name and name in ids:
            added.append({"id": ids[name], "content": name, **flags})
            changed = True
    for name in ("truncation", "padding"):
        if content.get(name) is not None:
            content[name], changed = None, True
    added.sort(key=lambda token: int(token["id"]))
    return content, json.dumps(content, ensure_ascii=False, indent=2) + "\n" if changed else source


def model_type(content: Mapping[str, Any]) -> str:
    """Returns the kind of a tokenizer's model; files of old do not name it."""
    model = content.get("model")
    if not isinstance(model, dict):
        return "WordPiece"
    if isinstance(model.get("type"), str):
        return str(model["type"])
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"


def find_nodes(part: Any) -> Iterator[dict[str, Any]]:
    """Yields the steps of a normalizer, pre-tokenizer or post-processor, those inside sequences as well."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part
        for name in ("normalizers", "pretokenizers", "processors"):
            for inner in part.get(name) or ():
                yield from find_nodes(inner)


def find_template(processor: Any, place: str) -> Template | None:
    """Finds where a tokenizer puts special tokens.

    Returns:
        The template, or None where it puts none.

    Raises:
        InputError: they stand in a way that no encoder here reads.
    """
    for node in find_nodes(processor):
        try:
            if node["type"] in ("BertProcessing", "RobertaProcessing"):
                cls, sep = ((int(node[name][1]),) for name in ("cls", "sep"))
                is_bert = node["type"] == "BertProcessing"
                return Template(cls, sep if is_bert else sep + sep, sep, int(is_bert))
            if node["type"] == "TemplateProcessing":
                return _from_pieces(node)
        except (KeyError, TypeError, ValueError, IndexError):
            raise InputError(
                f"{place}: its template of special tokens is neither 'before A after' nor 'before A between B after'"
                " with segments 0 and 1; only those are known"
            ) from None
    return None


def find_roles(
    names: Mapping[str, str], ids: Mapping[str, int], template: Template | None, model: Mapping[str, Any]
) -> dict[str, str]:
    """Finds what the special tokens are called: as the folder says, else as the template, else by a familiar name."""
    pieces = {index: piece for piece, index in ids.items()}
    hints: dict[str, Any] = {"unk": model.get("unk_token")}
    if isinstance(model.get("unk_id"), int):
        hints["unk"] = pieces.get(model["unk_id"])
    if template is not None:
        hints["cls"] = pieces.get(template.before[0]) if template.before else None
        hints["sep"] = pieces.get(template.after[-1]) if template.after else None
    found = {}
    for role, usual in BERT_TOKENS._asdict().items():
        candidates = [names.get(role), hints.get(role), *_FAMILIAR[role]]
        known = (name for name in candidates if isinstance(name, str) and name in ids)
        found[role] = next(known, names.get(role) or usual)
    return found


def without_special_pieces(content: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a copy in which no text can be spelled with a special piece: for text that users write.

    Renaming keeps all ids and scores. The new names hold a space, which the pre-tokenizers replace or cut at, and a
    character that no text has.

    Args:
        content: a `tokenizer.json`.

    Returns:
        The same tokenizer to all text in which no special token is written.
    """
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    model = dict(content["model"])
    # BPE 只经由合并得到片段，没有合并通向 "</s>"；整词直接查表的变体除外
    if model["type"] == "BPE" and not model.get("ignore_merges"):
        return dict(content)
    new_names = {name: f"\U0010ffff {name}" for name in special}
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {new_names.get(piece, piece): index for piece, index in vocab.items()}
    else:
        model["vocab"] = [[new_names.get(piece, piece), score] for piece, score in vocab]
    if "unk_token" in model:
        model["unk_token"] = new_names.get(model["unk_token"], model["unk_token"])
    added = [
        {**token, "content": new_names.get(token["content"], token["content"])} for token in content["added_tokens"]
    ]
    return {**content, "model": model, "added_tokens": added}


class WordBorders(NamedTuple):
    """Tables [V] of what pieces say of the borders of words.

    Attributes:
        continuing: goes on with the word before it.
        beginning: begins a word whatever stands before it: it has the sign of a space, or is special.
        ending: a word begins behind it whatever follows.
        is_space: is the sign of a space and nothing else; what follows belongs to its word.
    """

    continuing: NDArray[np.bool_]
    beginning: NDArray[np.bool_]
    ending: NDArray[np.bool_]
    is_space: NDArray[np.bool_]


def word_borders(vocab: Sequence[str], content: Mapping[str, Any], special: NDArray[np.bool_]) -> WordBorders:
    """Finds which pieces begin words.

    A piece begins a word where it has the sign of a space, or its first character is punctuation or Chinese.

    Args:
        vocab: V pieces.
        content: their `tokenizer.json`.
        special: [V] special and user tokens, which are words by themselves.
    """
    steps = [node for part in ("normalizer", "pre_tokenizer") for node in find_nodes(content.get(part))]
    sign = next((_SPACE_SIGNS[step["type"]] for step in steps if step["type"] in _SPACE_SIGNS), "")
    if not sign and any("▁" in (step.get("content"), step.get("prepend")) for step in steps):
        sign = "▁"
    model = content["model"]
    prefix, suffix = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
    letters = _byte_letters() if sign == "Ġ" else {}
    found = WordBorders(np.zeros_like(special), special.copy(), special.copy(), np.zeros_like(special))
    for index, piece in enumerate(vocab):
        if special[index]:
            continue
        if not sign:
            # 没有空格记号的词表：靠前缀（##）或后缀（</w>）区分，否则每个片段就是一个词
            found.continuing[index] = bool(suffix) or bool(prefix and piece.startswith(prefix))
            found.ending[index] = bool(suffix and piece.endswith(suffix))
            continue
        data = bytes(letters.get(char, 0) for char in piece)
        text = data.decode("utf-8", "replace") if letters else piece
        first, last = text[:1], text[-1:]
        # 没学全的汉字：首字节就看得出是汉字，同样自成一词
        is_apart = bool(first) and (is_standalone(first) or (first == "\ufffd" and data[:1] in _CHINESE_LEADS))
        found.beginning[index] = piece.startswith(sign) or first.isspace()
        found.is_space[index] = piece == sign
        found.continuing[index] = not (found.beginning[index] or is_apart)
        found.ending[index] = piece != sign and bool(last) and is_standalone(last)
    return found


def _from_pieces(node: Mapping[str, Any]) -> Template:
    ids = {name: tuple(map(int, token["ids"])) for name, token in node["special_tokens"].items()}

    def parts(items: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[int, ...]], list[int]]:
        """Returns the ids around the texts, and the segments of everything."""
        around: list[tuple[int, ...]] = [()]
        types = []
        for item in items:
            ((name, value),) = item.items()
            types.append(int(value["type_id"]))
            if name == "Sequence":
                around.append(())
            else:
                around[-1] += ids[value["id"]]
        return around, types

    (before, after), single_types = parts(node["single"])
    (first, between, last), pair_types = parts(node["pair"])
    second = next(number for number, item in enumerate(node["pair"]) if item.get("Sequence", {}).get("id") == "B")
    second_type = pair_types[second]
    wanted = [0] * second + [second_type] * (len(pair_types) - second)
    # 只认“前 A 中 B 后”这一种排法：别的模板猜错了，每个输入都会错，不如拒绝
    if (first, last) != (before, after) or any(single_types) or pair_types != wanted or second_type not in (0, 1):
        raise ValueError("unknown layout")
    return Template(before, between, after, second_type)


def _is_vocabulary(vocab: Any) -> bool:
    if isinstance(vocab, dict):
        return bool(vocab) and all(type(index) is int and 0 <= index < 1 << 24 for index in vocab.values())
    if not isinstance(vocab, list) or not vocab:
        return False
    return all(isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) for row in vocab)


def _byte_letters() -> dict[str, int]:
    """Maps the letters of byte-level vocabularies to their bytes (Radford et al. 2019: no byte is a blank letter)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}
