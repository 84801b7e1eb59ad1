from functools import partial

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, f1_score, matthews_corrcoef

from bertsmith.errors import InputError
from bertsmith.finetune.metrics import (
    Interval,
    average_precision_interval,
    bootstrap_interval,
    confusion_intervals,
    correlation_columns,
    correlation_of_means,
    f1_of_means,
    in_digits,
    in_words,
    macro_f1_of_counts,
    matthews_of_counts,
)
from bertsmith.seeding import generator


@pytest.mark.parametrize("columns", [1, 3, 5])
def test_the_bounds_are_those_of_scipy_for_the_same_draws(columns):
    rng = np.random.default_rng(columns)
    values = rng.random((150, columns))
    statistic = {1: lambda means: means[:, 0], 3: f1_of_means, 5: correlation_of_means}[columns]
    if columns == 5:
        values = correlation_columns(values[:, 0] + 1000, values[:, 0] + rng.normal(size=150))

    def scores(*drawn, axis):
        means = np.stack([column.mean(axis) for column in drawn], -1)
        return statistic(means.reshape(-1, columns)).reshape(means.shape[:-1])

    peer = stats.bootstrap(
        tuple(values.T),
        scores,
        paired=True,
        n_resamples=1000,
        method="percentile",
        random_state=generator(0, "bootstrap"),
    ).confidence_interval
    ours = bootstrap_interval(values, statistic)
    assert (ours.low, ours.high) == pytest.approx((peer.low, peer.high), rel=1e-12)


def test_scores_of_a_confusion_matrix_move_as_if_examples_were_drawn():
    rng = np.random.default_rng(0)
    truth = rng.choice(3, size=300, p=[0.6, 0.3, 0.1])
    predicted = np.where(rng.random(300) < 0.7, truth, rng.integers(0, 3, 300))
    statistics = {"macro_f1": macro_f1_of_counts, "matthews": matthews_of_counts}
    found = confusion_intervals(truth, predicted, 3, statistics)
    for name, metric in (("macro_f1", partial(f1_score, average="macro")), ("matthews", matthews_corrcoef)):
        drawn = [rng.integers(0, 300, 300) for _ in range(400)]
        scores = [metric(truth[rows].tolist(), predicted[rows].tolist()) for rows in drawn]
        assert found[name].estimate == pytest.approx(metric(truth.tolist(), predicted.tolist()))
        assert (found[name].low, found[name].high) == pytest.approx(np.quantile(scores, [0.025, 0.975]), abs=0.02)


def test_classes_that_do_not_occur_do_not_count():
    statistics, two = {"macro_f1": macro_f1_of_counts, "matthews": matthews_of_counts}, [0] * 3 + [1] * 5
    found = confusion_intervals(two, two, 3, statistics)
    assert found["macro_f1"].low == found["macro_f1"].estimate == found["matthews"].estimate == 1.0
    alone = confusion_intervals([0] * 4, [0] * 4, 2, {"matthews": matthews_of_counts})
    assert (alone["matthews"].estimate, alone["matthews"].high) == (0.0, 0.0)


def test_no_example_has_no_interval():
    with pytest.raises(InputError, match="bootstrap"):
        bootstrap_interval([])


def test_scores_of_any_size_are_printed_with_digits():
    assert [in_digits(value) for value in (0.0, 1.0, 0.91249, -0.25, 31.5)] == [
        "0.000",
        "1.000",
        "0.912",
        "-0.250",
        "31.500",
    ]
    assert [in_digits(value) for value in (2.4348e-06, -0.0001, 1.25e30)] == ["2.435e-06", "-0.0001", "1.25e+30"]
    assert in_words(0.912, Interval(0.912, 0.8931, 0.931)) == "0.912 (0.893 to 0.931)"
    assert in_words(31.5) == "31.500"


def test_average_precision_and_its_interval_equal_scikit_learn():
    draws = np.random.default_rng(4)
    right = draws.random(120) < 0.4
    scores = np.round(right + draws.standard_normal(120), 1)
    found = average_precision_interval(right, scores)
    assert found.estimate == pytest.approx(average_precision_score(right, scores))
    again = draws.integers(0, 120, (1000, 120))
    expected = np.quantile([average_precision_score(right[row], scores[row]) for row in again], [0.025, 0.975])
    assert [found.low, found.high] == pytest.approx(expected.tolist(), abs=0.03)
