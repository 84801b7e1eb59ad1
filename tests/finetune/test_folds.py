"""Cross-validation scores every labelled example once, by a model that never saw it, and survives a kill."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

import bertsmith.finetune.folds as folds_module
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.questions import QuestionExample
from bertsmith.finetune.datasets.rankings import RankingExample
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.folds import cross_validate, fold_numbers
from bertsmith.finetune.job import ComparisonOptions, Job, run_job
from bertsmith.finetune.run import FineTuningResult, fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.answer import AnsweringTask
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.rank import RankingTask
from bertsmith.finetune.teaching import TeachingOptions
from bertsmith.inference import load_pipeline

SETTINGS = FineTuningSettings(epochs=1, batch_size=8, learning_rate=2e-3)


def labelled(count, shares=("good", "bad", "bad")):
    return [LabelledText(f"the man {number} reads", None, shares[number % len(shares)]) for number in range(count)]


def test_parts_have_the_classes_of_the_whole_like_scikit_learns():
    examples = labelled(97, ("good", "bad", "bad", "bad", "fair", "bad", "bad"))
    parts = fold_numbers(ClassificationTask.of(examples), examples, 5, seed=3)
    labels = [example.label for example in examples]
    splits = StratifiedKFold(5, shuffle=True, random_state=0).split(labels, labels)
    theirs = sorted(sorted(Counter(labels[place] for place in test).items()) for _, test in splits)
    ours = sorted(
        sorted(Counter(label for label, part in zip(labels, parts, strict=True) if part == number).items())
        for number in range(5)
    )
    for one, two in zip(ours, theirs, strict=True):
        for label in ("good", "bad", "fair"):
            assert abs(dict(one)[label] - dict(two)[label]) <= 1
    assert parts == fold_numbers(ClassificationTask.of(examples), examples, 5, seed=3)
    assert parts != fold_numbers(ClassificationTask.of(examples), examples, 5, seed=4)


def test_what_belongs_together_stays_together():
    rows = [RankingExample(f"query {number // 4}", f"text {number}", float(number % 4 == 0)) for number in range(40)]
    parts = fold_numbers(RankingTask.of(rows), rows, 5, seed=0)
    assert all(len(set(parts[first : first + 4])) == 1 for first in range(0, 40, 4))
    assert Counter(parts) == dict.fromkeys(range(5), 8)
    questions = [QuestionExample(str(n), f"q{n}", f"passage {n % 3}", ()) for n in range(9)]
    found = fold_numbers(AnsweringTask(), questions, 3, seed=0)
    assert all(len({found[n] for n in range(9) if n % 3 == one}) == 1 for one in range(3))
    # 重复的文本若分在两边，测试集就见过了
    twice = labelled(10) * 2
    parts = fold_numbers(ClassificationTask.of(twice), twice, 4, seed=0)
    assert parts[:10] == parts[10:]
    with pytest.raises(InputError, match="10 examples that do not belong together, for 11 folds"):
        fold_numbers(ClassificationTask.of(twice), twice, 11, seed=0)
    with pytest.raises(ConfigError, match="give 2 or more"):
        fold_numbers(ClassificationTask.of(twice), twice, 1, seed=0)


def test_cross_validation_goes_on_after_a_kill_and_reports_mean_and_deviation(tiny_model, tmp_path, monkeypatch):
    examples, task = labelled(30), ClassificationTask.of(labelled(30))
    seen = []

    def dies(*values, test, **named):
        seen.append((values[2], values[3], test))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return fine_tune(*values, test=test, **named)

    monkeypatch.setattr(folds_module, "fine_tune", dies)
    with pytest.raises(KeyboardInterrupt):
        cross_validate(task, tiny_model, examples, None, tmp_path / "run", SETTINGS, folds=3)
    monkeypatch.setattr(folds_module, "fine_tune", fine_tune)
    found = cross_validate(task, tiny_model, examples, None, tmp_path / "run", SETTINGS, folds=3)
    for learned, chooses, scored in seen:
        texts = [{example.text for example in part} for part in (learned, chooses, scored)]
        assert len(set.union(*texts)) == sum(map(len, texts)) == 30
    assert [row.name for row in found.rows] == ["fold-1", "fold-2", "fold-3", "all"]
    scores = [
        FineTuningResult.load(tmp_path / f"run/runs/fold-{n}/result.json").test.metrics["accuracy"] for n in (1, 2, 3)
    ]
    spread = found.fold_spread["accuracy"]
    assert (spread.mean, spread.deviation) == pytest.approx((np.mean(scores), np.std(scores, ddof=1)))
    assert found.best == "all"
    assert load_pipeline("classify", tmp_path / "run" / "model")(["the man 1 reads"])
    assert not list((tmp_path / "run").glob("runs/fold-*/model"))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Cross-validation" in page
    assert f"{spread.mean:.4f}" in page
    assert cross_validate(task, tiny_model, examples, None, tmp_path / "run", SETTINGS, folds=3) == found


def test_folds_as_a_job(tiny_model, tmp_path):
    train = tmp_path / "train.tsv"
    train.write_text("".join(f"{example.text}\t{example.label}\n" for example in labelled(24)))
    job = Job("classify", tiny_model, train, None, tmp_path / "run", SETTINGS, comparison=ComparisonOptions(folds=2))
    result = run_job(job)
    assert result.test is None
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "over 2 folds" in card
    assert "a tenth of train.tsv" in card
    assert json.loads((tmp_path / "run" / "search.json").read_text())["folds"] == 2
    for options, words in [
        ({"folds": 2, "seeds": 2}, "leave --search and --seeds out"),
        ({"trials": 5}, "say --search optuna"),
        ({"search": "grid"}, "use paper, optuna"),
    ]:
        with pytest.raises(ConfigError, match=words):
            ComparisonOptions(**options)
    taught = TeachingOptions(teacher=str(tiny_model), teacher_text=(str(train),))
    with pytest.raises(ConfigError, match="leave --teacher-text out"):
        run_job(replace(job, out=tmp_path / "t", teaching=taught))
    with pytest.raises(ConfigError, match="embed has none here"):
        run_job(Job("embed", tiny_model, train, None, tmp_path / "e", SETTINGS, comparison=ComparisonOptions(folds=2)))
