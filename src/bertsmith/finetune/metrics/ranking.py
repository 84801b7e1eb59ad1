"""Metrics of rankings: where the right candidates end up among the candidates of their own query.

Notable:
- a wrong candidate with the same score counts as ranked before the right one: a model that scores everything alike has
  found nothing. scikit-learn groups equal scores instead, which would give such a model the share of right ones
- a query without a right candidate counts as 0
"""

from __future__ import annotations

from collections.abc import Sequence

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


def _reciprocal_rank(scores: ArrayLike, relevant: ArrayLike) -> float:
    values, right = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=bool)
    if not right.any():
        return 0.0
    # 排在最好的正确候选之前的都是错误候选；分数相同的错误候选也算排在前面
    return 1.0 / (1 + int((values[~right] >= values[right].max()).sum()))
