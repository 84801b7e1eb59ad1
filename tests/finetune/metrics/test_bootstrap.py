import math

import numpy as np
import pytest
from scipy import stats

from bertsmith.errors import InputError
from bertsmith.finetune.metrics.bootstrap import (
    bootstrap_interval,
    confusion_intervals,
    correlation_columns,
    correlation_of_means,
    f1_of_means,
    macro_f1_of_counts,
    matthews_of_counts,
)
from bertsmith.finetune.metrics.classification import confusion_matrix, macro_f1, matthews_correlation


def test_the_interval_of_a_mean_is_the_one_of_the_central_limit_theorem():
    hits = np.array([1.0] * 800 + [0.0] * 200)
    interval = bootstrap_interval(hits, resamples=4000)
    half = 1.96 * math.sqrt(0.8 * 0.2 / 1000)
    assert interval.estimate == pytest.approx(0.8)
    assert (interval.low, interval.high) == pytest.approx((0.8 - half, 0.8 + half), abs=0.002)


def test_the_interval_of_a_correlation_is_the_one_of_scipy():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200) + 1000
    y = 0.7 * (x - 1000) + rng.normal(size=200)
    ours = bootstrap_interval(correlation_columns(x, y), correlation_of_means, resamples=4000)
    peer = stats.bootstrap(
        (x, y),
        lambda a, b: stats.pearsonr(a, b)[0],
        paired=True,
        vectorized=False,
        n_resamples=2000,
        method="percentile",
        random_state=1,
    ).confidence_interval
    assert ours.estimate == pytest.approx(stats.pearsonr(x, y)[0])
    assert (ours.low, ours.high) == pytest.approx((peer.low, peer.high), abs=0.012)


def test_f1_of_counts():
    counts = [[1, 1, 2], [0, 1, 0], [2, 3, 2], [0, 0, 0]]  # 2 * 3 / (5 + 4)
    interval = bootstrap_interval(counts, f1_of_means, resamples=500)
    assert interval.estimate == pytest.approx(6 / 9)
    assert 0.0 <= interval.low < interval.estimate < interval.high <= 1.0


def test_the_seed_decides_and_the_blocks_do_not(monkeypatch):
    values = np.random.default_rng(0).random(50)
    first = bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) == first
    assert bootstrap_interval(values, seed=4) != first
    monkeypatch.setattr("bertsmith.finetune.metrics.bootstrap._BLOCK", 170)
    assert bootstrap_interval(values, seed=3) == first


def test_scores_of_a_confusion_matrix_move_as_if_examples_were_drawn():
    rng = np.random.default_rng(0)
    truth = rng.choice(3, size=300, p=[0.6, 0.3, 0.1])
    predicted = np.where(rng.random(300) < 0.7, truth, rng.integers(0, 3, 300))
    statistics = {"macro_f1": macro_f1_of_counts, "matthews": matthews_of_counts}
    found = confusion_intervals(confusion_matrix(truth, predicted, 3), statistics, resamples=4000)
    for name, metric in (("macro_f1", macro_f1), ("matthews", matthews_correlation)):
        drawn = [rng.integers(0, 300, 300) for _ in range(2000)]
        scores = [metric(truth[rows].tolist(), predicted[rows].tolist(), 3) for rows in drawn]
        assert found[name].estimate == pytest.approx(metric(truth.tolist(), predicted.tolist(), 3))
        assert (found[name].low, found[name].high) == pytest.approx(np.quantile(scores, [0.025, 0.975]), abs=0.012)


def test_classes_that_do_not_occur_do_not_count():
    found = confusion_intervals(
        np.diag([3, 5, 0]), {"macro_f1": macro_f1_of_counts, "matthews": matthews_of_counts}, resamples=50
    )
    assert found["macro_f1"].low == found["macro_f1"].estimate == found["matthews"].estimate == 1.0
    alone = confusion_intervals(np.diag([4, 0]), {"matthews": matthews_of_counts}, resamples=50)
    assert (alone["matthews"].estimate, alone["matthews"].high) == (0.0, 0.0)


def test_equal_examples_leave_no_doubt():
    interval = bootstrap_interval([1.0, 1.0, 1.0])
    assert (interval.low, interval.estimate, interval.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("values", "options"), [([], {}), ([1.0], {"resamples": 0}), ([1.0], {"confidence": 1.0})])
def test_impossible_settings_are_refused(values, options):
    with pytest.raises(InputError, match="bootstrap"):
        bootstrap_interval(values, **options)
