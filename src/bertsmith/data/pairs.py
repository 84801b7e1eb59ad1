"""From a document to pairs of segments for next-sentence prediction (Devlin et al. 2019, §3.1 task 2, appendix A.2).

The procedure is that of the released BERT: sentences are collected to the target length, cut into A and B at a random
border, and half of the time B is replaced by text from another document, the unused sentences being put back. One
thing differs on purpose. Where a chunk is a single sentence, the release always draws a random B, which tips the
labels towards "random"; here a neighbouring sentence of the document makes the true pair, so that the labels stay
half and half. A document of one sentence has no neighbour: it becomes a single segment without a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IS_NEXT = 0
IS_RANDOM = 1
NO_LABEL = -100
"""Labels as in the released BERT; `NO_LABEL` is left out of the loss."""

TokenDocument = Sequence[NDArray[np.int32]]
"""The sentences of a document, each an array of ids."""


@dataclass(frozen=True)
class SegmentPair:
    """Two segments of ids, `second` empty for a single one, and the next-sentence label."""

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    label: int


def draw_pairs(
    document: TokenDocument,
    *,
    draw_other: Callable[[], TokenDocument],
    max_tokens: int,
    short_probability: float,
    rng: np.random.Generator,
) -> Iterator[SegmentPair]:
    """Cuts one document into pairs.

    Args:
        document: at least one sentence, none of them empty.
        draw_other: returns another document for a random B.
        max_tokens: most ids in A and B together, special tokens not counted; at least 2.
        short_probability: share of documents whose pairs aim at a random shorter length, so that the model also
            meets short input.
        rng: source of all draws.

    Yields:
        Pairs whose segments are non-empty and together at most `max_tokens` long.
    """
    if len(document) == 1:
        yield SegmentPair(_fit_one(document[0], max_tokens, rng), np.zeros(0, document[0].dtype), NO_LABEL)
        return
    target = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_probability else max_tokens
    start = 0
    while start < len(document):
        end = _end_of_chunk(document, start, target)
        is_next = rng.random() < 0.5
        if end - start == 1 and is_next:
            # 单句成块时借用相邻句子组成真实的一对，否则“真/随机”标签会失衡
            border = start + 1 if end < len(document) else start
            first, second = document[border - 1 : border], document[border : border + 1]
        else:
            border = start + (1 if end - start == 1 else int(rng.integers(1, end - start)))
            first, second = document[start:border], document[border:end]
            if not is_next:
                length_of_first = sum(len(sentence) for sentence in first)
                second = _random_segment(draw_other(), target - length_of_first, rng)
                # 随机 B 没有用到的句子放回去，下一块从它们开始，不浪费文本
                end = border
        a, b = _truncate_pair(np.concatenate(first), np.concatenate(second), max_tokens, rng)
        yield SegmentPair(a, b, IS_NEXT if is_next else IS_RANDOM)
        start = end


def _end_of_chunk(document: TokenDocument, start: int, target: int) -> int:
    """Returns the end of the sentences from `start` that first reach the target length."""
    length = 0
    for index in range(start, len(document)):
        length += len(document[index])
        if length >= target:
            return index + 1
    return len(document)


def _random_segment(other: TokenDocument, target: int, rng: np.random.Generator) -> TokenDocument:
    """Takes whole sentences of another document from a random one on, until the target length is reached."""
    start = int(rng.integers(len(other)))
    return other[start : _end_of_chunk(other, start, target)]


def _truncate_pair(
    first: NDArray[np.int32], second: NDArray[np.int32], max_tokens: int, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Shortens the longer segment, id by id, at a random end each time.

    Taking from both ends keeps the model from learning that long input always starts at a sentence's beginning. All
    removals are drawn at once: how many fall on the front of a segment is binomial.
    """
    excess = len(first) + len(second) - max_tokens
    if excess <= 0:
        return first, second
    from_first = int(np.clip(len(first) - len(second), 0, excess))
    from_second = int(np.clip(len(second) - len(first), 0, excess))
    rest = excess - from_first - from_second
    # 先把较长的一段削到等长，剩余的再两边轮流削
    from_first += rest // 2
    from_second += rest - rest // 2
    return _trim(first, from_first, rng), _trim(second, from_second, rng)


def _fit_one(segment: NDArray[np.int32], max_tokens: int, rng: np.random.Generator) -> NDArray[np.int32]:
    return _trim(segment, max(0, len(segment) - max_tokens), rng)


def _trim(segment: NDArray[np.int32], count: int, rng: np.random.Generator) -> NDArray[np.int32]:
    front = int(rng.binomial(count, 0.5)) if count else 0
    return segment[front : len(segment) - (count - front)]
