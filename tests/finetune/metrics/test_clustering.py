import numpy as np
import pytest
from sklearn import metrics as reference

from bertsmith.finetune.metrics.clustering import cluster, v_measure


def test_v_measure_equals_scikit_learn():
    draws = np.random.default_rng(0)
    for _ in range(50):
        classes, clusters = draws.integers(0, int(draws.integers(1, 6)), (2, 40))
        found = v_measure(classes.tolist(), clusters.tolist(), resamples=10)
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
