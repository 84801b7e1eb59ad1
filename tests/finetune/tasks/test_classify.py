import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import LabelledText, MultiLabelledText, ScoredText
from bertsmith.finetune.predict import as_line
from bertsmith.finetune.report import write_report
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings, compute_dtype
from bertsmith.finetune.tasks.classify import ClassificationTask, MultiLabelTask
from bertsmith.finetune.tasks.features import FeatureTaggingTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.finetune.tasks.task import new_model
from bertsmith.inference import load_pipeline
from bertsmith.inference.classify import LabelsPrediction, Prediction
from bertsmith.kernels.layers import Dropout
from bertsmith.model.architectures import (
    ModelForMaskedLM,
    ModelForMultipleChoice,
    ModelForQuestionAnswering,
    ModelForTokenClassification,
)
from bertsmith.model.family import families

GOOD, BAD = ("bread", "book"), ("man", "woman")


def make_examples(count, offset=0):
    """The label depends on one word, so that a small model can learn it."""
    examples = []
    for i in range(count):
        label = "good" if (i + offset) % 2 else "bad"
        word = (GOOD if label == "good" else BAD)[(i // 2) % 2]
        examples.append(LabelledText(f"the {word} reads" if i % 3 else f"a {word} !", None, label))
    return examples


def fine_tune_classifier(folder, train, dev, run, settings):
    """Fine-tunes and returns the evaluation on dev."""
    return fine_tune(ClassificationTask.of(train), folder, train, dev, run, settings).dev


SETTINGS = FineTuningSettings(epochs=4, batch_size=8, learning_rate=2e-3)


def test_a_classifier_learns_and_is_saved_for_everybody(tiny_model, tmp_path):
    run = tmp_path / "run"
    scores = fine_tune_classifier(tiny_model, make_examples(64), make_examples(20, offset=1), run, SETTINGS)
    assert scores.metrics["accuracy"] == 1.0
    assert {label: row.f1 for label, row in scores.classes.items()} == {"bad": 1.0, "good": 1.0}
    texts = [example.text for example in make_examples(10)]
    predictions = load_pipeline("classify", run / "model")(texts)
    assert [p.label for p in predictions] == [example.label for example in make_examples(10)]
    assert all(sum(p.probabilities.values()) == pytest.approx(1.0) for p in predictions)
    reference = transformers.pipeline("text-classification", str(run / "model"))
    assert [row["label"] for row in reference(texts)] == [p.label for p in predictions]


def test_of_epochs_that_do_equally_well_the_first_is_kept(tiny_model, tmp_path):
    train = make_examples(16)
    settings = replace(SETTINGS, epochs=3, learning_rate=1e-12)
    found = fine_tune(ClassificationTask.of(train), tiny_model, train, train, tmp_path / "run", settings)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({row["accuracy"] for row in rows if row["kind"] == "dev"}) == 1
    assert found.epoch == 1


def test_the_same_command_again_reads_the_result(tiny_model, tmp_path, monkeypatch):
    run = tmp_path / "run"
    arguments = (tiny_model, make_examples(16), make_examples(8), run, SETTINGS)
    first = fine_tune_classifier(*arguments)
    monkeypatch.setattr("bertsmith.finetune.run.BertTrainer", lambda *_, **__: pytest.fail("trained again"))
    assert fine_tune_classifier(*arguments) == first
    with pytest.raises(RunFolderError, match="holds a finetune with another epochs and seed;"):
        fine_tune_classifier(*arguments[:-1], replace(SETTINGS, epochs=7, seed=9))
    with pytest.raises(RunFolderError, match="another train"):
        fine_tune_classifier(tiny_model, make_examples(18), make_examples(8), run, SETTINGS)
    (run / "result.json").write_text(json.dumps({"accuracy": 1.0}))
    with pytest.raises(RunFolderError, match="damaged"):
        fine_tune_classifier(*arguments)


def test_a_run_of_an_earlier_version_says_which(tiny_model, tmp_path):
    run = tmp_path / "run"
    arguments = (tiny_model, make_examples(16), make_examples(8), run, SETTINGS)
    fine_tune_classifier(*arguments)
    claim = json.loads((run / "finetune.json").read_text())
    del claim["format"]
    (run / "finetune.json").write_text(json.dumps(claim))
    for call in (lambda: fine_tune_classifier(*arguments), lambda: write_report(run)):
        with pytest.raises(RunFolderError, match=r"run: was written by bertsmith 0\.1, which alone can resume it"):
            call()


def test_a_run_from_a_machine_of_another_precision_says_how_to_go_on(tiny_model, tmp_path, monkeypatch):
    here = compute_dtype("auto", "cpu")
    begun, there = ("float32", torch.float32) if here == torch.bfloat16 else ("bf16", torch.bfloat16)
    job = (tiny_model, make_examples(16), make_examples(8), tmp_path / "run")
    short = replace(SETTINGS, epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.finetune.run.compute_dtype", lambda *_: there)
        first = fine_tune_classifier(*job, short)
    with pytest.raises(RunFolderError, match=rf"was begun in {begun}, .* pass --precision {begun} to resume"):
        fine_tune_classifier(*job, short)
    assert fine_tune_classifier(*job, replace(short, precision=begun)) == first


def test_from_random_starts_from_other_weights(tiny_model, tmp_path):
    settings = FineTuningSettings(epochs=1, learning_rate=1e-9, from_random=True)
    fine_tune_classifier(tiny_model, make_examples(8), make_examples(8), tmp_path / "run", settings)
    from safetensors.torch import load_file

    start = load_file(tiny_model / "model.safetensors")
    end = load_file(tmp_path / "run" / "model" / "model.safetensors")
    name = "bert.embeddings.word_embeddings.weight"
    assert (start[name] - end[name]).abs().max() > 0.01


def test_pairs_have_two_segments(tiny_model, tmp_path):
    examples = [
        LabelledText("the man", "eats bread" if i % 2 else "reads a book", "yes" if i % 2 else "no") for i in range(32)
    ]
    fine_tune_classifier(tiny_model, examples, examples, tmp_path / "run", SETTINGS)
    pipeline = load_pipeline("classify", tmp_path / "run" / "model")
    predictions = pipeline(["the man", "the man"], ["eats bread", "reads a book"])
    assert [p.label for p in predictions] == ["yes", "no"]


def test_an_unknown_label_in_dev_is_refused(tiny_model, tmp_path):
    dev = [LabelledText("the man", None, "middling")]
    with pytest.raises(InputError, match="label 'middling' does not occur"):
        fine_tune_classifier(tiny_model, make_examples(8), dev, tmp_path / "run", SETTINGS)


def test_an_empty_dev_file_and_mixed_forms_are_refused(tiny_model, tmp_path):
    with pytest.raises(InputError, match="at least one example"):
        fine_tune_classifier(tiny_model, make_examples(8), [], tmp_path / "run", SETTINGS)
    pairs = [LabelledText("the man", "eats", "good")]
    with pytest.raises(InputError, match="a pair of texts"):
        fine_tune_classifier(tiny_model, make_examples(8), pairs, tmp_path / "run", SETTINGS)


def test_a_folder_without_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no config.json; this is not a model folder"):
        fine_tune_classifier(tmp_path, make_examples(8), make_examples(8), tmp_path / "run", SETTINGS)


def test_numbers_of_any_size_are_learned(tiny_model, tmp_path):
    settings = FineTuningSettings(epochs=12, batch_size=8, learning_rate=1e-3, precision="float32")
    words = {"bread": 0.0, "book": 1.0}
    for name, unit in (("one", 1.0), ("thousands", 1000.0), ("billionths", 1e-9), ("billions", 1e10)):
        examples = [
            ScoredText(f"the man {verb} a {word} .", None, 5 * unit + unit * value)
            for verb in ("eats", "reads", "the", "!")
            for word, value in words.items()
        ] * 4
        task = RegressionTask.of(examples)
        result = fine_tune(task, tiny_model, examples, examples[:8], tmp_path / name, settings)
        assert result.dev.metrics["rmse"] < 0.35 * unit
        found = load_pipeline("regress", tmp_path / name / "model", precision="float32")([examples[0].text])
        assert found[0] == pytest.approx(5 * unit, abs=0.4 * unit)


@pytest.mark.parametrize(
    ("scores", "message"), [([0.1] * 3, "all the same"), ([4.4] * 7, "all the same"), ([1e9, 1e9 + 1], "too close")]
)
def test_numbers_that_cannot_be_told_apart_are_refused(scores, message):
    with pytest.raises(InputError, match=message):
        RegressionTask.of([ScoredText("the man", None, score) for score in scores])


def test_a_dev_file_that_cannot_choose_is_refused(tiny_model, tmp_path):
    settings = FineTuningSettings(epochs=1, precision="float32")
    scored = [ScoredText("the man", None, 1.0), ScoredText("a book", None, 2.0)]
    labelled = [MultiLabelledText("the man", None, ("x",)), MultiLabelledText("a book", None, ())]
    classes = [LabelledText("the man", None, "x"), LabelledText("a book", None, "y")]
    tagged = [TaggedWords(("the", "man"), ("O", "B-PER")), TaggedWords(("a", "book"), ("O", "O"))]
    for task, train, dev in (
        (RegressionTask.of(scored), scored, scored[:1] * 2),
        (MultiLabelTask.of(labelled), labelled, labelled[1:]),
        (TaggingTask.of(tagged), tagged, tagged[1:]),
        (FeatureTaggingTask.of(tagged, layers="last"), tagged, tagged[1:]),
        (ClassificationTask.of(classes, metric="matthews"), classes, classes[1:]),
        (ClassificationTask.of(classes, metric="f1"), classes, classes[:1]),
    ):
        with pytest.raises(InputError, match="no epoch can be chosen"):
            fine_tune(task, tiny_model, train, dev, tmp_path / f"{task.name}-{task.metric}", settings)


def test_the_threshold_of_labels_is_the_best_there_is():
    """With hundreds of labels all probabilities may be small; every one of them is tried as a threshold."""
    rng = np.random.default_rng(0)
    labels = tuple(f"label{number}" for number in range(200))
    examples, predictions = [], []
    for _ in range(30):
        true = rng.choice(labels, 2, replace=False).tolist()
        likely = {label: round(float(rng.random()) * 0.02 + 0.012 * (label in true), 4) for label in labels}
        examples.append(MultiLabelledText("x", None, tuple(true)))
        predictions.append(LabelsPrediction([], likely))
    task = MultiLabelTask(labels)
    tuned = task.with_best_threshold(examples, predictions)
    candidates = {value for prediction in predictions for value in prediction.probabilities.values()}
    scores = [replace(task, threshold=t).metrics(examples, predictions)["micro_f1"] for t in candidates]
    assert tuned.metrics(examples, predictions)["micro_f1"] == max(scores) > 0.1
    # where all are told apart anyhow, it stays in the middle
    sure = [LabelsPrediction([], {label: 0.9 if label in e.labels else 0.2 for label in labels}) for e in examples]
    assert task.with_best_threshold(examples, sure).threshold == 0.5


def test_no_more_is_read_than_the_model_does(tiny_model, tmp_path):
    classes = [LabelledText("the man", None, "x"), LabelledText("a book", None, "y")]
    task, settings = ClassificationTask.of(classes), FineTuningSettings(max_length=100_000)
    with pytest.raises(ConfigError, match="max length 100000: .* reads .* pieces at most"):
        fine_tune(task, tiny_model, classes, classes, tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()


def test_dropout_is_that_of_the_head_too(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"classifier_dropout": 0.3}
    (folder / "config.json").write_text(json.dumps(config))
    task = ClassificationTask(("x", "y"))
    assert task.build(folder, FineTuningSettings()).classifier.dropout.probability == 0.3
    assert task.build(folder, FineTuningSettings(dropout=0.0)).classifier.dropout.probability == 0.0


@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.model_type)
def test_a_rate_of_dropout_is_every_one_of_a_family(family, tmp_path):
    ModelForMaskedLM(family.config.named("1/64", vocab_size=20)).save_pretrained(tmp_path)
    settings = FineTuningSettings(dropout=0.3, from_random=True)
    for head in (ModelForMultipleChoice, ModelForQuestionAnswering, ModelForTokenClassification):
        parts = new_model(head, tmp_path, settings, id2label={0: "x", 1: "y"}).modules()
        rates = {part.probability for part in parts if isinstance(part, Dropout)}
        # DistilBERT 的块在注意力之后没有 dropout
        assert rates <= {0.0, 0.3}, head
        assert 0.3 in rates


def test_a_run_that_was_killed_with_its_result_written_leaves_no_state(tiny_model, tmp_path):
    classes = [LabelledText("the man", None, "x"), LabelledText("a book", None, "y")]
    job = (ClassificationTask.of(classes), tiny_model, classes, classes, tmp_path / "run")
    settings = FineTuningSettings(epochs=1, precision="float32")
    first = fine_tune(*job, settings)
    (tmp_path / "run" / "state").mkdir()
    assert fine_tune(*job, settings).dev == first.dev
    assert not (tmp_path / "run" / "state").exists()


def test_of_epochs_with_the_same_correlation_the_one_with_the_smaller_error_is_kept():
    """Outputs that all lie near the mean correlate perfectly too."""
    task = RegressionTask(mean=500.0, spread=500.0)
    near_the_mean = task.selection_score({"pearson": 0.99999, "rmse": 495.0})
    assert task.selection_score({"pearson": 0.9998, "rmse": 3.0}) > near_the_mean
    assert task.selection_score({"pearson": 0.98, "rmse": 1.0}) < near_the_mean


def test_numbers_of_any_size_are_told_apart():
    def line(prediction):
        return as_line({"prediction": prediction, "input": ["good day"]})

    assert line(2.4348e-06) == "2.4348e-06\tgood day"
    assert line(0.5) == "0.5\tgood day"
    assert line(-123456.5) == "-123456\tgood day"
    assert line(1.5613e-05) != line(1.5611e-05)


@pytest.mark.parametrize(("count", "kept"), [(500, True), (501, False)])
def test_very_many_classes_have_no_table_of_confusion(count, kept):
    names = [f"class {number:03}" for number in range(count)]
    task = ClassificationTask(tuple(names), False)
    examples = [LabelledText("text", None, name) for name in names]
    sure = dict.fromkeys(names, 1 / count)
    found = task.evaluate(examples, [Prediction(name, sure) for name in names])
    assert (found.confusion is not None) is kept
    assert len(found.classes) == count
