"""Text to ids by looking chunks up: the hot loop of the tokenizer.

Everything that happens per chunk of text here happens in C: `str.split`, a dictionary lookup, an iterator that chains
the results. Python code runs once per text, and once per chunk that was never seen (`cache`).
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from bertsmith.tokenizer.cache import ChunkCache
from bertsmith.tokenizer.characters import ASCII_PUNCTUATION
from bertsmith.tokenizer.match import WordMatcher
from bertsmith.tokenizer.normalize import Normalizer
from bertsmith.tokenizer.special import WrittenTokens


class TextEncoder:
    """Turns texts into ids.

    Attributes:
        memory: the chunks seen so far and their ids.
    """

    def __init__(self, normalizer: Normalizer, matcher: WordMatcher, capacity: int) -> None:
        self._normalizer = normalizer
        self._spell = matcher.spell
        self.memory = ChunkCache(self._chunk_ids, capacity)
        self._lookup = self.memory.__getitem__

    def encode(self, text: str, written: WrittenTokens | None) -> Iterable[tuple[int, ...]]:
        """Turns a text into ids.

        Args:
            text: any text.
            written: tokens to recognise in it.

        Returns:
            The ids, a tuple for each chunk of the text.
        """
        if written is None:
            return map(self._lookup, self._normalizer.chunks(text))
        return self._encode_written(text, written)

    def _encode_written(self, text: str, written: WrittenTokens) -> Iterator[tuple[int, ...]]:
        for part, _, index in written.split(text):
            if index is not None:
                yield (index,)
            else:
                yield from map(self._lookup, self._normalizer.chunks(part))

    def _chunk_ids(self, chunk: str) -> tuple[int, ...]:
        """Does the careful work for a chunk that is not remembered."""
        if chunk.isascii():
            text = chunk.lower() if self._normalizer.lowercase else chunk
            # 新块里四成只含字母数字，就是一个词：省去清理与切分
            if text.isalnum():
                return self._spell(text)
            # 其余多半是词加句末标点：词本身通常已在缓存里，标点逐个成词
            body = text.rstrip(ASCII_PUNCTUATION)
            if body.isalnum():
                return self._lookup(body) + tuple(chain.from_iterable(map(self._spell, text[len(body) :])))
        elif len(chunk) == 1 and "\u4e00" <= chunk <= "\u9fff":
            # 基本区的单个汉字，规范化不会改变它
            return self._spell(chunk)
        return tuple(chain.from_iterable(map(self._spell, self._normalizer.words(chunk))))
