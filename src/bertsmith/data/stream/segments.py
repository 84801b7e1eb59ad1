"""From documents to single segments, for objectives without a second one: masked LM alone, left-to-right LM.

Two ways of packing:
- `draw_segments`: full sentences of one document up to the length (Liu et al. 2019, §4.2, "DOC-SENTENCES"); a sentence
  is cut only where it is longer than a whole sequence
- `pack_full`: everything end to end across document borders, `[SEP]` between, cut wherever a sequence is full. Their
  "FULL-SENTENCES" cuts at the end of a sentence; a sixth of a batch of 128 is then missing, and what is there is ragged
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.stream.pairs import NO_LABEL, SegmentPair, TokenDocument


def draw_segments(
    document: TokenDocument, *, max_tokens: int, short_probability: float, rng: np.random.Generator
) -> Iterator[SegmentPair]:
    """Packs the sentences of one document.

    Args:
        document: at least one sentence, none of them empty.
        max_tokens: most ids in a segment, special tokens not counted.
        short_probability: share of documents whose segments end at the first sentence that reaches a random shorter
            length, so that the model also meets short input.
        rng: source of all draws.

    Yields:
        Segments without a second one and without a label; together they are the document.
    """
    target = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_probability else max_tokens
    chunk: list[NDArray[np.int32]] = []
    length = 0
    for sentence in _fitting(document, max_tokens):
        if chunk and (length >= target or length + len(sentence) > max_tokens):
            yield _segment(chunk)
            chunk, length = [], 0
        chunk.append(sentence)
        length += len(sentence)
    yield _segment(chunk)


def pack_full(
    documents: Iterable[TokenDocument], *, separator: NDArray[np.int32], max_tokens: int
) -> Iterator[SegmentPair]:
    """Lays the documents end to end and cuts them into segments of equal length.

    Args:
        documents: in the order in which they are to follow one another.
        separator: one id (or row), which stands between the end of a document and the beginning of the next.
        max_tokens: ids in a segment, the ones between documents counted.

    Yields:
        Segments without a second one and without a label; only the last may be shorter than `max_tokens`.
    """
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


def _fitting(document: TokenDocument, max_tokens: int) -> Iterator[NDArray[np.int32]]:
    for sentence in document:
        for start in range(0, len(sentence), max_tokens):
            yield sentence[start : start + max_tokens]


def _segment(chunk: list[NDArray[np.int32]]) -> SegmentPair:
    return SegmentPair(np.concatenate(chunk), chunk[0][:0], NO_LABEL)
