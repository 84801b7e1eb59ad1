"""What a file of sentence vectors is made of decides the loss that learns from it, and the figures that score on it.

- pairs, and judged queries over a corpus: retrieval, every query against all texts of the file but itself
- scored pairs: Spearman and Pearson between cosines and scores; of scores that are 0 and 1, average precision first
- classes: V-measure of k-means clusters
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.related import (
    CorpusPassage,
    JudgedQuery,
    RelatedTexts,
    VectorExample,
    related_of_beir,
)
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.metrics import (
    Interval,
    average_precision_interval,
    bootstrap_interval,
    correlation_columns,
    correlation_of_means,
)
from bertsmith.finetune.metrics.ranking import cluster, ranking_scores, v_measure
from bertsmith.inference.embed import SimilarityFunction, similarities
from bertsmith.inference.pipeline import pipelines_of_folder
from bertsmith.objectives.vectors import Needs, vector_loss_named

_KINDS: dict[type, tuple[str, str, tuple[Needs, ...]]] = {
    RelatedTexts: ("pairs of a query and a text", "info-nce", ("positives", "margins")),
    ScoredText: ("pairs with scores", "cosent", ("scores",)),
    LabelledText: ("classes", "info-nce", ("positives",)),
}
"""Kind of examples → what it is called, the loss for it, and what it gives a loss."""


def to_learn(examples: Sequence[VectorExample]) -> list[Any]:
    """Returns examples that can be learned from: the judged queries of BEIR as pairs, all others as they are."""
    if isinstance(examples[0], CorpusPassage | JudgedQuery):
        return related_of_beir(examples)
    return list(examples)


def loss_for(examples: Sequence[Any], loss: str | None, teacher: str | None) -> str:
    """Returns the name of the loss that learns from examples, or from what a teacher says of them."""
    source, usual, kinds = _KINDS[type(examples[0])]
    # 差距要有老师的打分才算得出：没打过分的反例只作反例
    gives = tuple(need for need in kinds if need != "margins" or _scores(examples))
    usual = "margin-mse" if "margins" in gives else usual
    if teacher is not None:
        source, (gives, usual) = f"the teacher {teacher}", _taught(teacher, examples)
    name = loss or usual
    if vector_loss_named(name).needs not in gives:
        raise ConfigError(f"the loss {name} does not learn from {source}; use {usual}, or another file")
    return name


def score_range(examples: Sequence[Any]) -> tuple[float, float]:
    """Returns the scores that count as 0 and as 1."""
    scores = _scores(examples)
    low, high = (min(scores), max(scores)) if scores else (0.0, 1.0)
    if low == high:
        raise InputError("the training file's scores are all the same; there is nothing to learn")
    # 已经在 [0, 1] 里的分数原样使用
    return (0.0, 1.0) if low >= 0.0 and high <= 1.0 else (low, high)


def require_different(examples: Sequence[Any], file: str = "the training file") -> None:
    """Makes sure that there are two things to tell apart."""
    if isinstance(examples[0], LabelledText):
        labels = [example.label for example in examples]
        if len(set(labels)) < 2 or len(set(labels)) == len(labels):
            raise InputError(f"{file} has one class only, or one text of each; two classes of two texts are needed")
    elif isinstance(examples[0], RelatedTexts) and len({example.positive for example in examples}) < 2:
        raise InputError(f"{file} has one positive only; without another text there is nothing to tell it from")


def _scores(examples: Sequence[Any]) -> list[float]:
    if isinstance(examples[0], ScoredText):
        return [example.score for example in examples]
    scores = [getattr(example, "scores", ()) for example in examples]
    # 有的例子没有老师的分数，就谁的也不用：缺的那些没有目标可学
    return [score for each in scores for score in each] if all(scores) and any(len(s) > 1 for s in scores) else []


def _taught(teacher: str, examples: Sequence[Any]) -> tuple[tuple[Needs, ...], str]:
    """Returns what a teacher gives, and the loss for it."""
    pipelines = pipelines_of_folder(teacher)
    if "embed" in pipelines:
        return ("teacher",), "similarities"
    if "rank" not in pipelines:
        raise ConfigError(f"--teacher {teacher}: is for {', '.join(pipelines)}; name an encoder or a ranker")
    if not any(getattr(example, "negatives", ()) for example in examples):
        raise ConfigError(f"--teacher {teacher}: ranks, and the training file has no negatives for it to judge")
    return ("margins",), "margin-mse"


Vectors = NDArray[np.float32]
Search = Callable[[str, Vectors], Vectors]
"""Maps a query, and its similarities [D] with the texts of a corpus, to the scores [D] by which it finds them."""
_BLOCK = 64
"""Queries that are compared with a corpus at a time."""
_SHOWN = 200
"""Letters of a passage in a list of mistakes."""


@dataclass(frozen=True)
class VectorScores:
    """Figures with their 95 % intervals, the one that decides first; mistakes as the fields of `Mistake`."""

    intervals: dict[str, Interval]
    mistakes: list[tuple[str, str, str, float]] = field(default_factory=list)

    @property
    def metrics(self) -> dict[str, float]:
        """The figures alone."""
        return {name: found.estimate for name, found in self.intervals.items()}


def score_vectors(
    examples: Sequence[VectorExample],
    vectors: Sequence[Vectors],
    similarity: SimilarityFunction = "cosine",
    search: Callable[[Sequence[str]], Search] | None = None,
) -> VectorScores:
    """Scores the vectors [n, H] of the texts of each example; for `cosine` they have length 1.

    The examples are of one kind, or the passages and queries of one corpus. `search` is given the D texts of a corpus,
    and returns how a query finds them; None ranks by similarity alone.
    """
    kind = type(examples[0])
    if kind is ScoredText:
        return _of_scored(examples, vectors, similarity)
    if kind is LabelledText:
        labels: list[Any] = [example.label for example in examples if isinstance(example, LabelledText)]
        found = cluster(np.concatenate(vectors), len(set(labels)))
        return VectorScores({"v_measure": v_measure(labels, found.tolist())})
    corpus = _Corpus.of(examples, vectors)
    return _of_retrieval(corpus, similarity, None if search is None else search(corpus.texts))


def _of_scored(examples: Sequence[Any], vectors: Sequence[Vectors], similarity: SimilarityFunction) -> VectorScores:
    from scipy.stats import rankdata

    scores = np.array([example.score for example in examples])
    cosines = np.array([float(_compared(pair[:1], pair[1:], similarity)[0, 0]) for pair in vectors])
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
    """D texts, each once; Q queries; of each query, number of a text → its grade, and the text that it is itself."""

    texts: list[str]
    text_vectors: Vectors
    queries: list[str]
    query_vectors: Vectors
    grades: list[dict[int, float]]
    own: list[int | None]

    @classmethod
    def of(cls, examples: Sequence[VectorExample], vectors: Sequence[Vectors]) -> _Corpus:
        """Collects texts and queries; of pairs, every text of the file is a candidate for every query."""
        numbers: dict[str, int] = {}
        rows: list[NDArray[np.float32]] = []
        # 语料里的查询按编号认：文字相同的两个查询各有各的答案
        asked: dict[str, tuple[str, NDArray[np.float32], dict[int, float]]] = {}

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
                grades = asked.setdefault(example.query, (example.query, found[0], {}))[2]
                grades[numbers[example.positive]] = 1.0
        for example, found in zip(examples, vectors, strict=True):
            if isinstance(example, JudgedQuery):
                graded = {numbers[name]: grade for name, grade in example.grades if name in numbers and grade > 0}
                asked[example.id] = (example.text, found[0], graded)
        judged = {key: each for key, each in asked.items() if each[2]}
        if not judged:
            raise InputError(f"{examples[0].at}no query has a right text; retrieval cannot be scored without one")
        queries, query_vectors, grades_of = zip(*judged.values(), strict=True)
        return cls(
            [texts.get(key, key) for key in numbers],
            np.stack(rows),
            list(queries),
            np.stack(query_vectors),
            list(grades_of),
            [numbers.get(key) for key in judged],
        )

    def ranked(self, similarity: SimilarityFunction, search: Search | None) -> Iterator[tuple[Vectors, Vectors]]:
        """Yields for each query the scores [D] of all texts, and their grades [D]."""
        for first in range(0, len(self.queries), _BLOCK):
            block = slice(first, first + _BLOCK)
            rows = _compared(self.query_vectors[block], self.text_vectors, similarity)
            of_block = zip(self.queries[block], rows, self.grades[block], self.own[block], strict=True)
            for query, row, grades, own in of_block:
                scores = row if search is None else search(query, row)
                graded = np.zeros(len(self.texts), dtype=np.float32)
                graded[list(grades)] = list(grades.values())
                # 查询自己也是语料里的一段时，找到自己不算数（与 BEIR 一致），除非判定它是答案
                if own is not None and not graded[own]:
                    scores[own] = -np.inf
                yield scores, graded


def _compared(left: Vectors, right: Vectors, similarity: SimilarityFunction) -> Vectors:
    return left @ right.T if similarity in ("cosine", "dot") else similarities(left, right, similarity)


def _of_retrieval(corpus: _Corpus, similarity: SimilarityFunction, search: Search | None) -> VectorScores:
    mistakes: list[tuple[str, str, str, float]] = []

    def ranked() -> Iterator[tuple[Vectors, Vectors]]:
        for query, (scores, grades) in zip(corpus.queries, corpus.ranked(similarity, search), strict=True):
            first = int(scores.argmax())
            if not grades[first]:
                right = max(np.flatnonzero(grades), key=lambda number: scores[number])
                expected, ranked_first = (corpus.texts[number][:_SHOWN] for number in (right, first))
                mistakes.append((query, expected, ranked_first, float(scores[first])))
            yield scores, grades

    found = ranking_scores(ranked())
    return VectorScores({name: bootstrap_interval(column) for name, column in found.items()}, mistakes)
