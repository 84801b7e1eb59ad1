"""Calibration against scikit-learn and a fit by torch; thresholds against every cut there is; both in use."""

import json

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, f1_score, log_loss

from bertsmith.errors import ConfigError
from bertsmith.finetune.job import finetune
from bertsmith.finetune.metrics.calibration import (
    BINS,
    best_cut,
    calibration,
    f1_of,
    fit_temperature,
    reliability,
    softened,
    softened_decisions,
)
from bertsmith.finetune.run import FineTuningResult
from bertsmith.inference import load_pipeline
from bertsmith.inference.classify import Classify
from typed_command import typed

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(2000, 3))
TRUTH = np.array([RNG.choice(3, p=row / row.sum()) for row in np.exp(LOGITS)])
TOO_SURE = np.exp(3 * LOGITS) / np.exp(3 * LOGITS).sum(1, keepdims=True)


def test_the_temperature_of_a_model_that_is_three_times_too_sure():
    found = fit_temperature(TOO_SURE, TRUTH)
    scale = torch.zeros(1, requires_grad=True, dtype=torch.float64)
    optimizer = torch.optim.LBFGS([scale], max_iter=200)

    def closure():
        optimizer.zero_grad()
        logits = torch.tensor(3 * LOGITS) / scale.exp()
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(TRUTH))
        loss.backward()
        return loss

    optimizer.step(closure)
    assert found == pytest.approx(float(scale.detach().exp()), rel=1e-3)
    assert found == pytest.approx(3.0, rel=0.1)
    judged = calibration(TOO_SURE, TRUTH, found)
    assert judged.after.error < 0.04 < 0.15 < judged.before.error
    np.testing.assert_allclose(
        softened(TOO_SURE, 3.0), np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True), atol=1e-6
    )
    assert (softened(TOO_SURE, found).argmax(1) == TOO_SURE.argmax(1)).all()


def test_error_and_scores_are_scikit_learns():
    sure, right = TOO_SURE.max(1), TOO_SURE.argmax(1) == TRUTH
    accuracy, confidence = calibration_curve(right, sure, n_bins=BINS, strategy="uniform")
    counts = np.histogram(sure, bins=np.linspace(0, 1, BINS + 1))[0]
    counts = counts[counts > 0]
    found = reliability(TOO_SURE, TRUTH)
    assert [one.accuracy for one in found.bins] == pytest.approx(accuracy)
    assert [one.confidence for one in found.bins] == pytest.approx(confidence)
    assert found.error == pytest.approx(float((counts * abs(accuracy - confidence)).sum() / counts.sum()))
    assert found.brier == pytest.approx(brier_score_loss(TRUTH, TOO_SURE, labels=[0, 1, 2], scale_by_half=False))
    assert found.log_loss == pytest.approx(log_loss(TRUTH, TOO_SURE))
    # 逐个判断的标签：每一个判断就是一次二分类
    decisions, labels = RNG.random((300, 4)), RNG.integers(0, 2, (300, 4))
    found = reliability(decisions, labels)
    assert found.brier == pytest.approx(brier_score_loss(labels.ravel(), decisions.ravel()))
    assert found.log_loss == pytest.approx(log_loss(labels.ravel(), decisions.ravel()))
    logits = torch.tensor(RNG.normal(size=(5, 4)))
    np.testing.assert_allclose(softened_decisions(logits.sigmoid().numpy(), 2.0), (logits / 2).sigmoid(), atol=1e-9)


def test_probabilities_of_nothing_and_of_certainty_are_finite():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    judged = calibration(rows, np.array([0, 1, 1]), fit_temperature(rows, np.array([0, 1, 1])))
    assert np.isfinite([judged.before.log_loss, judged.after.log_loss, judged.temperature]).all()
    assert judged.before.bins[-1].count == 3
    # 全对时写 0.0000，不写 -0.0000
    assert f"{reliability(rows[:2], np.array([0, 1])).log_loss:.4f}" == "0.0000"


def test_a_threshold_is_the_best_of_all_cuts():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sure, truth = rng.random(60).round(2), rng.integers(0, 2, 60)
        cut = best_cut(truth, sure)
        # below the least of all, too, where everything is true
        cuts = [f1_score(truth, sure > one) for one in (0.0, *np.unique(sure)[:-1])]
        assert f1_of(truth, sure > cut) == pytest.approx(max(cuts))
    assert best_cut(np.zeros(5, dtype=int), np.linspace(0, 1, 5), 0.3) == 0.3


def test_a_run_fits_reports_saves_and_predicts_with_them(tiny_model, tmp_path, capsys):
    rows = {
        "multilabel": "text\tlabels\n" + "the book\tgood,long\nthe man\tbad\nthe bread\t\na man reads\tlong\n" * 3,
        "classify": "".join(
            f"the {w}\t{label}\n" for w, label in [("book", "good"), ("man", "bad"), ("bread", "bad")] * 4
        ),
    }
    for task, lines in rows.items():
        (tmp_path / f"{task}.tsv").write_text(lines)
        files = [word for part in ("train", "dev", "test") for word in (f"--{part}", tmp_path / f"{task}.tsv")]
        run = tmp_path / task
        typed(capsys, "finetune", task, "--model", tiny_model, *files, "--out", run, "--epochs", 1, "--batch-size", 4)
        saved = json.loads((run / "model" / "task.json").read_text())
        result = FineTuningResult.load(run / "result.json")
        assert saved["temperature"] == result.dev.calibration.temperature != 1.0
        page = (run / "report.html").read_text()
        assert all(heading in page for heading in ("Calibration", "Reliability", "Thresholds of single labels"))
        plain, tempered = load_pipeline(task, run / "model"), load_pipeline(task, run / "model")
        tempered.is_calibrated = tempered.uses_thresholds = True
        (one,), (two,) = plain(["the book"]), tempered(["the book"])
        soften = softened if task == "classify" else softened_decisions
        values = np.array([list(one.probabilities.values())])
        expected = soften(values, saved["temperature"])[0]
        assert list(two.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)
        words = ("predict", "the book", "--model", run / "model", "--calibrated", "--class-thresholds", "--json")
        shown = json.loads(typed(capsys, *words))
        assert list(shown["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)
        if task == "multilabel":
            own = dict(zip(saved["labels"], saved["thresholds"], strict=True))
            assert shown["labels"] == [label for label, value in one.probabilities.items() if value > own[label]]
        else:
            assert shown["prediction"] == ("good" if values[0, 1] > saved["positive_threshold"] else "bad")


def test_what_a_folder_does_not_know_is_said(tiny_model, tmp_path, capsys):
    from bertsmith.model import BertConfig, BertForSequenceClassification
    from bertsmith.tokenizer import WordPieceTokenizer

    config = BertConfig.load(tiny_model).changed(id2label={0: "a", 1: "b", 2: "c"})
    BertForSequenceClassification(config).save_pretrained(tmp_path / "three")
    WordPieceTokenizer.load(tiny_model).save(tmp_path / "three")
    said = typed(capsys, "predict", "x", "--model", tmp_path / "three", "--class-thresholds", code=2)
    assert "only a model of two classes has one" in said
    said = typed(capsys, "predict", "x", "--model", tmp_path / "three", "--constrained", code=2)
    assert said == "bertsmith: --constrained is not for classify; leave it out\n"
    pipeline = load_pipeline("classify", tmp_path / "three")
    with pytest.raises(ConfigError, match="temperature is 0.0; give more than 0"):
        Classify(pipeline.engine.model, pipeline.tokenizer, temperature=0.0)


def test_everything_that_is_fitted_is_fitted_on_dev(tiny_model, tmp_path):
    """Thresholds and temperature of two runs that differ in their test file alone are the same."""
    rows = [("the book", "good"), ("the man", "bad"), ("bread", "bad"), ("a woman", "good")]
    train = [{"text": text, "label": label} for text, label in rows * 4]
    turned = [{"text": text, "label": "good" if label == "bad" else "bad"} for text, label in rows * 4]
    labelled = [{"text": one["text"], "labels": [one["label"]]} for one in train]
    opposite = [{"text": one["text"], "labels": [one["label"]]} for one in turned]
    for task, own, others in (("classify", train, turned), ("multilabel", labelled, opposite)):
        saved = []
        for number, test in enumerate((own, others)):
            run = finetune(task, tiny_model, tmp_path / f"{task}{number}", train=own, dev=own, test=test, epochs=2)
            saved.append(json.loads((run.model_folder / "task.json").read_text()))
        assert saved[0] == saved[1]
        assert saved[0]["temperature"] != 1.0
