"""The shapes in which tokens leave the tokenizer: arrays over many texts, and the rows that a model reads.

- packed ids become one numpy array without ever having been Python integers: a corpus has billions of them
- a `Template` is the one place that knows where special tokens stand: BERT, ALBERT and ModernBERT read `[CLS] A [SEP]`
  and `[CLS] A [SEP] B [SEP]`, the second text in segment 1; RoBERTa and XLM-R read `<s> A </s>` and
  `<s> A </s></s> B </s>`, all in segment 0
- truncation, overflow windows (`stride`) and padding follow the conventions of `transformers`' fast tokenizer, so that
  a script moved here sees the same rows
- special tokens and padding have the offset (0, 0) and the word id -1: an integer, so that arrays need no None
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError

PACKED = np.dtype(np.int32)
"""What a packed id is: an int32 in the machine's own byte order."""


def no_text(given: object, what: str) -> InputError:
    """Returns the refusal of what is no text; `what` says what it is called."""
    return InputError(f"{what} is {type(given).__name__}, not str; decode it first")


def split_batches(texts: Iterable[str], chars: int) -> Iterator[list[str]]:
    """Groups texts until a batch holds about `chars` characters."""
    if isinstance(texts, str):
        raise InputError("texts is a single string; pass a list or another iterable of strings")
    batch: list[str] = []
    room = chars
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise no_text(text, f"text {number}")
        batch.append(text)
        room -= len(text) + 1
        if room <= 0:
            yield batch
            batch, room = [], chars
    if batch:
        yield batch


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses Python's cycle collector inside the block; reference counting goes on.

    The collector would walk all the new lists and tuples of a large batch again and again, and find no cycle: on 10 MB
    of lines it took a third of the time of tokenizing. If two threads overlap, it comes back a little early at worst.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class FlatIds(NamedTuple):
    """The ids of N texts in `ids` [T] int32: text n has `ids[bounds[n]:bounds[n+1]]`, with `bounds` [N+1] int64."""

    ids: NDArray[np.int32]
    bounds: NDArray[np.int64]

    @classmethod
    def from_marked(cls, packed: bytes) -> FlatIds:
        """Takes the end marks out of T+N packed ids: a -1 stands after those of each text."""
        marked = np.frombuffer(packed, dtype=PACKED)
        ends = np.flatnonzero(marked < 0)
        bounds = np.zeros(len(ends) + 1, dtype=np.int64)
        # 第 n 个结束标记之前还有 n 个标记，减去它们就是纯 id 的位置
        np.subtract(ends, np.arange(len(ends)), out=bounds[1:])
        return cls(np.delete(marked, ends), bounds)


class Tokens(NamedTuple):
    """The tokens of one text, not the special ones; `offsets` are (start, end) characters, `word_ids` count from 0."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int]


class FlatTokens(NamedTuple):
    """The tokens of N texts with their places; `ids` and `bounds` are those of `FlatIds`, the others [T] int32.

    A token is `starts` to `ends` (one past its last character) in its text, in word `word_ids` of it, counted from 0.
    """

    ids: NDArray[np.int32]
    bounds: NDArray[np.int64]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    word_ids: NDArray[np.int32]


def join_tokens(parts: Sequence[FlatTokens]) -> FlatTokens:
    """Puts the tokens of several batches of texts one behind the other."""
    if len(parts) == 1:
        return parts[0]
    empty = np.zeros(0, dtype=np.int32)
    columns = {
        name: np.concatenate([empty, *(getattr(part, name) for part in parts)])
        for name in ("ids", "starts", "ends", "word_ids")
    }
    sizes = [np.zeros(1, dtype=np.int64), *(np.diff(part.bounds) for part in parts)]
    return FlatTokens(bounds=np.cumsum(np.concatenate(sizes)), **columns)


@dataclass(frozen=True)
class Template:
    """The special ids of a row: `before A after` for one text, `before A between B after` for two.

    `between` is in the segment of the first text, `after` in that of the last; `second_type` is that of B, 0 or 1.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    second_type: int = 1

    def size(self, *, pair: bool) -> int:
        """Returns how many special ids a row has."""
        return len(self.before) + len(self.after) + (len(self.between) if pair else 0)

    def wrap(self, ids: Iterable[int]) -> list[int]:
        """Puts the special ids around the ids of one text."""
        return [*self.before, *ids, *self.after]

    def head(self, ids: Iterable[int]) -> list[int]:
        """Returns the row of a pair up to its second text."""
        return [*self.before, *ids, *self.between]


Truncation = Literal["longest_first", "only_first", "only_second", False]
Padding = Literal["longest", "max_length", False]

_COLUMNS = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask", "offsets", "word_ids")
_NOWHERE = (0, 0)
_Row = tuple[list[int], list[int], list[int], list[int], list[tuple[int, int]], list[int]]


class Encoding(dict[str, Any]):
    """Model inputs by name, a dictionary.

    The names are `input_ids`, `token_type_ids`, `attention_mask`, `special_tokens_mask`, `offsets` ((start, end)
    characters of the original text) and `word_ids`. For one text each value is a list over its tokens; for a list of
    texts, a list of such lists (or an array [N, S] where arrays were asked for). `overflow_to_sample` is there when
    overflow windows were asked for: the index of the text each row comes from. A column is an attribute as well
    (`encoding.input_ids`), and tensors go to a device together (`encoding.to("cuda")`), as scripts are used to.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no column {name!r}; there are {', '.join(self)}") from None

    def to(self, device: Any) -> Encoding:
        """Returns the tensors on a device; what is no tensor stays as it is."""
        return Encoding({name: value.to(device) if hasattr(value, "to") else value for name, value in self.items()})


@dataclass(frozen=True)
class Layout:
    """How rows are built."""

    template: Template
    pad_id: int | None
    max_length: int | None
    truncation: Truncation
    padding: Padding
    stride: int
    return_overflowing: bool

    def __post_init__(self) -> None:
        if self.truncation not in ("longest_first", "only_first", "only_second", False):
            raise InputError(
                f"truncation={self.truncation!r} is unknown; use 'longest_first', 'only_first', 'only_second' or False"
            )
        if self.padding not in ("longest", "max_length", False):
            raise InputError(f"padding={self.padding!r} is unknown; use 'longest', 'max_length' or False")
        if self.padding and self.pad_id is None:
            raise InputError("the vocabulary has no [PAD], so rows cannot be padded; use padding=False")
        if self.stride < 0:
            raise InputError(f"stride={self.stride} is negative; give the number of tokens windows share, 0 or more")
        if self.return_overflowing and (self.max_length is None or not self.truncation):
            raise InputError("return_overflowing needs max_length and a truncation strategy; give both")


def pair_up(text: str | Sequence[str], pair: str | Sequence[str] | None) -> list[tuple[str, str | None]]:
    """Sorts out what a caller gave: one text or many, with or without second texts."""
    texts = _listed(text, "text")
    if pair is None:
        return [(item, None) for item in texts]
    pairs = _listed(pair, "second text")
    if isinstance(pair, str) is not isinstance(text, str):
        raise InputError("one of text and pair is a string, the other a list; give two strings, or two lists")
    if len(pairs) != len(texts):
        raise InputError(f"{len(texts)} texts but {len(pairs)} pairs; give one second text for every text")
    return list(zip(texts, pairs, strict=True))


def _listed(given: Any, what: str) -> list[str]:
    # 一行 bytes 也能遍历，得到的却是数字
    is_one = isinstance(given, (str, bytes)) or not isinstance(given, Iterable)
    texts: list[Any] = [given] if is_one else list(given)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise no_text(text, f"{what} {number}")
    return texts


def build_rows(samples: Iterable[tuple[Tokens, Tokens | None]], layout: Layout) -> Encoding:
    """Builds the rows of a batch."""
    rows: list[_Row] = []
    origin: list[int] = []
    for index, (first, second) in enumerate(samples):
        for window in _windows(first, second, layout):
            rows.append(_row(*window, layout))
            origin.append(index)
    columns: dict[str, list[Any]] = {name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS)}
    if layout.padding:
        _pad(columns, layout)
    if layout.return_overflowing:
        columns["overflow_to_sample"] = origin
    return Encoding(columns)


def as_arrays(encoding: Encoding, kind: str) -> Encoding:
    """Turns rows of equal length into int64 arrays ("np") or tensors ("pt") [N, S]; `offsets` is [N, S, 2]."""
    if kind not in ("np", "pt"):
        raise InputError(f"return_tensors={kind!r} is unknown; use 'np', 'pt' or None")
    if len({len(row) for row in encoding["input_ids"]}) > 1:
        raise InputError("rows of different lengths make no array; pass padding='longest' or padding='max_length'")
    arrays = Encoding({name: np.asarray(values, dtype=np.int64) for name, values in encoding.items()})
    if kind == "np":
        return arrays
    # 只有要张量时才载入 torch：分词本身不该付它近两秒的启动时间
    import torch

    return Encoding({name: torch.from_numpy(values) for name, values in arrays.items()})


def _windows(first: Tokens, second: Tokens | None, layout: Layout) -> list[tuple[Tokens, Tokens | None]]:
    """Cuts one sample to `max_length`: the first window, or all of them."""
    special = layout.template.size(pair=second is not None)
    lengths = (len(first.ids), 0 if second is None else len(second.ids))
    if layout.max_length is None or not layout.truncation or sum(lengths) + special <= layout.max_length:
        return [(first, second)]
    room = layout.max_length - special
    if room < 0:
        raise InputError(f"max_length={layout.max_length} leaves no room for the {special} special tokens; raise it")
    keep_first, keep_second = _kept_lengths(lengths, room, layout.truncation, pair=second is not None)
    firsts = _cut(first, keep_first, layout)
    if second is None:
        return [(window, None) for window in firsts]
    seconds = _cut(second, keep_second, layout)
    # 两段都溢出时取全部组合；次序与 transformers 一致：先是第一段的后续各窗配第二段所有窗，再是首窗配第二段后续各窗
    return [
        (firsts[0], seconds[0]),
        *((one, two) for one in firsts[1:] for two in seconds),
        *((firsts[0], two) for two in seconds[1:]),
    ]


def _kept_lengths(lengths: tuple[int, int], room: int, truncation: Truncation, pair: bool) -> tuple[int, int]:
    first, second = lengths
    if truncation == "longest_first":
        if not pair:
            return room, 0
        # 短的一方尽量保全，长的一方让步；都放不下时平分，多出的一个给原本较长的一方
        short = min(first, second, room // 2)
        return (room - short, short) if first > second else (short, room - short)
    if truncation == "only_second" and not pair:
        raise InputError("truncation='only_second' needs a second text; give one, or use 'only_first'")
    kept = (room - second, second) if truncation == "only_first" else (first, room - first)
    if kept[0 if truncation == "only_first" else 1] <= 0:
        raise InputError(
            f"max_length leaves no place for the text that truncation={truncation!r} cuts; raise max_length"
            " or use truncation='longest_first'"
        )
    return kept


def _cut(tokens: Tokens, size: int, layout: Layout) -> list[Tokens]:
    """Gives the first `size` tokens, or all windows of that size that share `stride` tokens."""
    total = len(tokens.ids)
    if total <= size:
        return [tokens]
    starts = [0]
    if layout.return_overflowing:
        if layout.stride >= size:
            raise InputError(
                f"stride={layout.stride} is not below the {size} tokens of a window; lower it, or raise max_length"
            )
        # 窗口到达末尾就停：最后一窗可以短，但不会再多一个只含重叠部分的窗口
        step = size - layout.stride
        starts = list(range(0, total - size + step, step))
    return [Tokens(*(column[start : start + size] for column in tokens)) for start in starts]  # type: ignore[arg-type]


def _row(first: Tokens, second: Tokens | None, layout: Layout) -> _Row:
    """Joins one window with its special tokens; the columns in the order of `_COLUMNS`."""
    template = layout.template
    # 片段依次是：前、A、中、B、后；特殊词元没有位置，也不属于任何词
    parts = [_special(template.before), first, _special(template.after)]
    if second is not None:
        parts[2:2] = [_special(template.between), second]
    ids, offsets, word_ids = (list(chain.from_iterable(columns)) for columns in zip(*parts, strict=True))
    special = list(chain.from_iterable([(number + 1) % 2] * len(part.ids) for number, part in enumerate(parts)))
    length, head = len(ids), sum(len(part.ids) for part in parts[:3])
    types = [0] * length if second is None else [0] * head + [template.second_type] * (length - head)
    return ids, types, [1] * length, special, offsets, word_ids


def _special(ids: Sequence[int]) -> Tokens:
    return Tokens([*ids], [_NOWHERE] * len(ids), [-1] * len(ids))


def _pad(columns: dict[str, list[Any]], layout: Layout) -> None:
    fill = (layout.pad_id, 0, 0, 1, _NOWHERE, -1)
    longest = max((len(row) for row in columns["input_ids"]), default=0)
    target = layout.max_length if layout.padding == "max_length" and layout.max_length is not None else longest
    for name, value in zip(_COLUMNS, fill, strict=True):
        for row in columns[name]:
            row.extend([value] * (target - len(row)))
