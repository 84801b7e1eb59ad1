"""The shapes in which tokens leave the tokenizer: arrays over many texts, lists for one.

A Python list of ints costs eight bytes an id and a walk to read it; a corpus has billions of ids. Here packed ids
(`match`) become one numpy array without ever having been Python integers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokenizer.match import PACKED


class FlatIds(NamedTuple):
    """The ids of N texts, one after another.

    Attributes:
        ids: [T] int32, all ids.
        bounds: [N+1] int64; text n has `ids[bounds[n]:bounds[n+1]]`.
    """

    ids: NDArray[np.int32]
    bounds: NDArray[np.int64]

    @classmethod
    def from_marked(cls, packed: bytes) -> "FlatIds":
        """Takes the end marks out of a stream of ids.

        Args:
            packed: T+N packed ids, a -1 after those of each text.

        Returns:
            The ids and their bounds.
        """
        marked = np.frombuffer(packed, dtype=PACKED)
        ends = np.flatnonzero(marked < 0)
        bounds = np.zeros(len(ends) + 1, dtype=np.int64)
        # 第 n 个结束标记之前还有 n 个标记，减去它们就是纯 id 的位置
        np.subtract(ends, np.arange(len(ends)), out=bounds[1:])
        return cls(np.delete(marked, ends), bounds)


class Tokens(NamedTuple):
    """The tokens of one text as lists, without special tokens around them.

    `offsets` are (start, end) characters of the original text; `word_ids` count the words of the text from 0.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int]


class FlatTokens(NamedTuple):
    """The tokens of N texts with their places, one after another.

    Attributes:
        ids: [T] int32, all ids.
        bounds: [N+1] int64; text n has `ids[bounds[n]:bounds[n+1]]`, and so on for the columns below.
        starts: [T] int32, the first character of each token in its text.
        ends: [T] int32, one past its last character.
        word_ids: [T] int32, the word of its text, counted from 0.
    """

    ids: NDArray[np.int32]
    bounds: NDArray[np.int64]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    word_ids: NDArray[np.int32]


def join_tokens(parts: Sequence[FlatTokens]) -> FlatTokens:
    """Puts the tokens of several batches of texts one behind the other.

    Args:
        parts: the batches in order.

    Returns:
        The same tokens as one.
    """
    empty = np.zeros(0, dtype=np.int32)
    columns = {
        name: np.concatenate([empty, *(getattr(part, name) for part in parts)])
        for name in ("ids", "starts", "ends", "word_ids")
    }
    sizes = [np.zeros(1, dtype=np.int64), *(np.diff(part.bounds) for part in parts)]
    return FlatTokens(bounds=np.cumsum(np.concatenate(sizes)), **columns)
