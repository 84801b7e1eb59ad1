"""Tokenizers of other kinds than WordPiece (byte-level BPE, Unigram, word level), through the `tokenizers` library.

RoBERTa and ModernBERT read byte-level BPE, XLM-R, CamemBERT and ALBERT read Unigram. Their rules are the library's, so
the ids are those of `transformers` by construction; what is here makes them behave as our own tokenizer does.

Notable:
- a special token written in a text is plain text unless the caller asks for it. The library can be told not to look for
  such tokens, but that is not enough: a Unigram model may still *spell* a text with the piece `</s>`. So plain text is
  read by a copy of the model in which no special piece can be spelled
- rows, windows and padding are built by `encoding`, as for WordPiece; the library only gives ids and offsets
- words are counted by one rule for all kinds: a piece with the sign of a space (`Ġ`, `▁`), a punctuation mark and a
  Chinese character begin one. The library's own words would make a whole Chinese sentence a single word
- the library is imported when such a tokenizer is made, not before
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, InputError
from bertsmith.files import make_folder, write_text
from bertsmith.tokenizer.base import Tokenizer
from bertsmith.tokenizer.batches import split_batches
from bertsmith.tokenizer.calling import as_ids
from bertsmith.tokenizer.characters import CJK
from bertsmith.tokenizer.flat import FlatIds, FlatTokens, Tokens, join_tokens
from bertsmith.tokenizer.library_json import (
    WordBorders,
    find_nodes,
    find_roles,
    find_template,
    parse_library_json,
    without_special_pieces,
    word_borders,
)
from bertsmith.tokenizer.normalize import Normalizer
from bertsmith.tokenizer.settings import SpecialTokens, check_user_tokens
from bertsmith.tokenizer.template import Template

_BATCH_CHARS = 1 << 16
_SURROGATE = re.compile("[\ud800-\udfff]")
_CHINESE = re.compile(f"[{CJK}]")
_ROLES = SpecialTokens._fields


class LibraryTokenizer(Tokenizer):
    """Cuts text by the rules of a `tokenizer.json`; made by `load_tokenizer` and `learn_tokenizer`.

    Attributes:
        kind: what the library calls the model: `BPE`, `Unigram` or `WordLevel`.

    Raises:
        ConfigError: the library is not installed.
        InputError: the file is damaged, or its template of special tokens is of a kind that is not known here.
    """

    def __init__(self, source: str, config: Mapping[str, Any], place: str = "tokenizer.json") -> None:
        """Reads a tokenizer.

        Args:
            source: the text of a `tokenizer.json`.
            config: what `tokenizer_config.json` says.
            place: what to call the former in messages.
        """
        library = import_library()
        self._place, self._config = place, dict(config)
        names = {role: name for role in _ROLES if (name := _plain(config.get(f"{role}_token"))) is not None}
        content, self._source = parse_library_json(source, names, place)
        self.kind = str(content["model"]["type"])
        added: list[dict[str, Any]] = content["added_tokens"]
        self.piece_to_id = _vocabulary(content)
        self.vocab = [f"[vacant{index}]" for index in range(max(self.piece_to_id.values(), default=-1) + 1)]
        for piece, index in self.piece_to_id.items():
            self.vocab[index] = piece
        self._plain_text = _built(library, json.dumps(without_special_pieces(content)), place)
        # 用户写的 "</s>" 只是五个字符：纯文本的副本既不识别特殊词元，也拼不出它们
        self._plain_text.encode_special_tokens = True
        self._template = find_template(content.get("post_processor"), place)
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
        return _built(import_library(), self._source, self._place)

    @functools.cached_property
    def _borders(self) -> WordBorders:
        """Which pieces begin words."""
        special = np.zeros(len(self.vocab), dtype=np.bool_)
        special[sorted(self.special_ids | {self.piece_to_id[token] for token in self.user_tokens})] = True
        return word_borders(self.vocab, json.loads(self._source), special)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Turns a text into ids, without special tokens around them; see `Tokenizer.encode`."""
        if not isinstance(text, str):
            raise InputError(f"the text is {type(text).__name__}, not str; decode it first")
        return self._rows([text], parse_special=parse_special)[0]

    def encode_batch(self, texts: Iterable[str], *, parse_special: bool = False) -> list[list[int]]:
        """Turns many texts into lists of ids; see `Tokenizer.encode`."""
        batches = split_batches(texts, _BATCH_CHARS)
        return list(chain.from_iterable(self._rows(batch, parse_special=parse_special) for batch in batches))

    def encode_flat(self, texts: Iterable[str], *, parse_special: bool = False) -> FlatIds:
        """Turns many texts into two arrays: all ids one after another, and where each text starts and ends."""
        ids: list[NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
        sizes: list[int] = [0]
        for batch in split_batches(texts, _BATCH_CHARS):
            rows = self._rows(batch, parse_special=parse_special)
            sizes += map(len, rows)
            ids.append(np.fromiter(chain.from_iterable(rows), np.int32, sum(map(len, rows))))
        return FlatIds(np.concatenate(ids), np.cumsum(sizes, dtype=np.int64))

    def align_flat(self, texts: Iterable[str]) -> FlatTokens:
        """Turns many texts into arrays of ids, character offsets and word ids; special tokens are plain text."""
        return join_tokens([self._align_batch(batch) for batch in split_batches(texts, _BATCH_CHARS)])

    def encode_words(self, words: Iterable[str]) -> FlatIds:
        """Turns words into ids, each by itself, with the space before it that it has in the midst of a text.

        A Chinese character has none there.
        """
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
        kept = []
        for index in as_ids(ids):
            if not 0 <= index < len(self.vocab):
                raise InputError(
                    f"id {index} is not in the vocabulary of {len(self.vocab)} pieces; use the model's own tokenizer"
                )
            if not (skip_special_tokens and index in self.special_ids):
                kept.append(int(index))
        text: str = self._whole.decode(kept, skip_special_tokens=False)
        return text

    def piece_text(self, index: int) -> str:
        """Returns a piece as a person reads it, without the sign of a space; a part of a letter stays as it is."""
        text: str = self._whole.decode([int(index)], skip_special_tokens=False).strip()
        return text if text and "\ufffd" not in text else self.vocab[index]

    def with_pieces(self, pieces: Sequence[str], user_tokens: Sequence[str] = ()) -> LibraryTokenizer:
        """Makes a tokenizer that knows more tokens; the ids of the pieces so far stay.

        Args:
            pieces: must be empty: only the trainer of these kinds knows how a new piece is reached.
            user_tokens: tokens that are one piece wherever they are written.

        Raises:
            InputError: there are `pieces`, or a user token cannot be one.
        """
        if pieces:
            raise InputError(
                f"piece {pieces[0]!r}: a {self.kind} vocabulary cannot take new pieces, only WordPiece can;"
                " pass it among user_tokens, which are one piece wherever they are written"
            )
        content = json.loads(self._source)
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        for token in check_user_tokens(user_tokens, self.piece_to_id):
            number = len(self.vocab) + len(content["added_tokens"]) - len(json.loads(self._source)["added_tokens"])
            content["added_tokens"].append({"id": number, "content": token, **flags})
        return LibraryTokenizer(_dump(content), self._config, self._place)

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
        write_text(folder / "tokenizer_config.json", _dump(config))
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
        """[V], True for pieces that go on with the word of the piece before them."""
        return self._borders.continuing

    def continuations(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tells which pieces of a text go on with a word: none behind a punctuation mark, any behind a lone space."""
        borders = self._borders
        found = borders.continuing[ids]
        found[1:] &= ~borders.ending[ids[:-1]]
        found[1:] |= borders.is_space[ids[:-1]] & ~borders.beginning[ids[1:]]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return LibraryTokenizer, (self._source, self._config, self._place)

    def _aligned(
        self, samples: Sequence[tuple[str, str | None]], *, parse_special: bool
    ) -> Iterator[tuple[Tokens, Tokens | None]]:
        for sample in samples:
            first, second = (None if text is None else self._tokens(text, parse_special) for text in sample)
            assert first is not None
            yield first, second

    def _tokens(self, text: str, parse_special: bool) -> Tokens:
        (row,) = self._encodings([text], parse_special=parse_special, need_offsets=True)
        ids = row.ids
        return Tokens(ids, row.offsets, self._word_numbers(np.array(ids, dtype=np.int64), [0, len(ids)]).tolist())

    def _align_batch(self, texts: Sequence[str]) -> FlatTokens:
        rows = self._encodings(texts, parse_special=False, need_offsets=True)
        ids = [row.ids for row in rows]
        bounds = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        flat = np.fromiter(chain.from_iterable(ids), np.int32, int(bounds[-1]))
        offsets = np.array(list(chain.from_iterable(row.offsets for row in rows)), dtype=np.int32).reshape(-1, 2)
        words = self._word_numbers(flat.astype(np.int64), bounds.tolist())
        return FlatTokens(flat, bounds, offsets[:, 0].copy(), offsets[:, 1].copy(), words)

    def _word_numbers(self, ids: NDArray[np.int64], bounds: Sequence[int]) -> NDArray[np.int32]:
        """Counts the words of texts that lie one after another, in each from 0."""
        begins = ~self.continuations(ids)
        firsts = [start for start, end in pairwise(bounds) if start < end]
        begins[firsts] = True
        numbers = np.cumsum(begins) - 1
        starts = np.repeat(numbers[firsts] if firsts else numbers, [e - s for s, e in pairwise(bounds) if s < e])
        return (numbers - starts).astype(np.int32)

    def _rows(self, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
        return [row.ids for row in self._encodings(texts, parse_special=parse_special, need_offsets=False)]

    def _encodings(self, texts: Sequence[str], *, parse_special: bool, need_offsets: bool) -> list[Any]:
        library = self._whole if parse_special else self._plain_text
        encode = library.encode_batch if need_offsets else library.encode_batch_fast
        try:
            rows: list[Any] = encode(texts, add_special_tokens=False)
        except TypeError:
            # 孤立的代理字符（JSON 里半个 😀）不能写成 UTF-8：换成替换字符，长度不变，位置也就不变
            rows = encode([_SURROGATE.sub("\ufffd", text) for text in texts], add_special_tokens=False)
        return rows

    def _in_text(self, word: str) -> str:
        if not isinstance(word, str):
            raise InputError(f"a word is {type(word).__name__}, not str; decode it first")
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
    """Imports `tokenizers`.

    Raises:
        ConfigError: it is not installed.
    """
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
    made.no_truncation()
    made.no_padding()
    return made


def _vocabulary(content: Mapping[str, Any]) -> dict[str, int]:
    vocab = content["model"]["vocab"]
    pieces = dict(vocab) if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}
    return pieces | {token["content"]: token["id"] for token in content["added_tokens"]}


def _plain(value: Any) -> str | None:
    name = value.get("content") if isinstance(value, dict) else value
    return name if isinstance(name, str) and name else None


def _dump(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
