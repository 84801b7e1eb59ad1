import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from bertsmith.finetune.metrics.classification import (
    accuracy,
    binary_f1,
    class_scores,
    confusion_matrix,
    f1_scores,
    in_digits,
    macro_f1,
    matthews_correlation,
    mean_reciprocal_rank,
    multilabel_scores,
    pearson,
    reciprocal_ranks,
    spearman,
)

# scikit-learn says so where a share is of nothing; both sides count it as 0
pytestmark = [
    pytest.mark.filterwarnings("ignore:A single label was found"),
    pytest.mark.filterwarnings("ignore:y_pred contains classes"),
]


@pytest.mark.parametrize("num_labels", [2, 3, 7])
def test_metrics_equal_scikit_learn(num_labels):
    rng = np.random.default_rng(num_labels)
    for _ in range(500):
        size = int(rng.integers(1, 40))
        labels = rng.integers(0, num_labels, size).tolist()
        predictions = np.where(rng.random(size) < 0.5, labels, rng.integers(0, num_labels, size)).tolist()
        assert accuracy(labels, predictions) == pytest.approx(reference.accuracy_score(labels, predictions))
        expected = reference.f1_score(
            labels, predictions, labels=list(range(num_labels)), average=None, zero_division=0.0
        )
        assert f1_scores(labels, predictions, num_labels) == pytest.approx(expected.tolist())
        macro = reference.f1_score(labels, predictions, average="macro", zero_division=0.0)
        assert macro_f1(labels, predictions, num_labels) == pytest.approx(macro)


def draw_classes(rng, num_labels):
    size = int(rng.integers(1, 40))
    labels = rng.integers(0, num_labels, size)
    return labels.tolist(), np.where(rng.random(size) < 0.5, labels, rng.integers(0, num_labels, size)).tolist()


@pytest.mark.parametrize("num_labels", [2, 4])
def test_tables_and_correlations_of_classes_equal_scikit_learn(num_labels):
    rng = np.random.default_rng(10 + num_labels)
    for _ in range(150):
        labels, predictions = draw_classes(rng, num_labels)
        names = list(range(num_labels))
        expected = reference.confusion_matrix(labels, predictions, labels=names)
        assert (confusion_matrix(labels, predictions, num_labels) == expected).all()
        rows = reference.precision_recall_fscore_support(labels, predictions, labels=names, zero_division=0.0)
        ours = [(s.precision, s.recall, s.f1, s.support) for s in class_scores(labels, predictions, num_labels)]
        assert np.array(ours) == pytest.approx(np.stack(rows, axis=1))
        matthews = reference.matthews_corrcoef(labels, predictions)
        assert matthews_correlation(labels, predictions, num_labels) == pytest.approx(matthews, abs=1e-12)
        if num_labels == 2:
            f1 = reference.f1_score(labels, predictions, zero_division=0.0)
            assert binary_f1(labels, predictions) == pytest.approx(f1)


def test_class_metrics_equal_their_definitions_on_ten_thousand_cases():
    rng = np.random.default_rng(5)
    for _ in range(10_000):
        labels, predictions = draw_classes(rng, 3)
        pairs = list(zip(labels, predictions, strict=True))
        assert accuracy(labels, predictions) == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
        for name, scores in enumerate(class_scores(labels, predictions, 3)):
            hits = pairs.count((name, name))
            precision = hits / predictions.count(name) if name in predictions else 0.0
            recall = hits / labels.count(name) if name in labels else 0.0
            f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
            assert (scores.precision, scores.recall, scores.support) == (precision, recall, labels.count(name))
            assert scores.f1 == pytest.approx(f1)


def test_matthews_by_hand_and_with_more_examples_than_fit_into_64_bits():
    # TP 3, TN 1, FP 1, FN 1: (3*1 - 1*1) / sqrt(4*4*2*2) = 1/4
    labels, predictions = [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1]
    assert matthews_correlation(labels, predictions, 2) == pytest.approx(0.25)
    assert matthews_correlation(labels * 50_000, predictions * 50_000, 2) == pytest.approx(0.25)
    assert matthews_correlation([1, 1, 0], [1, 1, 1], 2) == 0.0


def test_correlations_equal_scipy():
    rng = np.random.default_rng(1)
    for case in range(1000):
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


def test_multi_label_scores_equal_scikit_learn():
    rng = np.random.default_rng(3)
    for _ in range(100):
        shape = (int(rng.integers(1, 20)), int(rng.integers(2, 6)))
        labels, predictions = rng.random(shape) < 0.3, rng.random(shape) < 0.4
        scores = multilabel_scores(labels, predictions)
        for average, ours in (("micro", scores.micro_f1), ("macro", scores.macro_f1)):
            expected = reference.f1_score(labels, predictions, average=average, zero_division=0.0)
            assert ours == pytest.approx(expected)
        assert scores.exact_match == pytest.approx(reference.accuracy_score(labels, predictions))
        rows = reference.precision_recall_fscore_support(labels, predictions, zero_division=0.0)
        assert [s.recall for s in scores.labels] == pytest.approx(rows[1].tolist())


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


def test_figures_of_any_size_are_printed_with_digits():
    assert [in_digits(value) for value in (0.0, 1.0, 0.91249, -0.25, 31.5)] == [
        "0.000",
        "1.000",
        "0.912",
        "-0.250",
        "31.500",
    ]
    assert [in_digits(value) for value in (2.4348e-06, -0.0001, 1.25e30)] == ["2.435e-06", "-0.0001", "1.25e+30"]
