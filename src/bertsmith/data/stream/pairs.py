"""From documents to the segments of a sequence: pairs for next-sentence prediction and sentence order, or one.

`draw_pairs` is the procedure of the released BERT (Devlin et al. 2019, §3.1 task 2, appendix A.2): sentences are
collected to the target length, cut into A and B at a random border, and half of the time B is replaced by text from
another document, the unused sentences being put back. One thing differs on purpose, unless `google` pairing is asked
for. Where a chunk is a single sentence, the release always draws a random B, which tips the labels towards "random";
here a neighbouring sentence of the document makes the true pair, so that the labels stay half and half. A document of
one sentence has no neighbour: it becomes a single segment without a label.

Objectives without a second segment (masked LM alone, left-to-right LM) read one: `draw_segments` packs full sentences
of one document up to the length (Liu et al. 2019, §4.2, "DOC-SENTENCES"); `pack_full` lays everything end to end across
document borders, `[SEP]` between, and cuts wherever a sequence is full. Their "FULL-SENTENCES" cuts at the end of a
sentence; a sixth of a batch of 128 is then missing, and what is there is ragged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

IS_NEXT = 0
IS_RANDOM = 1
NO_LABEL = -100
"""Labels as in the released BERT; `NO_LABEL` marks what is left out of the loss, in every objective."""

IN_ORDER = 0
SWAPPED = 1
"""Labels of sentence order."""

Pairing = Literal["balanced", "google"]

TokenDocument = Sequence[NDArray[np.int32]]
"""The sentences of a document, each an array of ids, or of rows of columns [n, C] that travel with the ids."""


@dataclass(frozen=True)
class SegmentPair:
    """Two segments of ids (or rows), `second` empty for a single one, and the next-sentence label."""

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
    pairing: Pairing = "balanced",
) -> Iterator[SegmentPair]:
    """Cuts one document into pairs of segments that are not empty.

    Args:
        draw_other: returns another document for a random B.
        max_tokens: most ids in A and B together, special tokens not counted; at least 2.
        short_probability: share of documents whose pairs aim at a random shorter length, so that the model also meets
            short input.
        pairing: `balanced` keeps the labels half and half; `google` is the release to the letter, where a chunk of one
            sentence always has a random B.
    """
    if len(document) == 1 and pairing == "balanced":
        yield _single(document[0], max_tokens, rng)
        return
    target = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_probability else max_tokens
    start = 0
    while start < len(document):
        end = _end_of_chunk(document, start, target)
        is_next = rng.random() < 0.5
        if pairing == "google" and end - start == 1:
            is_next = False
        first, second = document[start:end], document[end:end]
        if is_next or end - start > 1:
            # 单句成块时借用相邻句子组成真实的一对，否则“真/随机”标签会失衡
            first, second = _consecutive(document, start, end, rng)
        if not is_next:
            second = _random_segment(draw_other(), target - sum(map(len, first)), rng)
            # 随机 B 没有用到的句子放回去，下一块从它们开始，不浪费文本
            end = start + len(first)
        a, b = _truncate_pair(np.concatenate(first), np.concatenate(second), max_tokens, rng)
        yield SegmentPair(a, b, IS_NEXT if is_next else IS_RANDOM)
        start = end


def draw_ordered_pairs(
    document: TokenDocument, *, max_tokens: int, short_probability: float, rng: np.random.Generator
) -> Iterator[SegmentPair]:
    """Cuts one document into pairs of consecutive segments, half of them swapped (Lan et al. 2020, §3.1).

    The arguments are those of `draw_pairs`; a document of one sentence becomes a single unlabelled segment.
    """
    if len(document) == 1:
        yield _single(document[0], max_tokens, rng)
        return
    target = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_probability else max_tokens
    start = 0
    while start < len(document):
        end = _end_of_chunk(document, start, target)
        first, second = _consecutive(document, start, end, rng)
        a, b = _truncate_pair(np.concatenate(first), np.concatenate(second), max_tokens, rng)
        # 截断之后再交换：两种次序的长度分布完全相同，模型无法凭长短猜出答案
        yield SegmentPair(b, a, SWAPPED) if rng.random() < 0.5 else SegmentPair(a, b, IN_ORDER)
        start = end


def draw_segments(
    document: TokenDocument, *, max_tokens: int, short_probability: float, rng: np.random.Generator
) -> Iterator[SegmentPair]:
    """Packs the sentences of one document.

    A sentence is cut only where it is longer than `max_tokens`. A share of the documents, `short_probability`, has
    segments that end at the first sentence that reaches a random shorter length. Together they are the document.
    """
    target = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_probability else max_tokens
    chunk: list[NDArray[np.int32]] = []
    length = 0
    fitting = (sentence[at : at + max_tokens] for sentence in document for at in range(0, len(sentence), max_tokens))
    for sentence in fitting:
        if chunk and (length >= target or length + len(sentence) > max_tokens):
            yield _segment(chunk)
            chunk, length = [], 0
        chunk.append(sentence)
        length += len(sentence)
    yield _segment(chunk)


def pack_full(
    documents: Iterable[TokenDocument], *, separator: NDArray[np.int32], max_tokens: int
) -> Iterator[SegmentPair]:
    """Lays the documents end to end, `separator` (an id or row) between, and cuts them into `max_tokens` each."""
    chunk: list[NDArray[np.int32]] = []
    length = 0
    for document in documents:
        # 文档之间加一个分隔符：模型看得见话题在这里换了
        for sentence in [separator, *document] if chunk else document:
            rest = sentence
            while len(rest):
                taken, rest = rest[: max_tokens - length], rest[max_tokens - length :]
                chunk.append(taken)
                length += len(taken)
                if length == max_tokens:
                    # 句子在此切断：每段一样长，一步里没有填充，注意力是一整块矩形
                    yield _segment(chunk)
                    chunk, length = [], 0
    if chunk:
        yield _segment(chunk)


def _single(sentence: NDArray[np.int32], max_tokens: int, rng: np.random.Generator) -> SegmentPair:
    return SegmentPair(_trim(sentence, max(0, len(sentence) - max_tokens), rng), sentence[:0], NO_LABEL)


def _end_of_chunk(document: TokenDocument, start: int, target: int) -> int:
    """Returns the end of the sentences from `start` that first reach the target length."""
    length = 0
    for index in range(start, len(document)):
        length += len(document[index])
        if length >= target:
            return index + 1
    return len(document)


def _consecutive(
    document: TokenDocument, start: int, end: int, rng: np.random.Generator
) -> tuple[TokenDocument, TokenDocument]:
    """Cuts a chunk in two at a random border; a chunk of one sentence goes with a neighbour of the document."""
    if end - start > 1:
        border = start + int(rng.integers(1, end - start))
        return document[start:border], document[border:end]
    border = end if end < len(document) else start
    return document[border - 1 : border], document[border : border + 1]


def _random_segment(other: TokenDocument, target: int, rng: np.random.Generator) -> TokenDocument:
    """Takes whole sentences of another document from a random one on, until the target length is reached."""
    start = int(rng.integers(len(other)))
    return other[start : _end_of_chunk(other, start, target)]


def _truncate_pair(
    first: NDArray[np.int32], second: NDArray[np.int32], max_tokens: int, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Shortens the longer segment, id by id, at a random end each time."""
    excess = len(first) + len(second) - max_tokens
    if excess <= 0:
        return first, second
    from_first = min(max(len(first) - len(second), 0), excess)
    from_second = min(max(len(second) - len(first), 0), excess)
    rest = excess - from_first - from_second
    # 先把较长的一段削到等长，剩余的再两边轮流削
    from_first += rest // 2
    from_second += rest - rest // 2
    return _trim(first, from_first, rng), _trim(second, from_second, rng)


def _trim(segment: NDArray[np.int32], count: int, rng: np.random.Generator) -> NDArray[np.int32]:
    front = int(rng.binomial(count, 0.5)) if count else 0
    return segment[front : len(segment) - (count - front)]


def _segment(chunk: list[NDArray[np.int32]]) -> SegmentPair:
    return SegmentPair(np.concatenate(chunk), chunk[0][:0], NO_LABEL)
