"""Metrics, and confidence intervals by the bootstrap: how far a score would move on another test set of the same size.

The examples are drawn again with replacement, every drawn set is scored, and the middle 95 % of these scores is the
interval (Efron and Tibshirani 1993, chapter 13: percentile intervals). Any score that is a function of per-example
means can be given one. Where the examples only count, as in a confusion matrix, counts are drawn instead.
`scipy.stats.bootstrap` draws the same sets, but refuses a single example and cannot draw counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.errors import InputError
from bertsmith.seeding import generator

Floats = NDArray[np.float64]
_BLOCK = 1 << 20
"""Most draws held in memory at once."""

RESAMPLES = 1000
"""Sets that are drawn for an interval."""


@dataclass(frozen=True)
class Interval:
    """A score and the bounds of its confidence interval."""

    estimate: float
    low: float
    high: float


def in_digits(value: float) -> str:
    """Returns a score as it is printed: three decimals, or four digits where these would be zeros or too many."""
    return f"{value:.3f}" if value == 0.0 or 1e-3 <= abs(value) < 1e7 else f"{value:.4g}"


def in_words(value: float, interval: Interval | None = None) -> str:
    """Returns a score as it is printed, with its interval where it has one: `0.912 (0.893 to 0.931)`."""
    bounds = "" if interval is None else f" ({in_digits(interval.low)} to {in_digits(interval.high)})"
    return in_digits(value) + bounds


def bootstrap_interval(values: ArrayLike, statistic: Callable[[Floats], Floats] | None = None) -> Interval:
    """Returns a score with its percentile bootstrap interval.

    Args:
        values: [N] or [N, K], what each example contributes.
        statistic: turns the means of R resamples, [R, K], into R scores, [R]; None takes the mean of the only column.
    """
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    size = len(table)
    if size == 0:
        raise InputError("a bootstrap interval needs examples")
    score = statistic or (lambda means: means[:, 0])
    draws = generator(0, "bootstrap")
    block = max(1, _BLOCK // size)
    scores = []
    for start in range(0, RESAMPLES, block):
        # 一次抽一批重采样的下标：内存有界，抽取顺序与分批大小无关
        picked = draws.integers(0, size, (min(block, RESAMPLES - start), size))
        scores.append(score(np.stack([column[picked].mean(1) for column in table.T], axis=1)))
    return interval_of(float(score(table.mean(0, keepdims=True))[0]), np.concatenate(scores))


def interval_of(estimate: float, scores: Floats) -> Interval:
    """Returns a score with the middle 95 % of the scores [R] of drawn sets."""
    tail = (1 - 0.95) / 2
    low, high = np.quantile(scores, [tail, 1 - tail])
    return Interval(estimate, float(low), float(high))


def drawn_counts(counts: NDArray[np.int64], purpose: str) -> Iterator[NDArray[np.int64]]:
    """Yields how often each of M kinds of examples is there: first [1, M] as given, then [r, M] in r drawn sets."""
    yield counts[None]
    draws, block = generator(0, purpose), max(1, _BLOCK // len(counts))
    for start in range(0, RESAMPLES, block):
        # 有放回地重抽样本，等于按各种的频率抽多项分布：不必真的去抽下标
        yield draws.multinomial(counts.sum(), counts / counts.sum(), min(block, RESAMPLES - start))


def interval_over(drawn: Iterator[NDArray[np.int64]], score: Callable[[NDArray[np.int64]], Floats]) -> Interval:
    """Returns the score of `drawn_counts` as they are, with its interval over the drawn ones."""
    scores = np.concatenate([score(part) for part in drawn])
    return interval_of(float(scores[0]), scores[1:])


def average_precision_interval(relevant: ArrayLike, scores: ArrayLike) -> Interval:
    """Returns the average precision of one list with its percentile bootstrap interval, of 95 %.

    Equal scores count as one step of the curve, as scikit-learn has it. `relevant` [N] is 1 or True at the right ones,
    at least one; of the `scores` [N], higher is better.
    """
    right, values = np.asarray(relevant, dtype=bool), np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    right, values = right[order], values[order]
    # 一段同分的最后一个位置：精确率只在那里读
    ends = np.append(np.flatnonzero(np.diff(values)), len(values) - 1)
    # 排序只做一次：重抽样就是给每个例子一个次数
    drawn = drawn_counts(np.ones(len(right), dtype=np.int64), "bootstrap/average precision")
    return interval_over(drawn, lambda counts: _average_precisions(counts.astype(np.float64), right, ends))


def _average_precisions(counts: Floats, right: NDArray[np.bool_], ends: NDArray[np.intp]) -> Floats:
    hits = np.cumsum(counts * right, axis=1)[:, ends]
    shown = np.cumsum(counts, axis=1)[:, ends]
    gained = np.diff(hits, axis=1, prepend=0.0)
    precision = hits / np.maximum(shown, 1)
    scores: Floats = (gained * precision).sum(1) / np.maximum(hits[:, -1], 1)
    return scores


def confusion_intervals(
    labels: ArrayLike,
    predictions: ArrayLike,
    num_labels: int,
    statistics: Mapping[str, Callable[[Floats, Floats, Floats], Floats]],
) -> dict[str, Interval]:
    """Returns scores of a confusion matrix, of true classes [N] by predicted ones, with percentile bootstrap intervals.

    Each statistic turns the hits, predictions and true examples of each class in R resamples, three times [R, K], into
    scores, [R]. There is one example at least.
    """
    # 上万个类的矩阵几乎全空：只数有例子的格子
    codes = np.asarray(labels, dtype=np.int64) * num_labels + np.asarray(predictions, dtype=np.int64)
    found, counts = np.unique(codes, return_counts=True)
    cells = np.stack(np.divmod(found, num_labels), 1)
    right = cells[:, 0] == cells[:, 1]
    scores: dict[str, list[Floats]] = {name: [] for name in statistics}
    for part in drawn_counts(counts, "bootstrap/confusion"):
        hits = summed(part[:, right], cells[right, 0], num_labels)
        predicted, actual = (summed(part, cells[:, side], num_labels) for side in (1, 0))
        for name, statistic in statistics.items():
            scores[name].append(statistic(hits, predicted, actual))
    columns = {name: np.concatenate(parts) for name, parts in scores.items()}
    return {name: interval_of(float(column[0]), column[1:]) for name, column in columns.items()}


def macro_f1_of_counts(hits: Floats, predicted: Floats, actual: Floats) -> Floats:
    """The mean F1 of the classes that occur or are predicted, as a statistic of `confusion_intervals`."""
    total = predicted + actual
    f1s = np.divide(2 * hits, total, out=np.zeros_like(total), where=total > 0)
    scores: Floats = f1s.sum(1) / (total > 0).sum(1)
    return scores


def matthews_of_counts(hits: Floats, predicted: Floats, actual: Floats) -> Floats:
    """Matthews' correlation (Gorodkin 2004, eq. 8), as a statistic of `confusion_intervals`."""
    size = actual.sum(1)
    covariance = hits.sum(1) * size - (predicted * actual).sum(1)
    spread = (size**2 - (predicted**2).sum(1)) * (size**2 - (actual**2).sum(1))
    scores: Floats = np.divide(covariance, np.sqrt(spread), out=np.zeros_like(size), where=spread > 0)
    return scores


def f1_of_means(means: Floats) -> Floats:
    """The F1 of [R, 3] means of hits, predictions and true ones, as a statistic of `bootstrap_interval`."""
    total = means[:, 1] + means[:, 2]
    scores: Floats = np.divide(2 * means[:, 0], total, out=np.zeros_like(total), where=total > 0)
    return scores


def correlation_of_means(means: Floats) -> Floats:
    """Pearson's correlation from the means of `correlation_columns`, as a statistic of `bootstrap_interval`."""
    x, y, xx, yy, xy = means.T
    spread = (xx - x * x) * (yy - y * y)
    covariance = xy - x * y
    # 抽到常数列时方差为零：相关系数无定义，按 0 计
    scores: Floats = np.divide(
        covariance, np.sqrt(np.maximum(spread, 0)), out=np.zeros_like(covariance), where=spread > 1e-18
    )
    return scores


def correlation_columns(targets: ArrayLike, predictions: ArrayLike) -> Floats:
    """What each example contributes to Pearson's correlation: [N, 5], of standardized x, y, x², y², xy."""
    x, y = (_standardised(np.asarray(column, dtype=np.float64)) for column in (targets, predictions))
    return np.stack([x, y, x * x, y * y, x * y], axis=1)


def summed(counts: NDArray[Any], classes: NDArray[np.int64], num_classes: int) -> Floats:
    """Adds up the columns [R, M] of the same class: [R, K]."""
    sums = np.zeros((len(counts), num_classes))
    if len(classes):
        # 排序后分段求和：不必为每个格子造一行 K 维的独热向量
        order = np.argsort(classes, kind="stable")
        starts = np.flatnonzero(np.diff(classes[order], prepend=-1))
        sums[:, classes[order][starts]] = np.add.reduceat(counts[:, order], starts, axis=1)
    return sums


def _standardised(column: Floats) -> Floats:
    centred = column - column.mean()
    deviation = centred.std()
    scaled: Floats = centred / deviation if deviation > 0 else centred
    return scaled
