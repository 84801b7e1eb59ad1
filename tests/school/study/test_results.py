"""What is concluded from the rows of a study."""

import numpy as np
import pytest
from scipy import stats

from bertsmith_school.study.report import columns_of, conclusion, difference, mean_of
from bertsmith_school.study.study import Row


def rows_of(**figures):
    return [Row(arm, "", seed, {"loss": value}) for arm, values in figures.items() for seed, value in enumerate(values)]


def test_a_difference_is_that_of_a_paired_t_test():
    ours, theirs = [3.1, 3.4, 3.2, 3.0], [3.3, 3.5, 3.5, 3.1]
    found = difference(rows_of(a=ours, b=theirs), "a", "b", "loss")
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.value == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert found.is_clear
    assert found.pairs == 4


def test_only_seeds_of_both_are_pairs_and_failed_runs_are_none():
    rows = [*rows_of(a=[1.0, 2.0, 3.0], b=[1.5, 2.5]), Row("b", "", 2, {"loss": 99.0}, error="lost")]
    assert difference(rows, "a", "b", "loss").pairs == 2
    assert difference(rows, "a", "b", "accuracy") is None
    assert mean_of(rows, "b", "loss").value == pytest.approx(2.0)
    assert mean_of(rows, "b", "loss").error == pytest.approx(stats.sem([1.5, 2.5]))
    assert mean_of(rows, "c", "loss") is None


def test_a_conclusion_says_no_more_than_the_intervals():
    rows = rows_of(base=[3.0, 3.1, 3.2], good=[2.5, 2.6, 2.71], bad=[3.5, 3.6, 3.71], same=[2.9, 3.2, 3.1])
    said = conclusion(rows, ["base", "good", "bad", "same"], "loss")
    assert said == "better than base are good; worse than base are bad; not to be told apart from base: same."
    # 准确率越高越好，方向相反
    higher = [Row(row.arm, "", row.seed, {"accuracy": row.figures["loss"]}) for row in rows]
    assert conclusion(higher, ["base", "good"], "accuracy") == "worse than base are good."
    assert "one seed" in conclusion(rows_of(base=[3.0], good=[1.0]), ["base", "good"], "loss")
    assert conclusion(rows, ["base", "nobody"], "loss") == ""


def test_columns_are_the_studys_own_then_the_tasks():
    rows = [Row("a", "", 0, {"loss": 1.0, "bits per character": 2.0, "sst2": 0.5}), Row("b", "", 0, {"pos": 0.1})]
    assert columns_of(rows, ("loss",)) == ["loss", "sst2", "pos"]
    assert columns_of(rows, ("bits per character",)) == ["bits per character", "sst2", "pos"]
