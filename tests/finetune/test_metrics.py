import numpy as np
import pytest
from sklearn import metrics as reference

from bertsmith.finetune.metrics import accuracy, f1_scores, macro_f1


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
