import numpy as np
import pytest
from sklearn import metrics as reference

from bertsmith.finetune.metrics.ranking import average_precision, mean_reciprocal_rank, ranking_scores, reciprocal_ranks


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


def test_the_figures_of_retrieval_equal_trec_eval():
    pytrec_eval = pytest.importorskip("pytrec_eval")
    draws = np.random.default_rng(3)
    judged, run, queries = {}, {}, []
    for number in range(60):
        count = int(draws.integers(3, 60))
        grades, scores = draws.integers(0, 4, count), draws.permutation(count) / count
        grades[0] = 1
        name = f"q{number}"
        judged[name] = {f"d{text}": int(grade) for text, grade in enumerate(grades)}
        run[name] = {f"d{text}": float(score) for text, score in enumerate(scores)}
        queries.append((scores, grades))
    measures = {"ndcg_cut_10", "recip_rank", "recall_1", "recall_10", "map"}
    expected = pytrec_eval.RelevanceEvaluator(judged, measures).evaluate(run)
    found = ranking_scores(queries)
    names = dict(zip(found, ("ndcg_cut_10", "recip_rank", "recall_1", "recall_10", "map"), strict=True))
    for ours, theirs in names.items():
        wanted = [expected[f"q{number}"][theirs] for number in range(60)]
        np.testing.assert_allclose(found[ours], wanted, atol=1e-6, err_msg=ours)


def test_the_figures_of_retrieval_by_hand():
    """Grades 0, 2, 1 in the order of the scores; then a query without a right text; then a tie."""
    found = ranking_scores([([3, 2, 1], [0, 2, 1]), ([2, 1], [0, 0]), ([1, 1], [1, 0])], k=2)
    gain = 2 / np.log2(3)
    best = 2 + 1 / np.log2(3)
    assert found["ndcg_at_2"].tolist() == pytest.approx([gain / best, 0, 1 / np.log2(3)])
    assert found["mrr"].tolist() == pytest.approx([1 / 2, 0, 1 / 2])
    assert found["recall_at_1"].tolist() == [0, 0, 0]
    assert found["recall_at_2"].tolist() == pytest.approx([1 / 2, 0, 1])
    assert found["map"].tolist() == pytest.approx([(1 / 2 + 2 / 3) / 2, 0, 1 / 2])
