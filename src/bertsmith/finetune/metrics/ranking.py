"""Metrics of order: rankings, correlations of numbers, and clusters.

- `ranking_scores` is as `trec_eval` defines it. A wrong candidate with the same score counts as ranked before the right
  one: a model that scores everything alike has found nothing. scikit-learn would give it the share of right ones
- what is not defined (a query without a right candidate, a correlation with a constant column) counts as 0, so that a
  model that always says the same ranks last instead of spoiling a comparison with NaN
- V-measure (Rosenberg and Hirschberg 2007, §2) is the harmonic mean of how far a cluster holds one class only and how
  far a class lies in one cluster only
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.finetune.metrics import Floats, Interval, drawn_counts, interval_over, summed


def mean_reciprocal_rank(scores: Sequence[ArrayLike], relevant: Sequence[ArrayLike]) -> float:
    """Returns the mean over N queries of 1 over the rank of the best right candidate, 0 where there is none."""
    return float(ranking_scores(zip(scores, relevant, strict=True))["mrr"].mean())


def ranking_scores(queries: Iterable[tuple[ArrayLike, ArrayLike]], k: int = 10) -> dict[str, NDArray[np.float64]]:
    """Returns the figures of retrieval for every query, to be averaged or given an interval.

    nDCG is the discounted cumulative gain over that of the best order; the gain of a candidate is its grade, its
    discount log2(1 + rank) (Järvelin and Kekäläinen 2002, with the logarithm of trec_eval).

    Args:
        queries: for each query the scores [N] of all its candidates, and their grades [N], 0 for a wrong one.

    Returns:
        `ndcg_at_K`, `mrr`, `recall_at_1`, `recall_at_K` (the share of a query's right candidates that are among the
        first) and `map`, each with a number in [0, 1] for every query; 0 where it has no right candidate.
    """
    rows: dict[str, list[float]] = {
        name: [] for name in (f"ndcg_at_{k}", "mrr", "recall_at_1", f"recall_at_{k}", "map")
    }
    for scores, grades in queries:
        gains = np.asarray(grades, dtype=np.float64)
        # 每个查询只排一次序，同分时等级低的在前：五个指标都从正确候选的名次算出
        ranked = gains[np.lexsort((gains, -np.asarray(scores, dtype=np.float64)))]
        places = np.flatnonzero(ranked)
        right = max(1, len(places))
        figures = (
            _discounted(ranked, k) / (_discounted(np.sort(gains)[::-1], k) or 1.0),
            1.0 / (1 + places[0]) if len(places) else 0.0,
            float((places < 1).sum() / right),
            float((places < k).sum() / right),
            float((np.arange(1, len(places) + 1) / (places + 1)).sum() / right),
        )
        for column, figure in zip(rows.values(), figures, strict=True):
            column.append(figure)
    return {name: np.array(column) for name, column in rows.items()}


def _discounted(gains: NDArray[np.float64], k: int) -> float:
    first = gains[:k]
    return float((first / np.log2(np.arange(2, len(first) + 2))).sum())


def pearson(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Returns Pearson's correlation of two columns of [N] numbers, in [-1, 1]; 0 where one of them is constant."""
    from scipy.stats import pearsonr

    x, y = (np.asarray(column, dtype=np.float64) for column in (targets, predictions))
    # 常数列先判断：减去均值后的舍入误差会被当成真实的变化
    if x.size < 2 or (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    return float(pearsonr(x, y).statistic)


def spearman(targets: ArrayLike, predictions: ArrayLike) -> float:
    """Returns Spearman's correlation: Pearson's of the ranks, ties sharing the mean of their ranks."""
    from scipy.stats import rankdata

    return pearson(rankdata(targets), rankdata(predictions))


def v_measure(classes: Sequence[Any], clusters: Sequence[Any]) -> Interval:
    """Returns the V-measure of a clustering, with the interval that the same clusters have on other texts."""
    rows, columns = (np.unique(each, return_inverse=True)[1] for each in (classes, clusters))
    cells, counts = np.unique(np.stack([rows, columns], 1), axis=0, return_counts=True)
    drawn = drawn_counts(counts, "bootstrap/clusters")
    return interval_over(drawn, lambda part: _v_measures(cells, part.astype(np.float64)))


def cluster(vectors: NDArray[np.float32], count: int) -> NDArray[np.int32]:
    """Returns the number of the cluster of each vector [N, H], by k-means with `count` clusters."""
    from sklearn.cluster import KMeans

    found: NDArray[np.int32] = KMeans(count, n_init=3, random_state=0).fit_predict(vectors)
    return found


def _v_measures(cells: NDArray[np.int64], counts: Floats) -> Floats:
    """Scores R tables, given as counts [R, M] of M cells (class, cluster)."""
    total = counts.sum(1, keepdims=True)
    joint = _entropy(counts / total)
    sums = (summed(counts, cells[:, side], int(cells[:, side].max()) + 1) for side in (0, 1))
    by_class, by_cluster = (_entropy(each / total) for each in sums)
    # 互信息 = H(类) + H(簇) - H(类, 簇)；V 是它除以两个熵的平均；两边都只有一类时算作完全一致
    shared, both = by_class + by_cluster - joint, by_class + by_cluster
    return np.where(both > 1e-12, 2 * shared / np.maximum(both, 1e-12), 1.0)


def _entropy(shares: Floats) -> Floats:
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    entropy: Floats = -(shares * logs).sum(1)
    return entropy
