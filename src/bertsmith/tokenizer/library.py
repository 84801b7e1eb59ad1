"""Tokenizers of other kinds than WordPiece (byte-level BPE, Unigram, word level), through the `tokenizers` library.

RoBERTa and ModernBERT read byte-level BPE, XLM-R, CamemBERT and ALBERT read Unigram. Their rules are the library's, so
the ids are those of `transformers` by construction; what is here makes them behave as our own tokenizer does.

- a special token written in a text is plain text unless the caller asks for it. It does not help to tell the library
  not to look for such tokens: a Unigram model may still *spell* a text with the piece `</s>`. So plain text is read by
  a copy of the model in which no special piece can be spelled
- words are counted by one rule for all kinds: a piece with the sign of a space (`Ġ`, `▁`), a punctuation mark and a
  Chinese character begin one. The library's own words would make a whole Chinese sentence a single word
- the library does not tell which special tokens stand where, what they are called, which pieces begin a word and which
  could be forged by a text: these are read from the `tokenizer.json` itself
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, InputError
from bertsmith.files import HALF_CHARACTER, make_folder, write_text
from bertsmith.tokenizer.base import SpecialWord, Tokenizer
from bertsmith.tokenizer.encoding import FlatIds, FlatTokens, Template, join_tokens, no_text, split_batches
from bertsmith.tokenizer.files import (
    MATCHED_AS_WRITTEN,
    check_added_token,
    dump_json,
    in_order_of_ids,
    read_length_limit,
    special_names,
)
from bertsmith.tokenizer.normalize import CJK, Normalizer, is_standalone
from bertsmith.tokenizer.settings import BERT_TOKENS, SpecialTokens, check_user_tokens

_BATCH_CHARS = 1 << 16
_CHINESE = re.compile(f"[{CJK}]")
_SPACES = [code for code in range(0x3001) if chr(code).isspace()]


class LibraryTokenizer(Tokenizer):
    """Cuts text by the rules of a `tokenizer.json`; made by `load_tokenizer` and `learn_tokenizer`.

    `kind` is what the library calls the model: `BPE`, `Unigram` or `WordLevel`.
    """

    def __init__(self, source: str, config: Mapping[str, Any], place: str = "tokenizer.json") -> None:
        """Reads the text of a `tokenizer.json`, and what `tokenizer_config.json` says; messages name `place`."""
        library = import_library()
        self._place, self._config, self.model_max_length = place, dict(config), read_length_limit(config)
        names = special_names(self._config, Path(place).with_name("tokenizer_config.json"))
        content, self._source = parse_library_json(source, names, place)
        self.kind = str(content["model"]["type"])
        added: list[dict[str, Any]] = content["added_tokens"]
        self.piece_to_id = _ids_of(content["model"]["vocab"]) | {token["content"]: token["id"] for token in added}
        self.vocab = in_order_of_ids(self.piece_to_id)
        # 库按词片里的空格记号裁掉开头的字符，而那个空格常是它自己加的：不让它裁，由我们对着原文裁
        self._trims = any(node.get("trim_offsets") for node in find_nodes(content.get("post_processor")))
        self._plain_text = _built_for_text(library, content, place)
        self._template = read_template(self._plain_text, place)
        roles = find_roles(names, self.piece_to_id, self._template, content["model"])
        self.special_tokens = SpecialTokens(**roles)
        special = {token["id"] for token in added if token["special"]}
        self.special_ids = frozenset(special | {self.piece_to_id[n] for n in roles.values() if n in self.piece_to_id})
        self.user_tokens = tuple(token["content"] for token in added if token["id"] not in self.special_ids)
        self.lowercase = any(
            node["type"] == "Lowercase" or (node["type"] == "BertNormalizer" and node.get("lowercase", True))
            for node in find_nodes(content.get("normalizer"))
        )
        # 有的规则（Prepend）自己在文本前加空格：再加一个就成了两个
        self._adds_space = any(node["type"] == "Prepend" for node in find_nodes(content.get("normalizer")))
        self._words = Normalizer(lowercase=False, strip_accents=False)

    @functools.cached_property
    def _whole(self) -> Any:
        """The tokenizer as its file has it, special tokens and all; loaded when first needed."""
        return _built(import_library(), json.dumps(_untrimmed(json.loads(self._source))), self._place)

    @functools.cached_property
    def _masked_text(self) -> Any:
        """The plain tokenizer, but that a mask written in a text is one; loaded when first needed."""
        content, _ = parse_library_json(self._source, {}, self._place)
        for token in content["added_tokens"]:
            # 掩码当作用户定义的词元：空格归谁、文本怎样断开，都仍由库自己的规则来定
            token["special"] &= token["content"] != self.special_tokens.mask
        return _built_for_text(import_library(), content, self._place)

    @functools.cached_property
    def _space_signs(self) -> NDArray[np.int64]:
        """[V, 3] of each piece: the signs of a space that it begins with, those that it ends with, and its length."""
        sides = [(len(piece.lstrip("Ġ")), len(piece.rstrip("Ġ")), 0) for piece in self.vocab]
        length = np.array([len(piece) for piece in self.vocab])[:, None]
        return np.array(length - np.array(sides).reshape(-1, 3))

    @functools.cached_property
    def _borders(self) -> WordBorders:
        special = np.zeros(len(self.vocab), dtype=np.bool_)
        special[sorted(self.special_ids | {self.piece_to_id[token] for token in self.user_tokens})] = True
        return word_borders(self.vocab, json.loads(self._source), special)

    def encode_batch(self, texts: Iterable[str], *, parse_special: SpecialWord = False) -> list[list[int]]:
        """Turns many texts into lists of ids; see `Tokenizer.encode`."""
        rows: list[list[int]] = []
        for batch in split_batches(texts, _BATCH_CHARS):
            rows += [row.ids for row in self._encodings(batch, parse_special=parse_special, need_offsets=False)]
        return rows

    def encode_flat(self, texts: Iterable[str], *, parse_special: SpecialWord = False) -> FlatIds:
        """Turns many texts into two arrays: all ids one after another, and where each text starts and ends."""
        rows = self.encode_batch(texts, parse_special=parse_special)
        bounds = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return FlatIds(np.fromiter(chain.from_iterable(rows), np.int32, int(bounds[-1])), bounds)

    def align_flat(self, texts: Iterable[str], *, parse_special: SpecialWord = False) -> FlatTokens:
        """Turns many texts into arrays of ids, character offsets and word ids."""
        batches = split_batches(texts, _BATCH_CHARS)
        return join_tokens([self._align_batch(batch, parse_special=parse_special) for batch in batches])

    def encode_words(self, words: Iterable[str]) -> FlatIds:
        """Turns words into ids, each by itself, after the space that it has in a text; a Chinese character has none."""
        return self.encode_flat(map(self._in_text, words))

    def align_words(self, texts: Iterable[str]) -> FlatTokens:
        """Finds the words of texts by BERT's rules, and encodes each by itself; see `Tokenizer.align_words`."""
        words: list[str] = []
        places: list[tuple[int, int]] = []
        bounds = [0]
        for batch in split_batches(texts, _BATCH_CHARS):
            for text in batch:
                for start, end in self._word_places(text):
                    words.append(text[start:end])
                    places.append((start, end))
                bounds.append(len(words))
        flat = self.encode_words(words)
        sizes = np.diff(flat.bounds)
        spans = np.array(places, dtype=np.int32).reshape(-1, 2)
        numbers = np.arange(len(words)) - np.repeat(bounds[:-1], np.diff(bounds))
        return FlatTokens(
            flat.ids,
            flat.bounds[bounds],
            np.repeat(spans[:, 0], sizes),
            np.repeat(spans[:, 1], sizes),
            np.repeat(numbers, sizes).astype(np.int32),
        )

    def spell(self, piece: str) -> list[int]:
        """Spells a word that is not in the vocabulary with pieces that are."""
        ids: list[int] = self.encode_words([piece.removeprefix("##")]).ids.tolist()
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Joins ids to text, as the library's decoder does; see `Tokenizer.decode`."""
        kept = self._known_ids(ids, skip_special_tokens)
        text: str = self._whole.decode(kept, skip_special_tokens=False)
        return text

    def piece_text(self, index: int) -> str:
        """Returns a piece as a person reads it, without the sign of a space; a part of a letter stays as it is."""
        text: str = self._whole.decode([int(index)], skip_special_tokens=False).strip()
        return text if text and "\ufffd" not in text else self.vocab[index]

    def with_pieces(self, pieces: Sequence[str], user_tokens: Sequence[str] = ()) -> LibraryTokenizer:
        """Makes a tokenizer with more user tokens; only the trainer of these kinds knows how a new piece is reached."""
        if pieces:
            raise InputError(
                f"piece {pieces[0]!r}: a {self.kind} vocabulary cannot take new pieces, only WordPiece can;"
                " pass it among user_tokens, which are one piece wherever they are written"
            )
        content = json.loads(self._source)
        for number, token in enumerate(check_user_tokens(user_tokens, self.piece_to_id), len(self.vocab)):
            content["added_tokens"].append({"id": number, "content": token, **MATCHED_AS_WRITTEN, "special": False})
        return LibraryTokenizer(dump_json(content), self._config, self._place)

    def save(self, folder: str | Path, *, model_max_length: int | None = None) -> None:
        """Writes `tokenizer_config.json` and `tokenizer.json`, the latter last; see `Tokenizer.save`."""
        # auto_map 会让别的工具去下载并执行外来代码
        config = {name: value for name, value in self._config.items() if name != "auto_map"}
        config.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
        for role, name in self.special_tokens._asdict().items():
            if name in self.piece_to_id:
                config.setdefault(f"{role}_token", name)
        if model_max_length is not None:
            config["model_max_length"] = model_max_length
        folder = make_folder(Path(folder))
        write_text(folder / "tokenizer_config.json", dump_json(config))
        write_text(folder / "tokenizer.json", self._source)

    @property
    def template(self) -> Template:
        """Where special tokens stand, as the file's post-processor says."""
        if self._template is None:
            raise InputError(
                f"{self._place}: does not say which special tokens stand around a text; give the tokenizer of an"
                " encoder such as RoBERTa or ModernBERT"
            )
        return self._template

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hex digest of everything that decides the ids: two tokenizers with the same one give the same ids."""
        content = json.loads(self._source)
        described = {name: content.get(name) for name in ("normalizer", "pre_tokenizer", "model")}
        merges = described["model"].get("merges")
        if merges:
            # 旧文件把一次合并写成 "a b"，新文件写成 ["a", "b"]：同一个分词器
            described["model"]["merges"] = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in merges]
        described["added"] = sorted(content["added_tokens"], key=lambda token: int(token["id"]))
        described["special"] = [*self.special_tokens, None if self._template is None else asdict(self._template)]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    @property
    def continuing(self) -> NDArray[np.bool_]:
        """[V], True for pieces that continue the word of the piece before them."""
        return self._borders.continuing

    def continuations(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tells which pieces of a text continue a word: none behind a punctuation mark, any behind a lone space."""
        borders = self._borders
        found = borders.continuing[ids]
        found[1:] &= ~borders.ending[ids[:-1]]
        found[1:] |= borders.is_space[ids[:-1]] & ~borders.beginning[ids[1:]]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return LibraryTokenizer, (self._source, self._config, self._place)

    def _align_batch(self, texts: Sequence[str], *, parse_special: SpecialWord) -> FlatTokens:
        rows = self._encodings(texts, parse_special=parse_special, need_offsets=True)
        sizes = np.array(list(map(len, rows)), dtype=np.int64)
        bounds = np.cumsum(np.append(0, sizes))
        ids = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int32, int(bounds[-1]))
        spans = self._spans(texts, ids, rows)
        begins = ~self.continuations(ids.astype(np.int64))
        # 文本的第一个词片总是一个词的开头
        firsts = bounds[:-1][sizes > 0]
        begins[firsts] = True
        words = np.cumsum(begins, dtype=np.int32)
        words -= np.repeat(words[firsts], sizes[sizes > 0])
        return FlatTokens(ids, bounds, spans[:, 0].copy(), spans[:, 1].copy(), words)

    def _spans(self, texts: Sequence[str], ids: NDArray[Any], rows: Sequence[Any]) -> NDArray[np.int32]:
        """Returns [T, 2] where the T pieces of texts stand, each in its own; without the spaces before a word."""
        spans = np.array(list(chain.from_iterable(row.offsets for row in rows)), dtype=np.int32).reshape(-1, 2)
        if not len(spans) or not self._trims:
            return spans
        codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        space = np.append(np.isin(codes, _SPACES), False)
        first = np.cumsum([0, *map(len, texts[:-1])]).repeat(list(map(len, rows)))
        start, end = (spans + first[:, None]).T
        signs = self._space_signs[ids]
        # 记号有几个就至多裁几个；原文那里不是空格，空格就是库加的，没有字符可裁
        for count in range(int(signs[:, 0].max())):
            start += (signs[:, 0] > count) & (start < end) & space[start]
        for count in range(int(signs[:, 1].max())):
            end -= (signs[:, 1] > count) & (start < end) & space[end - 1]
        # 只有记号的词片没有自己的字符：它若是库加的空格，标的是后面词片的字符
        end = np.where(signs[:, 0] == signs[:, 2], start, end)
        placed: NDArray[np.int32] = (np.stack([start, end], axis=1) - first[:, None]).astype(np.int32)
        return placed

    def _encodings(self, texts: Sequence[str], *, parse_special: SpecialWord, need_offsets: bool) -> list[Any]:
        library = self._masked_text if parse_special == "mask" else self._whole if parse_special else self._plain_text
        encode = library.encode_batch if need_offsets else library.encode_batch_fast
        try:
            rows: list[Any] = encode(texts, add_special_tokens=False)
        except TypeError:
            # 孤立的代理字符（JSON 里半个 😀）不能写成 UTF-8：换成替换字符，长度不变，位置也就不变
            rows = encode([HALF_CHARACTER.sub("\ufffd", text) for text in texts], add_special_tokens=False)
        return rows

    def _in_text(self, word: str) -> str:
        if not isinstance(word, str):
            raise no_text(word, "a word")
        return word if self._adds_space or _CHINESE.match(word) else f" {word}"

    def _word_places(self, text: str) -> Iterator[tuple[int, int]]:
        """Yields the first character of each word of a text and the one behind its last."""
        chunks, gap = self._words.placed_chunks(text)
        begin = 0
        for chunk in chunks:
            for words, sources in self._words.aligned_words(chunk):
                done = 0
                for word in words:
                    yield begin + sources[done], begin + sources[done + len(word) - 1] + 1
                    done += len(word)
            begin += len(chunk) + gap


def import_library() -> Any:
    """Imports `tokenizers`."""
    # 我们用进程并行；库自己的线程遇上 fork 会死锁或刷警告，除非用户另有设置，否则关掉
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(
            "this tokenizer is not WordPiece and needs the tokenizers library; install it with:"
            " pip install 'bertsmith[tokenizers]'"
        ) from None
    return tokenizers


def _built(library: Any, source: str, place: str) -> Any:
    try:
        made = library.Tokenizer.from_str(source)
    except Exception as error:
        reason = str(error).split("\n")[0][:120]
        raise InputError(
            f"{place}: the tokenizers library cannot read it ({reason}); save the tokenizer again"
        ) from None
    return made


def _built_for_text(library: Any, content: Mapping[str, Any], place: str) -> Any:
    """Makes a tokenizer for what users write: no special token is recognised in it, nor spelled."""
    made = _built(library, json.dumps(_untrimmed(without_special_pieces(content))), place)
    # 用户写的 "</s>" 只是五个字符
    made.encode_special_tokens = True
    return made


def _ids_of(vocab: Any) -> dict[str, int]:
    return dict(vocab) if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}


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
    """Returns the checked content of a `tokenizer.json`, in order, and its text: `source` itself where nothing changed.

    Tokens that have a role in `names` are special even where the file does not say so, as in `transformers`; truncation
    and padding are the caller's.
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
    written = content.get("added_tokens") or []
    added: list[Any] = written if isinstance(written, list) else [None]
    for token in added:
        check_added_token(token, place)
        if not 0 <= token["id"] < 1 << 24:
            raise InputError(f"{place}: added token {token['content']!r} has id {token['id']}; {_AGAIN}")
        token["special"] = bool(token.get("special"))
    content["added_tokens"] = added
    by_name = {token["content"]: token for token in added}
    ids = _ids_of(vocab)
    for name in dict.fromkeys(names.values()):
        if name in by_name and not by_name[name]["special"]:
            by_name[name]["special"] = changed = True
        elif name not in by_name and name in ids:
            added.append({"id": ids[name], "content": name, **MATCHED_AS_WRITTEN, "special": True})
            changed = True
    for name in ("truncation", "padding"):
        if content.get(name) is not None:
            content[name], changed = None, True
    added.sort(key=lambda token: int(token["id"]))
    return content, dump_json(content) if changed else source


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


def _untrimmed(content: dict[str, Any]) -> dict[str, Any]:
    """Returns a tokenizer whose offsets are where its pieces come from, spaces included."""
    copy: dict[str, Any] = json.loads(json.dumps(content))
    for node in find_nodes(copy.get("post_processor")):
        if "trim_offsets" in node:
            node["trim_offsets"] = False
    return copy


def read_template(made: Any, place: str) -> Template | None:
    """Finds where a tokenizer puts special tokens, from the rows that it builds; None where it puts none."""
    if made.post_processor is None or not made.num_special_tokens_to_add(is_pair=True):
        return None
    # 任何能切出词片的文本都行；整个词表只在 "a" 切不出时才看
    known = ["a"] if made.encode("a", add_special_tokens=False).ids else made.get_vocab()
    text = next((text for text in known if made.encode(text, add_special_tokens=False).ids), "a")
    one, two = made.encode(text), made.encode(text, text)
    single, pair = ([tuple(map(int, ids)) for ids in _around(row)] for row in (one, two))
    second_type = two.type_ids[-1]
    # 只认“前 A 中 B 后”这一种排法：别的模板猜错了，每个输入都会错，不如拒绝
    if len(single) == 2 and len(pair) == 3 and single == pair[::2] and second_type in (0, 1) and not any(one.type_ids):
        head = two.sequence_ids.index(1)
        if two.type_ids == [0] * head + [second_type] * (len(two.ids) - head):
            return Template(single[0], pair[1], single[1], second_type)
    raise InputError(
        f"{place}: its template of special tokens is neither 'before A after' nor 'before A between B after' with"
        " segments 0 and 1; only those are known"
    )


def _around(row: Any) -> list[list[int]]:
    """Returns the special ids before, between and behind the texts of a row."""
    around: list[list[int]] = [[]]
    last = None
    for index, sequence in zip(row.ids, row.sequence_ids, strict=True):
        if sequence is None:
            around[-1].append(index)
        elif sequence != last:
            around.append([])
            last = sequence
    return around


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

    Renaming keeps all ids and scores. The new names hold a space, which the pre-tokenizers replace or cut at.
    """
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    model = dict(content["model"])
    # BPE 只经由合并得到片段，没有合并通向 "</s>"；整词直接查表的变体除外
    if model["type"] == "BPE" and not model.get("ignore_merges"):
        return dict(content)
    new_names = {name: f"\U0010ffff {name}" for name in special}

    def renamed(name: str) -> str:
        return new_names.get(name, name)

    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {renamed(piece): index for piece, index in vocab.items()}
    else:
        model["vocab"] = [[renamed(piece), score] for piece, score in vocab]
    if "unk_token" in model:
        model["unk_token"] = renamed(model["unk_token"])
    added = [{**token, "content": renamed(token["content"])} for token in content["added_tokens"]]
    return {**content, "model": model, "added_tokens": added}


class WordBorders(NamedTuple):
    """Tables [V] of what pieces say of the borders of words.

    Attributes:
        continuing: belongs to the word before it.
        beginning: begins a word whatever stands before it: it has the sign of a space, or is special.
        ending: a word begins behind it whatever follows.
        is_space: is the sign of a space and nothing else; what follows belongs to its word.
    """

    continuing: NDArray[np.bool_]
    beginning: NDArray[np.bool_]
    ending: NDArray[np.bool_]
    is_space: NDArray[np.bool_]


def word_borders(vocab: Sequence[str], content: Mapping[str, Any], special: NDArray[np.bool_]) -> WordBorders:
    """Finds which pieces begin words: by the sign of a space, or a first character that is punctuation or Chinese."""
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
