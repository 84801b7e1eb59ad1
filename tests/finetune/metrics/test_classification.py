import numpy as np
import pytest
from sklearn import metrics as reference

from bertsmith.finetune.metrics.classification import (
    accuracy,
    binary_f1,
    class_scores,
    confusion_matrix,
    macro_f1,
    matthews_correlation,
    multilabel_scores,
)

pytestmark = pytest.mark.filterwarnings("error")


def draw_classes(rng, num_labels):
    size = int(rng.integers(1, 40))
    labels = rng.integers(0, num_labels, size)
    return labels.tolist(), np.where(rng.random(size) < 0.5, labels, rng.integers(0, num_labels, size)).tolist()


def test_class_metrics_equal_their_definitions():
    rng = np.random.default_rng(5)
    for _ in range(100):
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
        confusion = confusion_matrix(labels, predictions, 3)
        assert confusion.tolist() == [[pairs.count((true, guess)) for guess in range(3)] for true in range(3)]
        f1s = [scores.f1 for scores in class_scores(labels, predictions, 3)]
        assert macro_f1(labels, predictions) == pytest.approx(np.mean([f1s[name] for name in {*labels, *predictions}]))
        assert binary_f1(labels, predictions) == pytest.approx(f1s[1])
        # Matthews (Gorodkin 2004): the correlation of the two sets of indicators, one for each class
        true, guess = (np.eye(3)[column] for column in (labels, predictions))
        spread = [((column - column.mean(0)) ** 2).sum() for column in (true, guess)]
        covariance = ((true - true.mean(0)) * (guess - guess.mean(0))).sum()
        expected = covariance / np.sqrt(spread[0] * spread[1]) if min(spread) > 1e-12 else 0.0
        assert matthews_correlation(labels, predictions) == pytest.approx(expected, abs=1e-9)


def test_more_classes_than_examples_are_scored_without_a_warning():
    """As in a small file of many intents, of which scikit-learn thinks that it holds numbers."""
    labels, predictions = list(range(40)), [0] * 40
    assert accuracy(labels, predictions) == 1 / 40
    assert matthews_correlation(labels, predictions) == 0.0
    assert macro_f1(labels, predictions) == pytest.approx(2 / 41 / 40)


def test_matthews_by_hand_and_with_more_examples_than_fit_into_64_bits():
    # TP 3, TN 1, FP 1, FN 1: (3*1 - 1*1) / sqrt(4*4*2*2) = 1/4
    labels, predictions = [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1]
    assert matthews_correlation(labels, predictions) == pytest.approx(0.25)
    assert matthews_correlation(labels * 50_000, predictions * 50_000) == pytest.approx(0.25)
    assert matthews_correlation([1, 1, 0], [1, 1, 1]) == 0.0


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
