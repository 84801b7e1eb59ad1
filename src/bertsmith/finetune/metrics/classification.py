"""Metrics of classes, numbers and rankings as the field computes them.

Notable:
- everything about classes is read off one confusion matrix, everything about label sets off three counts per label
- what is not defined (no example of a class, a constant column) counts as 0, so that a bad model ranks last instead of
  spoiling a comparison with NaN
- shares and scores are in [0, 1], correlations in [-1, 1]
- spans of text are scored in `span_metrics`, entities in `entity_metrics`, intervals in `bootstrap`
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class ClassScores:
    """How well one class is found.

    Attributes:
        precision: share of the predictions of this class that are right.
        recall: share of the examples of this class that are found.
        f1: their harmonic mean.
        support: number of examples of this class.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class MultiLabelScores:
    """How well sets of labels are predicted.

    Attributes:
        micro_f1: F1 of all single decisions together; frequent labels weigh more.
        macro_f1: mean F1 of the labels; every label weighs the same.
        exact_match: share of the examples whose whole set is right.
        labels: the scores of each label.
    """

    micro_f1: float
    macro_f1: float
    exact_match: float
    labels: list[ClassScores]


def in_digits(value: float) -> str:
    """Returns a figure as it is printed: three decimals, or four digits where these would be zeros or too many."""
    return f"{value:.3f}" if value == 0.0 or 1e-3 <= abs(value) < 1e7 else f"{value:.4g}"


def accuracy(labels: Sequence[int], predictions: Sequence[int]) -> float:
    """Returns the share of right predictions, in [0, 1]."""
    return float(np.mean(np.asarray(labels) == np.asarray(predictions)))


def confusion_matrix(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> NDArray[np.int64]:
    """Counts how often each true class (row) was predicted as each class (column).

    Args:
        labels: true classes, in [0, num_labels).
        predictions: predicted classes, in the same order.
        num_labels: number of classes.

    Returns:
        [num_labels, num_labels] int64.
    """
    confusion = np.zeros((num_labels, num_labels), dtype=np.int64)
    np.add.at(confusion, (np.asarray(labels, dtype=np.int64), np.asarray(predictions, dtype=np.int64)), 1)
    return confusion


def class_scores(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> list[ClassScores]:
    """Returns precision, recall, F1 and support of every class, 0 where a share is of nothing."""
    confusion = confusion_matrix(labels, predictions, num_labels)
    # 列和 = 被预测为该类的次数，行和 = 该类真实出现的次数
    counts = zip(confusion.diagonal().tolist(), confusion.sum(0).tolist(), confusion.sum(1).tolist(), strict=True)
    return [scores_from_counts(hits, predicted, actual) for hits, predicted, actual in counts]


def scores_from_counts(hits: int, predicted: int, actual: int) -> ClassScores:
    """Returns the scores for a number of right predictions, of predictions and of true examples."""
    return ClassScores(
        precision=hits / predicted if predicted else 0.0,
        recall=hits / actual if actual else 0.0,
        f1=2 * hits / (predicted + actual) if predicted + actual else 0.0,
        support=actual,
    )


def f1_scores(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> list[float]:
    """Returns F1 = 2 TP / (2 TP + FP + FN) for every class, 0 where a class neither occurs nor is predicted.

    Args:
        labels: true classes, in [0, num_labels).
        predictions: predicted classes, in the same order.
        num_labels: number of classes.
    """
    return [scores.f1 for scores in class_scores(labels, predictions, num_labels)]


def macro_f1(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> float:
    """Returns the mean F1 over the classes that occur or are predicted."""
    scores = f1_scores(labels, predictions, num_labels)
    present = set(labels) | set(predictions)
    return float(np.mean([scores[index] for index in sorted(present)]))


def binary_f1(labels: Sequence[int], predictions: Sequence[int], positive: int = 1) -> float:
    """Returns the F1 of one class against the rest, as GLUE reports it for MRPC and QQP."""
    actual = np.asarray(labels) == positive
    predicted = np.asarray(predictions) == positive
    return scores_from_counts(int((actual & predicted).sum()), int(predicted.sum()), int(actual.sum())).f1


def matthews_correlation(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> float:
    """Returns Matthews' correlation, for two or more classes (Gorodkin 2004, eq. 8); GLUE reports it for CoLA.

    Returns:
        1 for a perfect prediction, 0 for chance or where only one class is predicted or occurs.
    """
    confusion = confusion_matrix(labels, predictions, num_labels)
    # 用 Python 整数：样本数的四次方会溢出 int64
    total, right = int(confusion.sum()), int(confusion.trace())
    predicted, actual = confusion.sum(0).tolist(), confusion.sum(1).tolist()
    covariance = right * total - sum(p * a for p, a in zip(predicted, actual, strict=True))
    spread = (total**2 - sum(p * p for p in predicted)) * (total**2 - sum(a * a for a in actual))
    return covariance / math.sqrt(spread) if spread else 0.0


def pearson(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Returns Pearson's correlation of two columns of [N] numbers, 0 where one of them is constant."""
    x, y = (np.asarray(column, dtype=np.float64) for column in (targets, predictions))
    # 常数列先判断：减去均值后的舍入误差会被当成真实的变化
    if x.size < 2 or (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)), -1.0, 1.0))


def spearman(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Returns Spearman's correlation: Pearson's of the ranks, ties sharing the mean of their ranks."""
    return pearson(_average_ranks(targets), _average_ranks(predictions))


def multilabel_scores(labels: ArrayLike, predictions: ArrayLike) -> MultiLabelScores:
    """Scores sets of labels.

    Args:
        labels: [N, K], 1 or True where the example has the label.
        predictions: [N, K], the same for what was predicted.
    """
    actual, predicted = np.asarray(labels, dtype=bool), np.asarray(predictions, dtype=bool)
    columns = [(actual & predicted).sum(0), predicted.sum(0), actual.sum(0)]
    counts = [column.tolist() for column in columns]
    each = [scores_from_counts(*label) for label in zip(*counts, strict=True)]
    return MultiLabelScores(
        micro_f1=scores_from_counts(*(sum(column) for column in counts)).f1,
        macro_f1=float(np.mean([scores.f1 for scores in each])),
        exact_match=float((actual == predicted).all(1).mean()),
        labels=each,
    )


def reciprocal_ranks(scores: Sequence[ArrayLike], relevant: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Returns for every query 1 over the rank of its best relevant candidate.

    A wrong candidate with the same score counts as ranked before the right one: a model that scores everything alike
    has found nothing.

    Args:
        scores: for each of N queries or questions, the scores of its candidates, higher is better.
        relevant: for each, 1 or True at the right candidates.

    Returns:
        [N] in [0, 1]; 0 for a query without a right candidate.
    """
    return np.array([_reciprocal_rank(*query) for query in zip(scores, relevant, strict=True)], dtype=np.float64)


def mean_reciprocal_rank(scores: Sequence[ArrayLike], relevant: Sequence[ArrayLike]) -> float:
    """Returns the mean of `reciprocal_ranks`."""
    return float(reciprocal_ranks(scores, relevant).mean())


def _reciprocal_rank(scores: ArrayLike, relevant: ArrayLike) -> float:
    values, right = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=bool)
    if not right.any():
        return 0.0
    # 排在最好的正确候选之前的都是错误候选；分数相同的错误候选也算排在前面
    return 1.0 / (1 + int((values[~right] >= values[right].max()).sum()))


def _average_ranks(column: ArrayLike) -> NDArray[Any]:
    _, places, counts = np.unique(np.asarray(column, dtype=np.float64), return_inverse=True, return_counts=True)
    # 一组并列值占据名次 (end-count, end]，取其平均
    ranks: NDArray[Any] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks
