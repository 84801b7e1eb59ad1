import numpy as np
import pytest
from scipy import stats

from bertsmith.finetune.metrics.regression import pearson, spearman


def test_correlations_equal_scipy():
    rng = np.random.default_rng(1)
    for case in range(200):
        size = int(rng.integers(3, 60))
        x = rng.normal(size=size) * 10.0 ** rng.integers(-3, 4)
        y = x * rng.normal() + rng.normal(size=size)
        if case % 2:  # many ties
            x, y = rng.integers(0, 5, size).astype(float), rng.integers(0, 4, size).astype(float)
        if len(set(x)) == 1 or len(set(y)) == 1:
            continue
        assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-9)
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-9)


def test_a_constant_column_has_no_correlation():
    assert pearson([0.1] * 7, [1, 2, 3, 4, 5, 6, 7]) == 0.0
    assert spearman([1, 2, 3], [5, 5, 5]) == 0.0
    assert pearson([1.0], [2.0]) == 0.0
