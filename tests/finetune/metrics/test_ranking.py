import numpy as np
import pytest
from sklearn import metrics as reference

from bertsmith.finetune.metrics.ranking import average_precision, mean_reciprocal_rank, reciprocal_ranks


def test_rankings_by_hand():
    scores = [[0.1, 0.9, 0.5], [3, 2, 1], [1, 1, 1], [1, 2]]
    relevant = [[0, 1, 0], [0, 1, 1], [0, 1, 0], [0, 0]]
    # a tie counts against the right candidate; a query without one counts 0
    assert reciprocal_ranks(scores, relevant).tolist() == pytest.approx([1, 1 / 2, 1 / 3, 0])
    assert mean_reciprocal_rank(scores, relevant) == pytest.approx((1 + 1 / 2 + 1 / 3) / 4)


def test_reciprocal_rank_equals_scikit_learn_where_one_is_right():
    """With one right label, label ranking average precision is the reciprocal rank."""
    rng = np.random.default_rng(8)
    for _ in range(300):
        scores = rng.integers(0, 4, (6, 5)).astype(float)
        relevant = np.eye(5, dtype=int)[rng.integers(0, 5, 6)]
        expected = reference.label_ranking_average_precision_score(relevant, scores)
        assert mean_reciprocal_rank(scores, relevant) == pytest.approx(expected)


def test_average_precision_equals_scikit_learn():
    draws = np.random.default_rng(0)
    for _ in range(200):
        relevant = draws.random(int(draws.integers(1, 30))) < 0.4
        relevant[0] = True
        scores = draws.permutation(len(relevant)) / len(relevant)
        assert average_precision(scores, relevant) == pytest.approx(reference.average_precision_score(relevant, scores))
