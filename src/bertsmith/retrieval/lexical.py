"""Search by words: BM25 (Robertson and Zaragoza 2009), computed by the library `bm25s`.

Words are lower-cased, without accents and punctuation, as the tokenizer of BERT finds them; they do not depend on a
model. Chinese is written without spaces: every character counts as a word, and so does every pair of neighbours, which
finds more than characters alone and, on XQuAD, no less than the words of a dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError
from bertsmith.retrieval.ranking import best
from bertsmith.tokenizer.normalize import Normalizer

_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
_STRETCH = re.compile(rf"{_CHINESE.pattern}|(?:(?!{_CHINESE.pattern})\w)+")
_NORMALIZER = Normalizer()


def words_of(text: str) -> list[str]:
    """Returns the words of a text by which it is found."""
    words: list[str] = []
    chinese = ""
    for chunk in _NORMALIZER.chunks(text):
        for word in _NORMALIZER.words(chunk):
            if _CHINESE.fullmatch(word):
                # 相邻两字成对：单字太常见，分不出主题
                words += [word, chinese + word] if chinese else [word]
                chinese = word
            else:
                chinese = ""
                if any(map(str.isalnum, word)):
                    words.append(word)
    return words


def places_of(text: str, words: Set[str]) -> list[tuple[int, int]]:
    """Returns where words stand in a text: start and end of each stretch, in order, neighbours in Chinese as one."""
    places: list[tuple[int, int]] = []
    for match in _STRETCH.finditer(text):
        if words.isdisjoint(words_of(match[0])):
            continue
        if places and places[-1][1] == match.start():
            places[-1] = (places[-1][0], match.end())
        else:
            places.append(match.span())
    return places


class LexicalSearch:
    """Finds texts by the words they share with a query."""

    def __init__(self, engine: Any, count: int) -> None:
        """Takes what `load` and `build` make.

        Args:
            engine: a `bm25s.BM25`.
            count: N, how many texts it knows.
        """
        self._engine = engine
        self._count = count

    @classmethod
    def build(cls, texts: Iterable[str]) -> LexicalSearch:
        """Counts the words of N texts, at least one."""
        ids: dict[str, int] = {}
        rows = [[ids.setdefault(word, len(ids)) for word in words_of(text)] for text in texts]
        engine = _bm25s().BM25()
        # 全是标点的文本也要占一行，行号才与向量对得上
        ids.setdefault("", len(ids))
        # 一个词也没有时平均长度为零：除法没有结果，也没有谁用到它
        with np.errstate(invalid="ignore"):
            engine.index((rows, ids), show_progress=False)
        return cls(engine, len(rows))

    def save(self, folder: Path) -> None:
        """Writes the counts as `.npy` and JSON files."""
        self._engine.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path) -> LexicalSearch:
        """Opens what `save` wrote; the arrays stay on disk until they are read."""
        engine = _bm25s().BM25.load(folder, mmap=True, show_progress=False)
        return cls(engine, engine.scores["num_docs"])

    def scores(self, query: str) -> NDArray[np.float32]:
        """Scores all texts.

        Returns:
            [N] float32, at least 0; 0 where a text shares no word with the query.
        """
        known = [self._engine.vocab_dict[word] for word in words_of(query) if word in self._engine.vocab_dict]
        if not known:
            return np.zeros(self._count, dtype=np.float32)
        found: NDArray[np.float32] = self._engine.get_scores_from_ids(known)
        return found

    def search(
        self, query: str, k: int, rows: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Finds the texts with the highest scores.

        Args:
            query: words.
            k: how many, at least 1.
            rows: the only ones to look at, ascending; None for all.

        Returns:
            [n] rows and [n] scores, best first, n ≤ k: texts that share no word with the query are left out.
        """
        scores = self.scores(query)
        scores = scores if rows is None else scores[rows]
        top = best(scores, k)
        top = top[scores[top] > 0]
        return (top if rows is None else rows[top]), scores[top]


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError:
        raise ConfigError("bm25s is not installed; pip install 'bertsmith[search]'") from None
    return bm25s
