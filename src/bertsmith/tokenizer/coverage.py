"""How well a vocabulary suits a text: what its words cost in pieces, what it cannot spell, and which words to add.

A vocabulary of another text cuts a domain's terms into many pieces: sequences grow longer, and the model has to put a
word together that it has never seen whole.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bertsmith.tokenizer.base import Tokenizer
from bertsmith.tokenizer.encoding import split_batches

_BATCH_CHARS = 1 << 20

MAX_WORDS = 1 << 19
"""Distinct costly words that are counted; when there are more, those seen least are forgotten."""


@dataclass(frozen=True)
class Coverage:
    """What a vocabulary makes of a text.

    A Chinese character is a word; `unknown` words have a part that the vocabulary cannot spell. `costly`: words of
    several pieces or with an unknown part → how often they occur, and their pieces.
    """

    characters: int
    words: int
    pieces: int
    whole: int
    unknown: int
    costly: dict[str, tuple[int, int]]

    @property
    def pieces_per_word(self) -> float:
        """1 where every word is a piece; a general English vocabulary has about 1.2 on general English."""
        return self.pieces / max(1, self.words)

    def costliest(self, count: int, *, min_frequency: int = 2) -> list[str]:
        """Returns at most `count` words whose own piece would save most; a vector needs to be seen to be learned."""
        frequent = [
            (word, times * (pieces - 1)) for word, (times, pieces) in self.costly.items() if times >= min_frequency
        ]
        # 平局按字面排序：同样的文本总得出同样的词
        return [word for word, _ in sorted(frequent, key=lambda pair: (-pair[1], pair[0]))[:count]]


def measure_coverage(tokenizer: Tokenizer, texts: Iterable[str], *, max_characters: int = 50_000_000) -> Coverage:
    """Counts what a tokenizer makes of the first `max_characters` of lines or documents."""
    characters, words, pieces, whole, unknown = 0, 0, 0, 0, 0
    times: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    for batch in split_batches(texts, _BATCH_CHARS):
        tokens = tokenizer.align_flat(batch)
        text_of = np.repeat(np.arange(len(batch)), np.diff(tokens.bounds))
        # 每个词的第一个词片：文本变了，或词的编号变了
        first = np.flatnonzero(
            np.diff(text_of, prepend=-1).astype(bool) | np.diff(tokens.word_ids, prepend=-1).astype(bool)
        )
        counts = np.diff(first, append=len(tokens.ids))
        # 字节级词表没有 [UNK]：什么都拼得出
        unknown_ids = tokens.ids == (-1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id)
        strange = np.add.reduceat(unknown_ids, first) > 0 if len(first) else counts > 0
        characters, words, pieces = characters + sum(map(len, batch)), words + len(first), pieces + len(tokens.ids)
        whole, unknown = whole + int(((counts == 1) & ~strange).sum()), unknown + int(strange.sum())
        for at in np.flatnonzero((counts > 1) | strange).tolist():
            start, size = first[at], int(counts[at])
            # 分词器怎么读就怎么记：去掉重音之后，naïveté 与 naivete 是同一个词
            word = tokenizer.normalized(batch[text_of[start]][tokens.starts[start] : tokens.ends[start + size - 1]])
            times[word] += 1
            # 拼不出的词至少算两片：它最需要自己的词片
            sizes[word] = max(2, size)
        if len(times) > MAX_WORDS:
            times = Counter(dict(times.most_common(MAX_WORDS // 2)))
            sizes = {word: sizes[word] for word in times}
        if characters >= max_characters:
            break
    return Coverage(characters, words, pieces, whole, unknown, {word: (n, sizes[word]) for word, n in times.items()})
