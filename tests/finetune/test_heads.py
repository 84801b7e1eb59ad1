"""A model that was tuned before goes on with its head: its labels in their new order, on its old scale."""

import json

import numpy as np
import pytest
from rich.console import Console

from bertsmith.finetune.datasets.questions import Answer, QuestionExample
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import (
    ChoiceExample,
    LabelledText,
    MultiLabelledText,
    RankingExample,
    ScoredText,
)
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import task_named
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.inference import load_pipeline
from bertsmith.inference.engine import InferenceConfig
from bertsmith.tokenizer import load_tokenizer

TEXTS = [f"the {one} {two}" for one in ("man", "woman", "book", "bread") for two in ("reads", "eats", "walks", "sees")]
SETTINGS = FineTuningSettings(epochs=6, batch_size=4, learning_rate=3e-3, dropout=0.0, average=0.0)
EXAMPLES = {
    "classify": [LabelledText(text, None, text.split()[1]) for text in TEXTS],
    "multilabel": [MultiLabelledText(text, None, tuple(text.split()[1:])) for text in TEXTS],
    "regress": [ScoredText(text, None, 100.0 + 7 * len(text)) for text in TEXTS],
    "rank": [RankingExample(text, text.split()[n], float(n == 1)) for text in TEXTS for n in (1, 2)],
    "tag": [TaggedWords(tuple(text.split()), ("O", "B-X", "O")) for text in TEXTS],
    "features": [TaggedWords(tuple(text.split()), ("O", "B-X", "O")) for text in TEXTS],
    "choose": [ChoiceExample(text, (text.split()[1], text.split()[2]), 1) for text in TEXTS],
    "answer": [QuestionExample(text, "who", text, (Answer(text.split()[1], 4),)) for text in TEXTS],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_tuned_model_begins_where_it_ended(name, tiny_model, tmp_path):
    examples = EXAMPLES[name]
    task = task_named(name).of(examples, **({"tagger_head_size": 8, "layers": "last"} if name == "features" else {}))
    fine_tune(task, tiny_model, examples, examples, tmp_path / "run", SETTINGS)
    folder = tmp_path / "run" / "model"
    # 换一个种子：同一个种子的新头恰好等于起点，会掩盖丢头的毛病
    model = task.build(folder, FineTuningSettings(seed=9)).eval()
    with task.on_scale(model):
        begun = task.predict(model, load_tokenizer(folder), examples, InferenceConfig())
    ended = task.predict(task.load(folder).eval(), load_tokenizer(folder), examples, InferenceConfig())
    if name == "regress":
        assert begun == pytest.approx(ended, rel=1e-4)
    else:
        first, second = (task.metrics(examples, found) for found in (begun, ended))
        assert first == pytest.approx(second, abs=1e-6)
    assert task.fresh_because(folder, SETTINGS) == ""
    assert task.fresh_because(tiny_model, SETTINGS)


def test_the_head_is_said_and_labels_in_another_order_are_mapped(tiny_model, tmp_path):

    examples = EXAMPLES["classify"]
    labels = ("woman", "bread", "man", "book")
    fine_tune(ClassificationTask(labels), tiny_model, examples, examples, tmp_path / "run", SETTINGS)
    before = load_pipeline("classify", tmp_path / "run" / "model")(TEXTS)
    console = Console(record=True, width=400)
    one_step = FineTuningSettings(epochs=1, learning_rate=1e-9, seed=5)
    task = ClassificationTask.of(examples)
    fine_tune(task, tmp_path / "run" / "model", examples, examples, tmp_path / "on", one_step, console=console)
    assert "is kept" in console.export_text()
    after = load_pipeline("classify", tmp_path / "on" / "model")(TEXTS)
    assert json.loads((tmp_path / "on" / "model" / "config.json").read_text())["id2label"]["0"] == "book"
    for one, other in zip(before, after, strict=True):
        assert [one.probabilities[label] for label in labels] == pytest.approx(
            [other.probabilities[label] for label in labels], abs=1e-4
        )
    other = [LabelledText(text, None, text.split()[2]) for text in TEXTS]
    with pytest.warns(UserWarning, match=r"starts afresh: the folder's has other labels \(woman, bread, man, book\)"):
        fine_tune(ClassificationTask.of(other), tmp_path / "run" / "model", other, other, tmp_path / "new", one_step)
    scored = EXAMPLES["regress"]
    assert RegressionTask.of(scored).fresh_because(tmp_path / "run" / "model", one_step)


def test_numbers_on_another_scale_go_on_as_they_were(tiny_model, tmp_path):
    examples = EXAMPLES["regress"]
    fine_tune(RegressionTask.of(examples), tiny_model, examples, examples, tmp_path / "run", SETTINGS)
    wider = [ScoredText(one.text, None, one.score * 3 - 50) for one in examples]
    task = RegressionTask.of(wider)
    model = task.build(tmp_path / "run" / "model", FineTuningSettings(seed=9)).eval()
    with task.on_scale(model):
        begun = task.predict(model, load_tokenizer(tiny_model), wider, InferenceConfig())
    assert begun == pytest.approx(np.asarray(load_pipeline("regress", tmp_path / "run" / "model")(TEXTS)), rel=1e-4)
