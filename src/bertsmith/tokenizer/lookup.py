"""Text to ids by looking chunks up: the hot loop of the tokenizer.

Everything that happens per chunk of text here happens in C: `str.split`, a dictionary lookup, a join of the results.
Python code runs once per batch of texts, and once per chunk that was never seen (`cache`). Ids stay packed (`match`)
until the caller's array or list is made.
"""

from collections.abc import Sequence

from bertsmith.tokenizer.cache import ChunkCache
from bertsmith.tokenizer.characters import ASCII_PUNCTUATION
from bertsmith.tokenizer.match import WordMatcher, pack_id
from bertsmith.tokenizer.normalize import BOUNDARY, Normalizer
from bertsmith.tokenizer.special import WrittenTokens

END_OF_TEXT = -1
"""The mark after the ids of each text of a batch."""


class TextEncoder:
    """Turns texts into packed ids.

    Attributes:
        memory: the chunks seen so far and their packed ids.
    """

    def __init__(self, normalizer: Normalizer, matcher: WordMatcher, capacity: int) -> None:
        self._normalizer = normalizer
        self._spell = matcher.spell
        self._end = pack_id(END_OF_TEXT)
        self.memory = ChunkCache(self._chunk_ids, capacity)
        self._lookup = self.memory.__getitem__

    def encode(self, text: str, written: WrittenTokens | None) -> bytes:
        """Turns a text into ids.

        Args:
            text: any text.
            written: tokens to recognise in it.

        Returns:
            The packed ids.
        """
        if written is None:
            return b"".join(map(self._lookup, self._normalizer.chunks(text)))
        return b"".join(
            b"".join(map(self._lookup, self._normalizer.chunks(part))) if index is None else pack_id(index)
            for part, _, index in written.split(text)
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
            return b"".join(map(self._lookup, self._normalizer.marked_chunks(texts)))
        return b"".join(self.encode(text, written) + self._end for text in texts)

    def _chunk_ids(self, chunk: str) -> bytes:
        """Does the careful work for a chunk that is not remembered."""
        if chunk.isascii():
            text = chunk.lower() if self._normalizer.lowercase else chunk
            # 新块里四成只含字母数字，就是一个词：省去清理与切分
            if text.isalnum():
                return self._spell(text)
            # 其余多半是词加句末标点：词本身通常已在缓存里，标点逐个成词
            body = text.rstrip(ASCII_PUNCTUATION)
            if body.isalnum():
                return self._lookup(body) + b"".join(map(self._spell, text[len(body) :]))
            if chunk == BOUNDARY:
                return self._end
        elif len(chunk) == 1 and "\u4e00" <= chunk <= "\u9fff":
            # 基本区的单个汉字，规范化不会改变它
            return self._spell(chunk)
        return b"".join(map(self._spell, self._normalizer.words(chunk)))
