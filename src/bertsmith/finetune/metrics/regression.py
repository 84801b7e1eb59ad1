"""Metrics of numbers: the correlations of Pearson and Spearman, by SciPy.

Where a column is constant a correlation is not defined. It counts as 0 here, so that a model that always says the same
ranks last instead of spoiling a comparison with NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


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
