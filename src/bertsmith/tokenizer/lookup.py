"""Text to tokens by looking chunks up: the hot loop of the tokenizer, for ids alone and for ids with places.

Notable:
- what happens per chunk of a text happens in C: a split, a dictionary lookup, a join of the results; Python code runs
  once per batch of texts and once per chunk that was never seen (`cache`)
- ids and places come from one set of rules: `Normalizer.words` gives the words, `WordMatcher` spells them. Places only
  add where the characters of those words stand in the text
- for places a text is cut without losing a character, so a chunk's place is the sum of the lengths before it
- what is remembered stays packed (`match`) until the caller's array or list is made: an id is 4 bytes, a token with its
  place 16. At this speed the time goes into waiting for memory
"""

import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokenizer.batches import split_batches
from bertsmith.tokenizer.cache import ChunkCache
from bertsmith.tokenizer.flat import FlatTokens, Tokens, join_tokens
from bertsmith.tokenizer.match import PACKED, WordMatcher, pack_id
from bertsmith.tokenizer.normalize import BOUNDARY, Normalizer
from bertsmith.tokenizer.settings import WrittenTokens

END_OF_TEXT = -1
"""The mark after the ids of each text of a batch."""

_BATCH_CHARS = 1 << 14
_TOKEN = struct.Struct("=4i")
"""A token with its place in a chunk: id, first character, one past the last, number of the word."""
_PLACE = struct.Struct("=3i")
"""The same without the id."""


class TextEncoder:
    """Turns texts into packed ids, or into tokens with their places.

    Attributes:
        ids: the chunks seen so far and their packed ids.
        tokens: the chunks seen so far and their packed tokens.
    """

    def __init__(self, normalizer: Normalizer, matcher: WordMatcher, capacity: int) -> None:
        self._normalizer = normalizer
        self._spell = matcher.spell
        self._lengths = matcher.lengths
        self._end = pack_id(END_OF_TEXT)
        self.ids = ChunkCache(self._chunk_ids, capacity)
        self.tokens = ChunkCache(self._chunk_tokens, capacity)
        self._lookup_ids = self.ids.__getitem__
        self._lookup_tokens = self.tokens.__getitem__

    def encode(self, text: str, written: WrittenTokens | None) -> bytes:
        """Turns a text into ids.

        Args:
            text: any text.
            written: tokens to recognise in it.

        Returns:
            The packed ids.
        """
        if written is None:
            return b"".join(map(self._lookup_ids, self._normalizer.chunks(text)))
        return b"".join(
            self.encode(part, None) if index is None else pack_id(index) for part, _, index in written.split(text)
        )

    def encode_marked(self, texts: Sequence[str], written: WrittenTokens | None) -> bytes:
        """Turns several texts into ids.

        Args:
            texts: any texts; best some ten thousand characters in all.
            written: tokens to recognise in them.

        Returns:
            The packed ids of all texts, `END_OF_TEXT` after each.
        """
        if written is None:
            # 整批合成一个字符串，一次切分、一次查表：短行不必各付一遍函数调用的开销
            return b"".join(map(self._lookup_ids, self._normalizer.marked_chunks(texts)))
        return b"".join(self.encode(text, written) + self._end for text in texts)

    def align(self, text: str, written: WrittenTokens | None) -> Tokens:
        """Turns a text into tokens with their places.

        Args:
            text: any text.
            written: tokens to recognise in it.

        Returns:
            Its tokens; a text that holds no word has none.
        """
        tokens = Tokens([], [], [])
        if written is None:
            self._append(tokens, text, 0, 0)
            return tokens
        num_words = 0
        for part, begin, index in written.split(text):
            if index is None:
                num_words = self._append(tokens, part, begin, num_words)
            else:
                tokens.ids.append(index)
                tokens.offsets.append((begin, begin + len(part)))
                tokens.word_ids.append(num_words)
                num_words += 1
        return tokens

    def align_flat(self, texts: Iterable[str], written: WrittenTokens | None) -> FlatTokens:
        """Turns many texts into arrays: for a corpus, several times faster than text by text.

        Args:
            texts: any texts.
            written: tokens to recognise in them.

        Returns:
            Their tokens.
        """
        # 分成小批：每批的中间结果留在高速缓存里，比一次处理整个语料快一半
        return join_tokens([self._align_batch(batch, written) for batch in split_batches(texts, _BATCH_CHARS)])

    def _align_batch(self, texts: Sequence[str], written: WrittenTokens | None) -> FlatTokens:
        chunks: list[str] = []
        recognised: dict[int, bytes] = {}
        stretch_begins, stretch_gaps, stretch_ends, text_ends = [], [], [0], [0]
        for text in texts:
            for stretch, begin, index in ((text, 0, None),) if written is None else written.split(text):
                if index is None:
                    parts, gap = self._normalizer.placed_chunks(stretch)
                    chunks += parts
                else:
                    # 写在文本里的词元自成一块；它不走规则，查表之后换成它自己的记录
                    recognised[len(chunks)] = _TOKEN.pack(index, 0, len(stretch), 0)
                    chunks.append("")
                    gap = 0
                stretch_begins.append(begin)
                stretch_gaps.append(gap)
                stretch_ends.append(len(chunks))
            text_ends.append(len(chunks))
        found = list(map(self._lookup_tokens, chunks))
        for place, token in recognised.items():
            found[place] = token
        columns = np.frombuffer(b"".join(found), dtype=PACKED).reshape(-1, 4)
        sizes = np.fromiter(map(len, found), dtype=np.int64, count=len(found)) // _TOKEN.size
        # 按块累加长度与词数，就得到每块的起点与首个词号：全程没有逐 token 的 Python 循环
        lengths = np.fromiter(map(len, chunks), dtype=np.int64, count=len(chunks))
        lengths += _spread(np.array(stretch_gaps, dtype=np.int64), stretch_ends)
        last_tokens = np.cumsum(sizes) - 1
        words = np.where(sizes > 0, columns[last_tokens, 3] + 1 if len(columns) else 0, 0)
        begins = _running_start(lengths, stretch_ends) + _spread(np.array(stretch_begins, dtype=np.int64), stretch_ends)
        begins, first_words = np.repeat(begins, sizes), np.repeat(_running_start(words, text_ends), sizes)
        return FlatTokens(
            columns[:, 0].copy(),
            np.concatenate([[0], np.cumsum(sizes)])[text_ends],
            (columns[:, 1] + begins).astype(np.int32),
            (columns[:, 2] + begins).astype(np.int32),
            (columns[:, 3] + first_words).astype(np.int32),
        )

    def _append(self, tokens: Tokens, text: str, begin: int, num_words: int) -> int:
        """Appends the tokens of a stretch of text; returns how many words there are now."""
        ids, offsets, word_ids = tokens
        chunks, gap = self._normalizer.placed_chunks(text)
        for chunk in chunks:
            packed = self._lookup_tokens(chunk)
            # 绝大多数词只是一个词片：给它单独一支，省去迭代器
            if len(packed) == _TOKEN.size:
                index, start, end, _ = _TOKEN.unpack(packed)
                ids.append(index)
                offsets.append((begin + start, begin + end))
                word_ids.append(num_words)
                num_words += 1
            elif packed:
                for index, start, end, word in _TOKEN.iter_unpack(packed):
                    ids.append(index)
                    offsets.append((begin + start, begin + end))
                    word_ids.append(num_words + word)
                num_words += word + 1
            begin += len(chunk) + gap
        return num_words

    def _chunk_ids(self, chunk: str) -> bytes:
        """Does the careful work for a chunk that is not remembered."""
        if chunk == BOUNDARY:
            return self._end
        words = self._normalizer.words(chunk)
        return self._spell(words[0]) if len(words) == 1 else b"".join(map(self._spell, words))

    def _chunk_tokens(self, chunk: str) -> bytes:
        """Does the careful work for a chunk that is not remembered: the same as for ids, with places."""
        spell, lengths, pack = self._spell, self._lengths, _PLACE.pack
        tokens: list[bytes] = []
        number = 0
        for words, sources in self._normalizer.aligned_words(chunk):
            start = 0
            for word in words:
                ids = spell(word)
                # 一个词一个 token 时（包括 [UNK]）跨度就是整个词
                if len(ids) == PACKED.itemsize:
                    end = start + len(word)
                    tokens += (ids, pack(sources[start], sources[end - 1] + 1, number))
                    start = end
                else:
                    for index in memoryview(ids).cast("i"):
                        end = start + lengths[index]
                        tokens += (pack_id(index), pack(sources[start], sources[end - 1] + 1, number))
                        start = end
                number += 1
        return b"".join(tokens)


def _spread(values: NDArray[np.int64], ends: Sequence[int]) -> NDArray[np.int64]:
    """Repeats the value of each group for its members; `ends` says where groups end, with a leading 0."""
    return np.repeat(values, np.diff(ends))


def _running_start(sizes: NDArray[np.int64], ends: Sequence[int]) -> NDArray[np.int64]:
    """Finds where each member starts when the members of a group lie one behind the other; `ends` as in `_spread`."""
    before = np.concatenate([[0], np.cumsum(sizes)])
    return before[:-1] - _spread(before[ends[:-1]], ends)
