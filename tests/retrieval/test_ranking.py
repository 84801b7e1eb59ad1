"""Orders of rows against a sort, a formula and a hand calculation."""

import numpy as np
import pytest

from bertsmith.retrieval.dense import best, joined_scores


@pytest.mark.parametrize("k", [1, 3, 10, 50, 99])
def test_best_is_a_stable_sort(k):
    scores = np.random.default_rng(k).integers(0, 7, 50).astype(np.float32)
    expected = sorted(range(50), key=lambda place: (-scores[place], place))[:k]
    assert best(scores, k).tolist() == expected


def test_joined_scores_by_hand():
    dense = np.array([0.9, 0.1, 0.5], dtype=np.float32)
    lexical = np.array([0.0, 8.0, 4.0], dtype=np.float32)
    # 没有相同词的文本不算被词找到：词的分数从 4 到 8
    assert joined_scores(dense, lexical, 0.25).tolist() == pytest.approx([0.25, 0.75, 0.125])
    assert joined_scores(dense, lexical).tolist() == pytest.approx([0.4, 0.6, 0.2])
    ranks = [1 / 61, 1 / 63 + 1 / 61, 1 / 62 + 1 / 62]
    assert joined_scores(dense, lexical, None).tolist() == pytest.approx(ranks)
