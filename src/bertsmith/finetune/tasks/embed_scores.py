"""The figures of sentence vectors, by what the examples are.

- pairs, and judged queries over a corpus: retrieval, every query against all texts of the file
- scored pairs: Spearman and Pearson between cosines and scores; of scores that are 0 and 1, average precision first
- classes: V-measure of k-means clusters

Vectors have length 1, so that a product is a cosine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.related import CorpusPassage, JudgedQuery, RelatedTexts, VectorExample
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.metrics.bootstrap import (
    Interval,
    average_precision_interval,
    bootstrap_interval,
    correlation_columns,
    correlation_of_means,
)
from bertsmith.finetune.metrics.clustering import cluster, v_measure
from bertsmith.finetune.metrics.ranking import ranking_scores

Vectors = NDArray[np.float32]
_BLOCK = 64
"""Queries that are compared with a corpus at a time."""
_SHOWN = 200
"""Letters of a passage in a list of mistakes."""


@dataclass(frozen=True)
class VectorScores:
    """How vectors do.

    Attributes:
        intervals: name → figure with its 95 % bootstrap interval, the one that decides first.
        mistakes: text, what was expected, what was found, and how sure or how far off it was, in [0, 1].
    """

    intervals: dict[str, Interval]
    mistakes: list[tuple[str, str, str, float]] = field(default_factory=list)


def score_vectors(examples: Sequence[VectorExample], vectors: Sequence[Vectors]) -> VectorScores:
    """Scores vectors.

    Args:
        examples: N of one kind, or the passages and queries of one corpus.
        vectors: [n, H] for each example, of its texts, of length 1.

    Raises:
        InputError: no query has a right text in the corpus.
    """
    kind = type(examples[0])
    if kind is ScoredText:
        return _of_scored(examples, vectors)
    if kind is LabelledText:
        labels: list[Any] = [example.label for example in examples if isinstance(example, LabelledText)]
        found = cluster(np.concatenate(vectors), len(set(labels)))
        return VectorScores({"v_measure": v_measure(labels, found.tolist())})
    return _of_retrieval(_Corpus.of(examples, vectors))


def _of_scored(examples: Sequence[Any], vectors: Sequence[Vectors]) -> VectorScores:
    from scipy.stats import rankdata

    scores = np.array([example.score for example in examples])
    cosines = np.array([float(pair[0] @ pair[1]) for pair in vectors])
    # 名次在全体上定好再重抽样：每次重排名次，区间几乎不变，却慢上百倍
    ranks = [rankdata(column) for column in (scores, cosines)]
    intervals = {
        "spearman": bootstrap_interval(correlation_columns(*ranks), correlation_of_means),
        "pearson": bootstrap_interval(correlation_columns(scores, cosines), correlation_of_means),
    }
    if set(scores.tolist()) == {0.0, 1.0}:
        intervals = {"average_precision": average_precision_interval(scores > 0, cosines), **intervals}
    gaps = np.abs(ranks[0] - ranks[1]) / len(scores)
    mistakes = [
        (f"{example.text} ⏐ {example.pair}", f"{example.score:g}", f"{cosine:.3g}", float(gap))
        for example, cosine, gap in zip(examples, cosines, gaps, strict=True)
    ]
    return VectorScores(intervals, mistakes)


@dataclass(frozen=True)
class _Corpus:
    """What queries are asked of.

    Attributes:
        texts: D texts, each once.
        text_vectors: [D, H].
        queries: Q texts.
        query_vectors: [Q, H].
        grades: for each query, number of a text → its grade.
    """

    texts: list[str]
    text_vectors: Vectors
    queries: list[str]
    query_vectors: Vectors
    grades: list[dict[int, float]]

    @classmethod
    def of(cls, examples: Sequence[VectorExample], vectors: Sequence[Vectors]) -> _Corpus:
        """Collects texts and queries; of pairs, every text of the file is a candidate for every query."""
        numbers: dict[str, int] = {}
        rows: list[NDArray[np.float32]] = []
        asked: dict[str, tuple[NDArray[np.float32], dict[int, float]]] = {}

        def number_of(key: str, vector: NDArray[np.float32]) -> int:
            if key not in numbers:
                numbers[key] = len(numbers)
                rows.append(vector)
            return numbers[key]

        texts: dict[str, str] = {}
        for example, found in zip(examples, vectors, strict=True):
            if isinstance(example, CorpusPassage):
                number_of(example.id, found[0])
                texts[example.id] = example.text
            elif isinstance(example, RelatedTexts):
                for text, vector in zip((example.positive, *example.negatives), found[1:], strict=True):
                    number_of(text, vector)
                # 同一个问题在文件里出现几次，它的几个答案都算对
                asked.setdefault(example.query, (found[0], {}))[1][numbers[example.positive]] = 1.0
        for example, found in zip(examples, vectors, strict=True):
            if isinstance(example, JudgedQuery):
                graded = {numbers[name]: grade for name, grade in example.grades if name in numbers and grade > 0}
                asked[example.text] = (found[0], graded)
        judged = {query: each for query, each in asked.items() if each[1]}
        if not judged:
            raise InputError(f"{examples[0].at}no query has a right text; retrieval cannot be scored without one")
        return cls(
            [texts.get(key, key) for key in numbers],
            np.stack(rows),
            list(judged),
            np.stack([vector for vector, _ in judged.values()]),
            [grades for _, grades in judged.values()],
        )

    def ranked(self) -> Iterator[tuple[Vectors, Vectors]]:
        """Yields the cosines [D] of each query with all texts, and their grades [D]."""
        for first in range(0, len(self.queries), _BLOCK):
            cosines = self.query_vectors[first : first + _BLOCK] @ self.text_vectors.T
            for row, grades in zip(cosines, self.grades[first : first + _BLOCK], strict=True):
                graded = np.zeros(len(self.texts), dtype=np.float32)
                graded[list(grades)] = list(grades.values())
                yield row, graded


def _of_retrieval(corpus: _Corpus) -> VectorScores:
    found = ranking_scores(corpus.ranked())
    mistakes = []
    for query, (cosines, grades) in zip(corpus.queries, corpus.ranked(), strict=True):
        first = int(cosines.argmax())
        if not grades[first]:
            right = max(np.flatnonzero(grades), key=lambda number: cosines[number])
            mistakes.append((query, corpus.texts[right][:_SHOWN], corpus.texts[first][:_SHOWN], float(cosines[first])))
    return VectorScores({name: bootstrap_interval(column) for name, column in found.items()}, mistakes)
