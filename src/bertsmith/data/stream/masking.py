"""Choosing what to hide: the masked-LM corruption of the paper (Devlin et al. 2019, §3.1 task 1 and appendix A.1).

15 % of the pieces of every sequence are chosen; of those 80 % become `[MASK]`, 10 % a random piece and 10 % stay. With
a spread every sequence draws a rate of its own: a model that only ever saw forty masks at a time learns to lean on
them, and knows little where one word is hidden (see "How many are hidden" in docs/notes/measurements.md).
Three kinds of choice:
- `token`: single pieces, as in the paper
- `whole-word`: whole words, as in the paper's later release: words in random order, one that would go over the budget
  is passed over; each piece of a chosen word draws its own fate
- `span`: runs of whole words of geometric length (Joshi et al. 2020, §3.1); a span has one fate for all its pieces
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError
from bertsmith.settings import Checked, option

MaskingKind = Literal["token", "whole-word", "span"]

_TRIES = 20
"""Places tried for a span before a shorter one is taken."""


@dataclass(frozen=True)
class MaskingSettings(Checked):
    """How much is hidden, and how."""

    panel: ClassVar[str] = "Masking"

    rate: float = option(
        0.15, name="mask_rate", above=0, below=1, shown_default="by family", help="Share of pieces to hide, in (0, 1)."
    )
    spread: float = option(
        0.0,
        name="mask_spread",
        min=0.0,
        max=1.0,
        shown_default="by family",
        help="Each sequence's rate is drawn evenly from rate x (1 - this) to rate x (1 + this); 0: all alike.",
    )
    mask_share: float = option(0.8, min=0, max=1, help="Share of these pieces that becomes [MASK].")
    random_share: float = option(0.1, min=0, max=1, help="Share of these that becomes a random piece; the rest stays.")
    kind: MaskingKind = option("token", name="masking", help="Unit of masking: single pieces, whole words or spans.")
    max_predictions_per_seq: int = option(
        0, min=0, help="Maximum pieces to predict per sequence; 0: by the mask rate alone."
    )
    span_stop: float = option(
        0.2, above=0, max=1, in_file_only=True, help="p of the geometric distribution of a span's length in words."
    )
    longest_span: int = option(
        10, min=1, in_file_only=True, help="Maximum words in a span; with p = 0.2 and 10 the mean is 3.8."
    )

    def _check_together(self) -> None:
        if self.mask_share + self.random_share > 1.0 + 1e-9:
            raise ConfigError(f"mask share {self.mask_share} and random share {self.random_share} exceed 1 together")


@dataclass(frozen=True)
class MaskedTokens:
    """What became of a batch: `input_ids` [T], corrupted, and what is to be predicted of them.

    Attributes:
        positions: [M], the chosen ones in increasing order.
        labels: [M], their true ids.
        spans: [M, 3] for spans: the tokens just before and just after the piece's span, both of the same sequence,
            and the piece's place in the span, counted from 0; None for other kinds.
        draws: [M] float32 in [0, 1), a random number for each position, for objectives that sample; None for others.
    """

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    spans: NDArray[np.int64] | None = None
    draws: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class _Words:
    """The W words of a batch, in order."""

    start: NDArray[np.int64]
    size: NDArray[np.int64]
    of_sequence: NDArray[np.int64]


def mask_tokens(
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    special_ids: NDArray[np.int64],
    mask_token_id: int,
    vocab_size: int,
    settings: MaskingSettings,
    rng: np.random.Generator,
    continuations: NDArray[np.bool_] | None = None,
) -> MaskedTokens:
    """Chooses and corrupts pieces of N sequences laid end to end.

    Args:
        input_ids: [T] ids; every sequence starts and ends with a special token.
        lengths: [N] lengths that add up to T.
        special_ids: ids that are never chosen and never drawn as a random piece, in increasing order.
        continuations: [T], True on pieces that continue the word before them; needed for whole words and spans.

    Returns:
        `round(rate * length)` chosen pieces per sequence, at least one, as far as it has pieces to choose from; with a
        spread, of the sequence's own rate. Whole words may leave a few of these unused, as no word is cut.
    """
    special = np.isin(input_ids, special_ids)
    rates: float | NDArray[np.float64] = settings.rate
    if settings.spread:
        # 每条序列各抽一个比例：从只遮一个词到遮一半都见过，用的时候遮多少都行
        spread = min(settings.spread, 1.0 / settings.rate - 1.0)
        rates = settings.rate * (1.0 + spread * rng.uniform(-1.0, 1.0, len(lengths)))
    wanted = np.maximum(1, np.rint(lengths * rates)).astype(np.int64)
    if settings.max_predictions_per_seq:
        wanted = np.minimum(wanted, settings.max_predictions_per_seq)
    spans = None
    if settings.kind == "token":
        positions = _choose_pieces(special, lengths, wanted, rng)
        fate = rng.random(len(positions))
    else:
        if continuations is None:
            raise ValueError("whole words need `continuations`")
        words = _find_words(special, lengths, continuations)
        if settings.kind == "whole-word":
            positions = _choose_words(words, wanted, rng)
            fate = rng.random(len(positions))
        else:
            bounds = _choose_spans(words, wanted, settings, rng)
            positions, spans = _lay_out(bounds)
            # 整段同命：一个片段要么全换成 [MASK]，要么全换随机词，要么全保留
            fate = np.repeat(rng.random(len(bounds)), bounds[:, 1] - bounds[:, 0])
    labels = input_ids[positions]

    corrupted = input_ids.copy()
    corrupted[positions[fate < settings.mask_share]] = mask_token_id
    # 10% 换成随机词、10% 保持原样：预测时没有 [MASK]，模型不能只在看到 [MASK] 时才认真编码
    randomised = positions[(fate >= settings.mask_share) & (fate < settings.mask_share + settings.random_share)]
    drawn = rng.integers(vocab_size - len(special_ids), size=len(randomised))
    # 跳过特殊符号：第 r 个普通词的编号 = r 加上它前面的特殊符号个数，不必每批都列出整个词表
    corrupted[randomised] = drawn + np.searchsorted(special_ids - np.arange(len(special_ids)), drawn, side="right")
    return MaskedTokens(corrupted, positions, labels, spans)


def span_lengths(count: int, settings: MaskingSettings, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draws span lengths in words: P(k) proportional to p (1 - p)^(k - 1) for k up to the longest span."""
    weights = (1.0 - settings.span_stop) ** np.arange(settings.longest_span)
    return 1 + np.searchsorted(np.cumsum(weights[:-1]) / weights.sum(), rng.random(count), side="right")


def _choose_pieces(
    special: NDArray[np.bool_], lengths: NDArray[np.int64], wanted: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Takes the pieces with the smallest random keys of each sequence: a few array operations for the whole batch."""
    keys = rng.random(len(special))
    # 特殊符号的键放到最后：它们永远不会排进被选中的前 k 个
    keys[special] = 2.0
    order = np.lexsort((keys, np.repeat(np.arange(len(lengths)), lengths)))
    starts = np.cumsum(lengths) - lengths
    rank = np.arange(len(special)) - np.repeat(starts, lengths)
    return np.sort(order[(rank < np.repeat(wanted, lengths)) & ~special[order]])


def _find_words(special: NDArray[np.bool_], lengths: NDArray[np.int64], continuations: NDArray[np.bool_]) -> _Words:
    ordinary = ~special
    # 特殊符号之后必是新词：截断可能从词的中间开始，留下的部分自成一词
    begins = ordinary & (~continuations | np.concatenate([[True], special[:-1]]))
    start = np.flatnonzero(begins)
    size = np.bincount((np.cumsum(begins) - 1)[ordinary], minlength=len(start))
    of_sequence = np.searchsorted(start, np.concatenate([[0], np.cumsum(lengths)]))
    return _Words(start, size, of_sequence)


def _choose_words(words: _Words, wanted: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    count = len(words.start)
    sequence = np.repeat(np.arange(len(wanted)), np.diff(words.of_sequence))
    order = np.lexsort((rng.random(count), sequence)).tolist()
    sizes, bounds = words.size.tolist(), words.of_sequence.tolist()
    chosen: list[int] = []
    for number, room in enumerate(wanted.tolist()):
        for word in order[bounds[number] : bounds[number + 1]]:
            # 放不下的词跳过，再试后面较短的：发布的代码也是如此，词从不被切开
            if sizes[word] <= room:
                chosen.append(word)
                room -= sizes[word]
                if not room:
                    break
    picked = np.sort(np.array(chosen, dtype=np.int64))
    return _ranges(words.start[picked], words.size[picked])


def _choose_spans(
    words: _Words, wanted: NDArray[np.int64], settings: MaskingSettings, rng: np.random.Generator
) -> NDArray[np.int64]:
    pieces = np.concatenate([[0], np.cumsum(words.size)]).tolist()
    # 一段 = 两个特殊符号之间连续的词；run_end[w] 是词 w 所在段之后的第一个词
    breaks = np.flatnonzero(words.start[1:] != words.start[:-1] + words.size[:-1]) + 1
    run_ends = np.concatenate([breaks, [len(words.start)]])
    run_end = run_ends[np.searchsorted(breaks, np.arange(len(words.start)), side="right")].tolist()
    free = bytearray(b"\1") * len(words.start)
    uniform, length_of = _uniforms(rng), _lengths(settings, rng)
    spans: list[tuple[int, int]] = []
    for number, room in enumerate(wanted.tolist()):
        first_word, last_word = words.of_sequence[number : number + 2].tolist()
        length = next(length_of)
        while room and length and first_word < last_word:
            for _ in range(_TRIES):
                start = first_word + int(next(uniform) * (last_word - first_word))
                end = start + length
                if end > run_end[start] or not all(free[start:end]):
                    continue
                while pieces[end] - pieces[start] > room:
                    end -= 1
                if end > start:
                    break
            else:
                # 处处放不下：说明剩下的空位都短，退而求其次
                length //= 2
                continue
            spans.append((start, end))
            room -= pieces[end] - pieces[start]
            # 片段两边各留一个词不选：边界目标要从看得见的邻居预测片段
            low = start - 1 if start and run_end[start - 1] == run_end[start] else start
            high = min(end + 1, run_end[start])
            free[low:high] = bytes(high - low)
            length = next(length_of)
    bounds = np.array(sorted(spans), dtype=np.int64).reshape(-1, 2)
    last = bounds[:, 1] - 1
    return np.stack([words.start[bounds[:, 0]], words.start[last] + words.size[last]], axis=1)


def _lay_out(bounds: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the positions [M] of all pieces of the spans, and [M, 3]: left neighbour, right neighbour, place."""
    sizes = bounds[:, 1] - bounds[:, 0]
    positions = _ranges(bounds[:, 0], sizes)
    first, end = np.repeat(bounds[:, 0], sizes), np.repeat(bounds[:, 1], sizes)
    return positions, np.stack([first - 1, end, positions - first], axis=1)


def _ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns `start, start + 1, …` of each size, one after the other."""
    ends = np.cumsum(sizes)
    places: NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes)
    return places


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(256).tolist()


def _lengths(settings: MaskingSettings, rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from span_lengths(128, settings, rng).tolist()
