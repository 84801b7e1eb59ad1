"""Text to tokens by looking chunks up: the hot loop of the tokenizer, for ids alone and for ids with places.

- word frequencies follow Zipf's law: nearly every chunk of a text has been seen before. So what happens per chunk is a
  split, a dictionary lookup and a join in C; Python code runs once per batch of texts, and once per new chunk
- a new chunk's words are spelled by greedy longest match, as in the original release (Wu et al. 2016): a word that
  cannot be spelled to its end, or is longer than `max_word_chars` (100), is one `[UNK]`
- ids and places come from one set of rules: `Normalizer.words` gives the words, `WordMatcher` spells them. For places a
  text is cut without losing a character, so that a chunk's place is the sum of the lengths before it
- what is remembered stays packed until the caller's array or list is made: an id is 4 bytes, a token with its place 16.
  At this speed the time goes into waiting for memory
"""

import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokenizer.encoding import PACKED, FlatTokens, Tokens, join_tokens, split_batches
from bertsmith.tokenizer.normalize import BOUNDARY, Normalizer
from bertsmith.tokenizer.settings import WrittenTokens


class WordMatcher:
    """Spells words with the pieces of a vocabulary."""

    def __init__(self, piece_to_id: Mapping[str, int], unk_id: int, max_word_chars: int) -> None:
        self.max_word_chars = max_word_chars
        self.unknown = pack_id(unk_id)
        self.lengths = {index: len(piece.removeprefix("##")) for piece, index in piece_to_id.items()}
        self._heads = {piece: pack_id(index) for piece, index in piece_to_id.items()}
        self._tails = {piece[2:]: index for piece, index in self._heads.items() if piece.startswith("##")}
        self._longest_head = _longest_by_start(self._heads)
        self._longest_tail = _longest_by_start(self._tails)

    def spell(self, word: str) -> bytes:
        """Spells a word with the longest piece that fits, from left to right."""
        if len(word) > self.max_word_chars:
            return self.unknown
        # 大半的词本身就在词表里：直接返回事先打包好的 id，不分配内存
        return self._heads.get(word) or self._longest_match(word, self._heads, self._longest_head)

    def spell_inside(self, part: str) -> bytes:
        """Spells a part of a word that is not its beginning: with pieces inside words alone."""
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
    """Packs one id."""
    return index.to_bytes(PACKED.itemsize, sys.byteorder, signed=True)


def _longest_by_start(pieces: Iterable[str]) -> dict[str, int]:
    """Finds the length of the longest piece for every two characters that pieces start with."""
    longest: dict[str, int] = {}
    for piece in pieces:
        start = piece[:2]
        if longest.get(start, 0) < len(piece):
            longest[start] = len(piece)
    return longest


T = TypeVar("T")

MAX_CACHED_CHARS = 64
# 每个条目自身（字典槽、字符串头、元组头）约合这么多个字符的内存
ENTRY_WEIGHT = 16


class ChunkCache(dict[str, T], Generic[T]):
    """Maps a chunk to what `compute` returns for it, and remembers the most useful ones.

    `capacity` is the weight of one generation; two are alive. An entry weighs its characters and `ENTRY_WEIGHT`.
    """

    def __init__(self, compute: Callable[[str], T], capacity: int) -> None:
        super().__init__()
        self.compute = compute
        self.capacity = capacity
        self._room = capacity
        self._old: dict[str, T] = {}

    def __missing__(self, chunk: str) -> T:
        """Finds the chunk in the old generation, or computes it; remembers it unless it is very long."""
        value = self._old.get(chunk)
        if value is None:
            value = self.compute(chunk)
        length = len(chunk)
        # 很长的块几乎不会重复（网址、无空格的文本），存下来只占内存
        if length <= MAX_CACHED_CHARS:
            self._room -= length + ENTRY_WEIGHT
            if self._room < 0:
                # 满了就整代换掉：仍有用的条目会在下次被查到时搬回新一代
                self._old = dict(self)
                self.clear()
                self._room = self.capacity - length - ENTRY_WEIGHT
            self[chunk] = value
        return value


END_OF_TEXT = -1
"""The mark after the ids of each text of a batch."""

_BATCH_CHARS = 1 << 14
_TOKEN = struct.Struct("=4i")
"""A token with its place in a chunk: id, first character, one past the last, number of the word."""
_PLACE = struct.Struct("=3i")
"""The same without the id."""


class TextEncoder:
    """Turns texts into packed ids, or into tokens with their places."""

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
        """Turns a text into packed ids, tokens that are `written` in it among them."""
        if written is None:
            return b"".join(map(self._lookup_ids, self._normalizer.chunks(text)))
        return b"".join(
            self.encode(part, None) if index is None else pack_id(index) for part, _, index in written.split(text)
        )

    def encode_marked(self, texts: Sequence[str], written: WrittenTokens | None) -> bytes:
        """Turns several texts into packed ids, `END_OF_TEXT` after each; best some ten thousand characters in all."""
        if written is None:
            # 整批合成一个字符串，一次切分、一次查表：短行不必各付一遍函数调用的开销
            return b"".join(map(self._lookup_ids, self._normalizer.marked_chunks(texts)))
        return b"".join(self.encode(text, written) + self._end for text in texts)

    def align(self, text: str, written: WrittenTokens | None) -> Tokens:
        """Turns a text into tokens with their places."""
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
        """Turns many texts into arrays: for a corpus, several times faster than text by text."""
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
