"""Tokens with their places: character offsets into the original text, and the word each token belongs to.

Notable:
- a chunk's tokens are found once, with places relative to the chunk, and remembered; a text only adds up lengths
- the text is cut without losing a character (`Normalizer.placed_chunks`), so no search for positions is needed
- what is remembered is four packed integers a token: at this speed the time goes into waiting for memory
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokenizer.batches import split_batches
from bertsmith.tokenizer.cache import ChunkCache
from bertsmith.tokenizer.flat import FlatTokens, join_tokens
from bertsmith.tokenizer.match import PACKED, WordMatcher, pack_id
from bertsmith.tokenizer.normalize import Normalizer
from bertsmith.tokenizer.special import WrittenTokens

_BATCH_CHARS = 1 << 14
_TOKEN = struct.Struct("=4i")
_PLACE = struct.Struct("=3i")


class Tokens(NamedTuple):
    """The tokens of one text, column by column, without special tokens around them.

    `offsets` are (start, end) characters of the original text; `word_ids` count the words of the text from 0.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int]


class TokenAligner:
    """Tokenizes texts with offsets and word ids.

    Attributes:
        memory: the chunks seen so far and their tokens.
    """

    def __init__(self, normalizer: Normalizer, matcher: WordMatcher, vocab: Sequence[str], capacity: int) -> None:
        self._normalizer = normalizer
        self._matcher = matcher
        self._lengths = [len(piece) - 2 if piece.startswith("##") else len(piece) for piece in vocab]
        # 值是打包的 (id, 起, 止, 第几个词) × token 数：一个 token 的全部内容只占一条缓存行
        self.memory: ChunkCache[bytes] = ChunkCache(self._chunk_spans, capacity)
        self._lookup = self.memory.__getitem__

    def align(self, text: str, written: WrittenTokens | None = None) -> Tokens:
        """Tokenizes a text.

        Args:
            text: any text.
            written: tokens to recognise in the text.

        Returns:
            Its tokens; a text that holds no word has none.
        """
        tokens = Tokens([], [], [])
        if written is None:
            self._add(text, 0, 0, tokens)
            return tokens
        num_words = 0
        for part, begin, index in written.split(text):
            if index is None:
                num_words = self._add(part, begin, num_words, tokens)
            else:
                tokens.ids.append(index)
                tokens.offsets.append((begin, begin + len(part)))
                tokens.word_ids.append(num_words)
                num_words += 1
        return tokens

    def align_flat(self, texts: Iterable[str], written: WrittenTokens | None = None) -> FlatTokens:
        """Tokenizes many texts into arrays: for a corpus, several times faster than text by text.

        Args:
            texts: any texts.
            written: tokens to recognise in the texts.

        Returns:
            Their tokens.
        """
        if written is not None:
            return _flatten([self.align(text, written) for text in texts])
        # 分成小批：每批的中间结果留在高速缓存里，比一次处理整个语料快一半
        batches = [self._align_batch(batch) for batch in split_batches(texts, _BATCH_CHARS)]
        return join_tokens(batches)

    def _align_batch(self, texts: Sequence[str]) -> FlatTokens:
        chunks: list[str] = []
        ends, gaps = [0], []
        for text in texts:
            parts, gap = self._normalizer.placed_chunks(text)
            chunks += parts
            ends.append(len(chunks))
            gaps.append(gap)
        found = list(map(self._lookup, chunks))
        columns = np.frombuffer(b"".join(found), dtype=PACKED).reshape(-1, 4)
        sizes = np.fromiter(map(len, found), dtype=np.int64, count=len(found)) // _TOKEN.size
        lengths = np.fromiter(map(len, chunks), dtype=np.int64, count=len(chunks))
        # 先按块累加长度得到块的起点，再减去所在文本的起点；词号同理。全程没有逐 token 的 Python 循环
        first_chunks = np.array(ends[:-1], dtype=np.int64)
        chunks_per_text = np.diff(np.array(ends))
        begins = _running_start(lengths + np.repeat(np.array(gaps, dtype=np.int64), chunks_per_text))
        begins -= np.repeat(begins[first_chunks], chunks_per_text)
        last_tokens = np.cumsum(sizes) - 1
        words = np.where(sizes > 0, columns[last_tokens, 3] + 1 if len(columns) else 0, 0)
        first_words = _running_start(words)
        first_words -= np.repeat(first_words[first_chunks], chunks_per_text)
        begin = np.repeat(begins, sizes)
        bounds = np.concatenate([[0], np.cumsum(sizes)])[ends]
        return FlatTokens(
            columns[:, 0].copy(),
            bounds,
            (columns[:, 1] + begin).astype(np.int32),
            (columns[:, 2] + begin).astype(np.int32),
            (columns[:, 3] + np.repeat(first_words, sizes)).astype(np.int32),
        )

    def _add(self, text: str, begin: int, num_words: int, tokens: Tokens) -> int:
        """Appends the tokens of a stretch of text; returns how many words there are now."""
        ids, offsets, word_ids = tokens
        chunks, gap = self._normalizer.placed_chunks(text)
        for chunk in chunks:
            spans = self._lookup(chunk)
            if len(spans) == _TOKEN.size:
                index, start, end, _ = _TOKEN.unpack(spans)
                ids.append(index)
                offsets.append((begin + start, begin + end))
                word_ids.append(num_words)
                num_words += 1
            elif spans:
                for index, start, end, word in _TOKEN.iter_unpack(spans):
                    ids.append(index)
                    offsets.append((begin + start, begin + end))
                    word_ids.append(num_words + word)
                num_words += word + 1
            begin += len(chunk) + gap
        return num_words

    def _chunk_spans(self, chunk: str) -> bytes:
        """Does the careful work for a chunk that is not remembered."""
        spell, pack = self._matcher.spell, _PLACE.pack
        spans: list[bytes] = []
        for number, (word, sources) in enumerate(self._normalizer.aligned_words(chunk)):
            ids = spell(word)
            # 一个词一个 token 时（包括 [UNK]）跨度就是整个词
            if len(ids) == PACKED.itemsize:
                spans += (ids, pack(sources[0], sources[-1] + 1, number))
                continue
            first = 0
            for index in memoryview(ids).cast("i"):
                last = first + self._lengths[index] - 1
                spans += (pack_id(index), pack(sources[first], sources[last] + 1, number))
                first = last + 1
        return b"".join(spans)


def _running_start(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each part starts when parts of these sizes lie one behind the other."""
    return np.cumsum(sizes) - sizes


def _flatten(texts: Sequence[Tokens]) -> FlatTokens:
    """Joins the tokens of several texts."""
    bounds = np.cumsum([0, *(len(tokens.ids) for tokens in texts)])
    ids, starts, ends, word_ids = (
        np.fromiter(chain.from_iterable(column), dtype=np.int32)
        for column in (
            (tokens.ids for tokens in texts),
            ((start for start, _ in tokens.offsets) for tokens in texts),
            ((end for _, end in tokens.offsets) for tokens in texts),
            (tokens.word_ids for tokens in texts),
        )
    )
    return FlatTokens(ids, bounds, starts, ends, word_ids)
