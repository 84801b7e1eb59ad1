"""Metrics of rankings: where the right candidates end up among the candidates of their own query.

Right or wrong is enough for most; nDCG and the grades of TREC tell more right from less right ones apart.

Notable:
- `ranking_scores` gives the usual figures of retrieval, query by query, as `trec_eval` defines them
- a wrong candidate with the same score counts as ranked before the right one: a model that scores everything alike has
  found nothing. scikit-learn groups equal scores instead, which would give such a model the share of right ones
- a query without a right candidate counts as 0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def reciprocal_ranks(scores: Sequence[ArrayLike], relevant: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Returns for every query 1 over the rank of its best relevant candidate.

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


def average_precision(scores: ArrayLike, relevant: ArrayLike) -> float:
    """Returns the average precision of one query: the mean, over its right candidates, of the precision down to each.

    Args:
        scores: [N], higher is better.
        relevant: [N], 1 or True at the right candidates, one at least.
    """
    values, right = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=bool)
    # 主键是分数从高到低；并列时错误的在前，与倒数排名的规则一致
    places = np.flatnonzero(right[np.lexsort((right, -values))])
    return float(np.mean(np.arange(1, len(places) + 1) / (places + 1)))


def ranking_scores(queries: Iterable[tuple[ArrayLike, ArrayLike]], k: int = 10) -> dict[str, NDArray[np.float64]]:
    """Returns the figures of retrieval for every query, to be averaged or given an interval.

    nDCG is the discounted cumulative gain over that of the best order; the gain of a candidate is its grade, its
    discount log2(1 + rank) (Järvelin and Kekäläinen 2002, with the logarithm of trec_eval).

    Args:
        queries: for each query the scores [N] of all its candidates, and their grades [N], 0 for a wrong one.
        k: the depth of those figures that have one.

    Returns:
        `ndcg_at_K`, `mrr`, `recall_at_1`, `recall_at_K` (the share of a query's right candidates that are among the
        first) and `map`, each with a number in [0, 1] for every query; 0 where it has no right candidate.
    """
    rows: dict[str, list[float]] = {
        name: [] for name in (f"ndcg_at_{k}", "mrr", "recall_at_1", f"recall_at_{k}", "map")
    }
    for scores, grades in queries:
        gains = np.asarray(grades, dtype=np.float64)
        # 每个查询只排一次序：五个指标都从正确候选的名次算出
        ranked = gains[_order(scores, gains)]
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


def _order(scores: ArrayLike, grades: NDArray[np.float64]) -> NDArray[np.intp]:
    """Returns the candidates from the highest score to the lowest; of equal scores the lowest grade comes first."""
    order: NDArray[np.intp] = np.lexsort((grades, -np.asarray(scores, dtype=np.float64)))
    return order


def _discounted(gains: NDArray[np.float64], k: int) -> float:
    first = gains[:k]
    return float((first / np.log2(np.arange(2, len(first) + 2))).sum())


def _reciprocal_rank(scores: ArrayLike, relevant: ArrayLike) -> float:
    values, right = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=bool)
    if not right.any():
        return 0.0
    # 排在最好的正确候选之前的都是错误候选；分数相同的错误候选也算排在前面
    return 1.0 / (1 + int((values[~right] >= values[right].max()).sum()))
