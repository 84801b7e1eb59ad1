"""Greedy longest match: a word to the ids of its pieces, as in the original release (Wu et al. 2016).

Notable:
- a word that cannot be spelled to its end, or is longer than `max_word_chars` (100), is one `[UNK]`
- pieces inside a word are kept in a table of their own, without `##`, so that trying one costs a slice and a lookup
- a word costs at most `max_word_chars` times the longest piece, whatever it is
- ids come packed, four bytes each: one small `bytes` object is read with fewer waits for memory than a tuple and its
  integers, and joining them is a copy
"""

import sys
from collections.abc import Iterable, Mapping

import numpy as np

PACKED = np.dtype(np.int32)
"""What a packed id is: an int32 in the machine's own byte order."""


class WordMatcher:
    """Spells words with the pieces of a vocabulary.

    Attributes:
        max_word_chars: longer words are unknown.
        unknown: the packed id of an unknown word: the one of `[UNK]`.
        lengths: how many characters of a word each piece covers, by id.
    """

    def __init__(self, piece_to_id: Mapping[str, int], unk_id: int, max_word_chars: int) -> None:
        self.max_word_chars = max_word_chars
        self.unknown = pack_id(unk_id)
        self.lengths = {index: len(piece.removeprefix("##")) for piece, index in piece_to_id.items()}
        self._heads = {piece: pack_id(index) for piece, index in piece_to_id.items()}
        self._tails = {piece[2:]: index for piece, index in self._heads.items() if piece.startswith("##")}
        self._longest_head = _longest_by_start(self._heads)
        self._longest_tail = _longest_by_start(self._tails)

    def spell(self, word: str) -> bytes:
        """Spells a word with the longest piece that fits, from left to right.

        Args:
            word: a normalised word; not empty, and either a punctuation mark or without any.

        Returns:
            The packed ids of its pieces, or `unknown`.
        """
        if len(word) > self.max_word_chars:
            return self.unknown
        # 大半的词本身就在词表里：直接返回事先打包好的 id，不分配内存
        return self._heads.get(word) or self._longest_match(word, self._heads, self._longest_head)

    def spell_inside(self, part: str) -> bytes:
        """Spells a part of a word that is not its beginning: with pieces inside words alone.

        Args:
            part: as in `spell`, without `##`.

        Returns:
            The packed ids of its pieces, or `unknown`.
        """
        if len(part) > self.max_word_chars:
            return self.unknown
        return self._longest_match(part, self._tails, self._longest_tail)

    def _longest_match(self, word: str, table: Mapping[str, bytes], longest: Mapping[str, int]) -> bytes:
        """Takes the longest piece that fits, from left to right; `table` and `longest` are those of the first piece."""
        ids: list[bytes] = []
        length, start = len(word), 0
        while start < length:
            # 贪心最长匹配：从最长的候选试起；同样开头的片段最长有多长，就从多长试起，少试一大半
            end = min(length, start + longest.get(word[start : start + 2], 1))
            while (index := table.get(word[start:end])) is None:
                end -= 1
                if end == start:
                    # 有一处拼不下去，整个词就是 [UNK]，与原版一致
                    return self.unknown
            ids.append(index)
            start = end
            table, longest = self._tails, self._longest_tail
        return b"".join(ids)


def pack_id(index: int) -> bytes:
    """Packs one id.

    Args:
        index: an id, or -1 as a mark.

    Returns:
        Four bytes.
    """
    return index.to_bytes(PACKED.itemsize, sys.byteorder, signed=True)


def _longest_by_start(pieces: Iterable[str]) -> dict[str, int]:
    """Finds the length of the longest piece for every two characters that pieces start with."""
    longest: dict[str, int] = {}
    for piece in pieces:
        start = piece[:2]
        if longest.get(start, 0) < len(piece):
            longest[start] = len(piece)
    return longest
