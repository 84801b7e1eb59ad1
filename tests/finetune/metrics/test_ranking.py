import numpy as np
import pytest
from sklearn import metrics as reference

from bertsmith.finetune.metrics.ranking import (
    cluster,
    mean_reciprocal_rank,
    pearson,
    ranking_scores,
    spearman,
    v_measure,
)


def test_rankings_by_hand():
    scores = [[0.1, 0.9, 0.5], [3, 2, 1], [1, 1, 1], [1, 2]]
    relevant = [[0, 1, 0], [0, 1, 1], [0, 1, 0], [0, 0]]
    # a tie counts against the right candidate; a query without one counts 0
    assert mean_reciprocal_rank(scores, relevant) == pytest.approx((1 + 1 / 2 + 1 / 3) / 4)


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


def test_a_constant_column_has_no_correlation():
    assert pearson([0.1] * 7, [1, 2, 3, 4, 5, 6, 7]) == 0.0
    assert spearman([1, 2, 3], [5, 5, 5]) == 0.0
    assert spearman([1, 2, 3], [1, 4, 9]) == pytest.approx(1.0)
    assert pearson([1.0], [2.0]) == 0.0


def test_v_measure_equals_scikit_learn():
    draws = np.random.default_rng(0)
    for _ in range(50):
        classes, clusters = draws.integers(0, int(draws.integers(1, 6)), (2, 40))
        found = v_measure(classes.tolist(), clusters.tolist())
        assert found.estimate == pytest.approx(reference.v_measure_score(classes, clusters), abs=1e-9)


def test_the_interval_is_that_of_texts_drawn_again():
    draws = np.random.default_rng(1)
    classes = draws.integers(0, 3, 200)
    clusters = np.where(draws.random(200) < 0.7, classes, draws.integers(0, 3, 200))
    again = draws.integers(0, 200, (1000, 200))
    expected = np.quantile([reference.v_measure_score(classes[row], clusters[row]) for row in again], [0.025, 0.975])
    found = v_measure(classes.tolist(), clusters.tolist())
    assert [found.low, found.high] == pytest.approx(expected.tolist(), abs=0.02)


def test_names_may_be_of_any_kind_and_one_class_is_whole():
    assert v_measure(["a", "a", "b"], [1, 1, 0]).estimate == pytest.approx(1.0)
    assert v_measure(["a", "a"], [0, 0]).estimate == 1.0
    assert v_measure(["a", "a"], [0, 1]).estimate == 0.0


def test_clusters_are_found_and_are_the_same_again():
    draws = np.random.default_rng(2)
    centres = np.eye(4, dtype=np.float32)
    classes = draws.integers(0, 4, 80)
    vectors = centres[classes] + 0.05 * draws.standard_normal((80, 4)).astype(np.float32)
    found = cluster(vectors, 4)
    assert v_measure(classes.tolist(), found.tolist()).estimate == pytest.approx(1.0)
    assert cluster(vectors, 4).tolist() == found.tolist()
