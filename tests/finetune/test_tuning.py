"""Optuna's trials: what it may choose, what it is told, and a search that is killed and goes on."""

import sys

import optuna
import pytest

import bertsmith.finetune.search as search_module
from bertsmith.errors import ConfigError, TrainingError
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.search import STUDY, Range, Tuner, search, usual_space
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.inference import load_pipeline

SETTINGS = FineTuningSettings(epochs=1, batch_size=8, learning_rate=1e-3)
SPACE = {"learning_rate": Range(1e-5, 5e-3, log=True), "epochs": Range(1, 2)}
EXAMPLES = [LabelledText(f"the {word}", None, word) for word in ("book", "man", "bread") * 6]


def tune(model, folder, **changes):
    how = {"space": SPACE, "trials": 4} | changes
    return search(ClassificationTask.of(EXAMPLES), model, EXAMPLES, EXAMPLES, folder, SETTINGS, **how)


def study_of(folder):
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / STUDY)))
    return optuna.load_study(study_name="finetune", storage=storage)


def test_a_search_that_is_killed_tries_what_an_undisturbed_one_tries(tiny_model, tmp_path, monkeypatch):
    whole = tune(tiny_model, tmp_path / "whole")
    calls = []

    def dies(*values, **named):
        calls.append(values)
        if len(calls) in (2, 5):
            raise KeyboardInterrupt
        return fine_tune(*values, **named)

    monkeypatch.setattr(search_module, "fine_tune", dies)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune(tiny_model, tmp_path / "killed")
        # 也可能死在抽取设置的中途：记下了这一次，设置却不全
        study_of(tmp_path / "killed").ask({"epochs": optuna.distributions.IntDistribution(1, 2)})
    monkeypatch.setattr(search_module, "fine_tune", fine_tune)
    killed = tune(tiny_model, tmp_path / "killed")
    assert [row.settings for row in killed.rows] == [row.settings for row in whole.rows]
    assert [row.dev for row in killed.rows] == [row.dev for row in whole.rows]
    # Optuna 自己读得懂这个研究，最好的一次与我们选的相同
    study = study_of(tmp_path / "killed")
    assert [trial.state.name for trial in study.trials if len(trial.params) == 2] == ["COMPLETE"] * 4
    assert study.best_value == pytest.approx(killed.best_row.dev["accuracy"])
    rates = [row.settings["learning_rate"] for row in killed.rows]
    assert len(set(rates)) == 4
    assert all(1e-5 <= rate <= 5e-3 for rate in rates)
    assert {row.settings["epochs"] for row in killed.rows} <= {1, 2}
    assert load_pipeline("classify", tmp_path / "killed" / "model")(["the book"])
    assert tune(tiny_model, tmp_path / "killed") == killed


def test_a_trial_that_diverges_is_a_failed_one(tiny_model, tmp_path, monkeypatch):
    calls = []

    def diverges(*values, **named):
        calls.append(values)
        if len(calls) == 1:
            raise TrainingError("the loss is no finite number")
        return fine_tune(*values, **named)

    monkeypatch.setattr(search_module, "fine_tune", diverges)
    found = tune(tiny_model, tmp_path / "run", trials=2)
    assert [row.name for row in found.rows] == ["trial-001"]
    assert [trial.state.name for trial in study_of(tmp_path / "run").trials] == ["FAIL", "COMPLETE"]
    monkeypatch.setattr(search_module, "fine_tune", lambda *_, **__: (_ for _ in ()).throw(TrainingError("no")))
    with pytest.raises(TrainingError):
        tune(tiny_model, tmp_path / "none", trials=2)


def test_what_is_given_stays_as_it_is():
    space = usual_space(3e-4, fixed=("epochs", "batch_size"))
    assert space.keys() == {"learning_rate", "warmup_share", "layer_decay"}
    assert (space["learning_rate"].low, space["learning_rate"].high) == pytest.approx((6e-5, 9e-4))


def test_what_cannot_be_tuned_is_said(tiny_model, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="two trials or more"):
        tune(tiny_model, tmp_path / "one", trials=1)
    with pytest.raises(ConfigError, match="every setting it varies is given"):
        Tuner(tmp_path / "s", {}, SETTINGS, maximized="accuracy")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'bertsmith\[tune\]'"):
        Tuner(tmp_path / "s", SPACE, SETTINGS, maximized="accuracy")
