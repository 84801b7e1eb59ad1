import ast
import re
from dataclasses import replace

import pytest
import transformers
import yaml
from huggingface_hub import ModelCard

from bertsmith.errors import CheckpointError
from bertsmith.finetune.card import DataFile, model_card
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.metrics import Interval
from bertsmith.finetune.run import FineTuningResult, fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import all_tasks
from bertsmith.finetune.tasks.classify import ClassificationTask, MultiLabelTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.finetune.trials import SearchResult, Trial, spreads
from bertsmith.inference import load_pipeline
from bertsmith.model import BertConfig

SETTINGS = FineTuningSettings(epochs=1, batch_size=8, learning_rate=1e-3, max_length=24)
FILES = {"train": DataFile("my `odd` | train.tsv", 1234), "dev": DataFile("dev.tsv", 56), "test": DataFile("t.tsv", 78)}
RESULT = FineTuningResult(
    2,
    Evaluation({"accuracy": 0.9, "f1_yes": 0.8}, {"accuracy": Interval(0.9, 0.85, 0.95)}),
    Evaluation({"accuracy": 0.7, "f1_yes": 0.6}),
    12.0,
)


def card(folder, task, result=RESULT, **changes):
    arguments = {"settings": SETTINGS, "base": "bert-mini", "files": FILES} | changes
    return model_card(result, task, arguments.pop("settings"), model_folder=folder, **arguments)


def front_matter(text):
    return yaml.safe_load(text.split("---\n")[1])


def test_the_hub_reads_the_front_matter_and_no_licence_is_invented(tiny_model):
    text = card(tiny_model, ClassificationTask(("no", "yes")))
    data = ModelCard(text).data.to_dict()
    assert data["library_name"] == "transformers"
    assert data["pipeline_tag"] == "text-classification"
    assert data["metrics"] == ["accuracy", "f1"]
    assert set(front_matter(text)) == {"library_name", "pipeline_tag", "tags", "metrics"}


def test_scores_data_and_labels_are_told(tiny_model):
    text = card(tiny_model, ClassificationTask(("no", "yes | maybe")))
    assert "| accuracy | 0.900 (0.850 to 0.950) | 0.700 |" in text
    assert "| f1_yes | 0.800 | 0.600 |" in text
    assert "| train | `` my `odd` \\| train.tsv `` | 1,234 | learned from |" in text
    assert "`no`, `yes | maybe`" in text
    assert "| learning_rate | `0.001` |" in text
    assert "epoch 2 was the best on dev" in text
    assert "It reads 24 word pieces at a time" in text
    assert "Upper and lower case are the same to it." in text
    assert "dev figures are somewhat too good; the test figures are not" in text


def test_without_a_test_file_the_card_says_so(tiny_model):
    files = {name: FILES[name] for name in ("train", "dev")}
    text = card(tiny_model, ClassificationTask(("no", "yes")), replace(RESULT, test=None), files=files)
    assert "There was no test file." in text
    assert "t.tsv" not in text
    assert "0.700" not in text


def test_figures_of_files_of_different_kinds_stand_side_by_side(tiny_model):
    result = replace(
        RESULT, dev=Evaluation({"f1": 0.9, "has_answer_f1": 0.8}), test=Evaluation({"f1": 0.7, "map": 0.6})
    )
    text = card(tiny_model, ClassificationTask(("no", "yes")), result)
    assert "| f1 | 0.900 | 0.700 |\n| has_answer_f1 | 0.800 | – |\n| map | – | 0.600 |" in text


def test_a_card_of_a_search_tells_how_often_was_tried_and_the_spread(tiny_model):
    rows = [
        Trial(f"seed{i}", {"seed": i}, 2, {"accuracy": a}, {"accuracy": a - 0.1}, 1.0) for i, a in enumerate((0.8, 0.9))
    ]
    spread = {part: spreads([getattr(row, part) for row in rows]) for part in ("dev", "test")}
    searched = SearchResult("accuracy", rows, "seed1", spread["dev"], spread["test"])
    text = card(tiny_model, ClassificationTask(("no", "yes")), searched=searched)
    assert "It is the best on dev of 2 runs." in text
    assert (
        "Over 2 seeds (mean ± standard deviation): accuracy 0.850 ± 0.071 on dev, accuracy 0.750 ± 0.071 on test."
        in text
    )
    alone = card(
        tiny_model, ClassificationTask(("no", "yes")), searched=SearchResult("accuracy", rows, "seed1", {}, {})
    )
    assert "seeds" not in alone


def test_random_weights_and_the_models_own_length_are_told(tiny_model):
    settings = FineTuningSettings(from_random=True)
    text = card(tiny_model, ClassificationTask(("no", "yes")), settings=settings)
    assert "trained from random weights in the shape of `bert-mini`" in text
    longest = BertConfig.load(tiny_model).max_position_embeddings
    assert f"It reads {longest} word pieces at a time" in text


def code_blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("paired", [False, True])
def test_the_lines_of_code_run(tiny_model, tmp_path, paired):
    """Whoever copies them from the card gets predictions, and the same from both libraries."""
    second = "eats" if paired else None
    train = [LabelledText("the man" if i % 2 else "a book", second, "yes" if i % 2 else "no") for i in range(16)]
    task, run = ClassificationTask.of(train), tmp_path / "run"
    result = fine_tune(task, tiny_model, train, train, run, SETTINGS)
    text = card(run / "model", task, result)
    values = [evaluate(block, run / "model") for block in code_blocks(text)]
    assert len(values) == 2
    ours, theirs = values[0][0], values[1][0] if isinstance(values[1], list) else values[1]
    assert theirs["score"] == pytest.approx(max(ours.probabilities.values()), abs=1e-2)
    assert "# run\n" in text
    assert ("a pair of texts" in text) == paired


def evaluate(block, folder):
    """Runs the imports of a block, and returns the value of its last line."""
    *statements, last = ast.parse(block.replace("FOLDER", str(folder))).body
    names = {}
    exec(compile(ast.Module(statements, []), "card", "exec"), names)
    return eval(compile(ast.Expression(last.value), "card", "eval"), names)


def test_a_number_is_the_same_from_both_libraries(tiny_model, tmp_path):
    train = [ScoredText("the man" if i % 2 else "a book", None, float(i % 2) * 4) for i in range(16)]
    task, run = RegressionTask.of(train), tmp_path / "run"
    result = fine_tune(task, tiny_model, train, train, run, SETTINGS)
    text = card(run / "model", task, result)
    ours, theirs = (evaluate(block, run / "model") for block in code_blocks(text))
    assert theirs[0]["score"] == pytest.approx(ours[0], abs=2e-2)
    assert ours[0] == pytest.approx(load_pipeline("regress", run / "model")(["first text"])[0])
    assert "## Labels" not in text


def test_thresholds_are_told(tiny_model):
    text = card(tiny_model, MultiLabelTask(("a", "b"), threshold=0.35))
    assert "above 0.35" in text
    assert "top_k=None" in text


@pytest.mark.parametrize("name", all_tasks())
def test_every_task_has_a_card_whose_code_is_code(tiny_model, name):
    task = type("AnyTask", (), {"name": name, "spec": all_tasks()[name].spec, "describe": lambda self: {}})()
    text = card(tiny_model, task)
    tag = front_matter(text)["pipeline_tag"]
    by_other_libraries = ("text-classification", "text-ranking", "sentence-similarity")
    assert tag in by_other_libraries or hasattr(transformers, f"AutoModelFor{tag.title().replace('-', '')}")
    for block in code_blocks(text):
        compile(block, "card", "exec")


def test_what_cannot_be_is_said(tmp_path):
    with pytest.raises(CheckpointError):
        card(tmp_path, ClassificationTask(("no", "yes")))
