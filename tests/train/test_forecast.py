"""What a run may be expected to reach: the law by hand, on the runs it was fitted to, and beside a real run."""

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from bertsmith.train import forecast
from bertsmith.train.choosing import recipe_for
from bertsmith.train.forecast import (
    ALARMING,
    EARLIEST_ALARM,
    LAWS,
    Expectation,
    LossLaw,
    effective_tokens,
    expectation_of,
)
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import pretrain
from bertsmith.train.report import write_run_report

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "scaling.jsonl"
LAW = LossLaw(
    start=0.25,
    start_power=2.0,
    share=0.6,
    token_power=0.5,
    size_power=0.5,
    largest_miss=0.1,
    tokens=(1e5, 1e7),
    text_tokens=1e6,
    largest=1e7,
    tokens_per_parameter=20.0,
    progress={1e6: (0.0, 0.6, 1.0), 4e6: (0.0, 0.8, 1.0)},
)


def test_the_law_by_hand():
    # half a million tokens are twice those of half of the beginning: a fifth of it is left
    # four million parameters are worth twice the tokens: half a million count as a million
    assert LAW.loss(4e6, 5e5, 7.0) == pytest.approx(7 * (0.2 + 0.8 * 0.6))
    assert LAW.loss(1e6, 4e6, 7.0) == pytest.approx(7 * (1 / 257 + 256 / 257 * 0.6 / 2))
    # before anything is read there are the frequencies
    assert LAW.loss(1e6, 0.0, 7.0) == 7.0
    assert LAW.loss(1e6, 1e-3, 7.0) == pytest.approx(7.0)
    assert LAW.loss_at(0.25, 1e6, 4.0, 7.0) == pytest.approx(7 - 0.3 * 3)
    # twice a million is half of the way from one to four, in logarithms; outside there is nothing to go by
    assert LAW.loss_at(0.25, 2e6, 4.0, 7.0) == pytest.approx(7 - 0.35 * 3)
    assert LAW.loss_at(0.25, 1e9, 4.0, 7.0) == pytest.approx(7 - 0.4 * 3)
    assert LAW.loss_at(1.0, 1e6, 4.0, 7.0) == 4.0


def test_tokens_read_again_count_less():
    assert effective_tokens(5e5, 1e6) == 5e5
    assert effective_tokens(2e6, 1e6) == pytest.approx(1e6 * (1 + 15.4 * (1 - math.exp(-1 / 15.4))))
    assert 1e6 < effective_tokens(1.5e6, 1e6) < 1.5e6
    # the formula's limit: however often it is read, a text is worth its tokens and R* times as many
    assert effective_tokens(1e12, 1e6) == pytest.approx(16.4e6)


def test_each_law_tells_the_runs_it_was_fitted_to():
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    fitted = [row for row in rows if row["family"] in LAWS]
    assert {row["family"] for row in fitted} == set(LAWS)
    for row in fitted:
        law = LAWS[row["family"]]
        foretold = law.loss(row["parameters"], row["tokens"], row["unigram_entropy"], text_tokens=law.text_tokens)
        assert foretold == pytest.approx(row["mlm_loss"], abs=law.largest_miss)
        assert law.doubts(row["parameters"], row["tokens"], law.text_tokens) == []
        assert row["tokens"] <= law.tokens_per_parameter * row["parameters"]
        expected = Expectation(law, row["parameters"], row["unigram_entropy"], law.text_tokens)
        for done, loss in row["curve"]:
            if done >= EARLIEST_ALARM:
                assert loss < expected.loss_at(done, done * row["tokens"]) + ALARMING, "no alarm in a good run"


def test_what_sets_a_run_apart_is_said():
    assert LAW.doubts(1e7, 1e7, 1e6) == []
    assert LAW.doubts(2e7, 1e6, 1e6) == ["no model of more than 10.0 M parameters in its blocks was measured"]
    assert LAW.doubts(1e6, 5e4, 1e6) == ["no run of fewer than 0.10 M tokens was measured"]
    (too_many,) = LAW.doubts(1e5, 4e6, 1e6)
    assert too_many.startswith("no run of more than 20 tokens for each parameter was measured")
    too_long, too_often = LAW.doubts(1e6, 2e7, 5e4)
    assert too_long == "no run of more than 10 M tokens was measured"
    assert too_often == "the text would be read 400 times, and 10 is the most that was measured"


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "mlm+nsp"},
        {"family": "distilbert"},
        {"masking": "span"},
        {"first_vectors": "drawn"},
        {"from": "elsewhere"},
        {"phases": ((128, 1.0),)},
        {"optimizer": "adamw"},
        {"batch_size": 128},
        {"mask_rate": 0.15},
        {"learning_rate": 3e-3},
        {"sequence_length": 64},
        {"dropout": 0.1},
    ],
)
def test_of_other_runs_nothing_is_known(village, settings, monkeypatch):
    monkeypatch.setattr(forecast, "LAWS", {"bert": LAW})
    corpus, tokenizer, _ = village
    recipe = recipe_for("1/64", **{"family": "bert", "objective": "mlm", "steps": 1, **settings})
    config = recipe_for("1/64", family=recipe.model.family, steps=1).model_config(tokenizer)
    assert expectation_of(recipe, config, corpus) is None


def test_draws_and_precision_change_no_expectation(village, monkeypatch):
    monkeypatch.setattr(forecast, "LAWS", {"bert": LAW})
    corpus, tokenizer, _ = village
    usual = recipe_for("1/64", objective="mlm", steps=1)
    config = usual.model_config(tokenizer)
    for settings in ({"seed": 3}, {"precision": "bf16"}, {"steps": 9, "minutes": 1.0}, {"dropout": 0.0}):
        assert expectation_of(usual.changed(**settings), config, corpus), settings


def test_of_larger_models_than_were_measured_nothing_is_known(village, monkeypatch):
    corpus, tokenizer, _ = village
    recipe = recipe_for("1/64", family="modernbert", steps=1)
    config = recipe.model_config(tokenizer)
    assert expectation_of(recipe, config, corpus)
    monkeypatch.setattr(forecast, "LAWS", {"modernbert": LossLaw(**{**vars(LAW), "largest": 1.0})})
    assert expectation_of(recipe, config, corpus) is None


@pytest.mark.parametrize(("fewest", "times"), [(1.0, 1), (1e9, 0)], ids=["measured", "shorter than any measured"])
def test_a_run_shows_what_it_should_reach_and_says_when_it_does_not(village, tmp_path, monkeypatch, fewest, times):
    corpus, tokenizer, _ = village
    shown = io.StringIO()
    recipe = recipe_for("1/64", family="modernbert", steps=24, seed=7, precision="float32")
    # a law that promises the impossible
    monkeypatch.setattr(
        forecast,
        "LAWS",
        {"modernbert": LossLaw(**{**vars(LAW), "share": 0.01, "start": 1e-5, "tokens": (fewest, 1e9)})},
    )
    pretrain(tmp_path / "run", corpus, tokenizer, recipe, listeners=(), console=Console(file=shown))
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "heldout"]
    assert "expected_mlm_loss" not in rows[0]
    expected = [row["expected_mlm_loss"] for row in rows[1:]]
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] < rows[-1]["mlm_loss"] - 1
    said = " ".join(shown.getvalue().split())
    assert said.count("such runs have") == times
    assert "after 8% of the run" not in said
    assert "data:image/svg+xml;base64" in write_run_report([tmp_path / "run"], tmp_path / "report.html").read_text()
