"""A task is one file: what the registry finds, and a task from outside the package from its file to its card."""

import json
import sys
from importlib import metadata

import pytest
import typer
from grade import GradingTask
from typer.main import get_command

from bertsmith.cli import app
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.finetune import tasks as registry
from bertsmith.finetune.job import finetune
from bertsmith.finetune.tasks import all_tasks, load_task, options_of_all_tasks, register, task_named
from bertsmith.inference import load_pipeline
from bertsmith.settings import installed, settings_of
from typed_command import typed


@pytest.fixture(autouse=True)
def _grading():
    """The task is there while a test of this file runs; other files see the package's own tasks."""
    register(GradingTask)
    yield
    registry._ADDED.clear()
    registry._installed.cache_clear()


# 导入 grade 就登记了它，而每个测试进程都导入：先忘掉，由上面登记
registry._ADDED.clear()


def test_a_task_from_outside_is_learned_scored_carded_and_used(tiny_model, tmp_path, capsys):
    data, out = tmp_path / "grades.tsv", tmp_path / "run"
    rows = [("a book !", 1), ("the man reads", 2), ("the woman eats bread", 3)] * 16
    data.write_text("text\tscore\n" + "\n".join(f"{text}\t{grade}" for text, grade in rows) + "\n", encoding="utf-8")
    recipe = ["--epochs", 10, "--batch-size", 8, "--learning-rate", 2e-3, "--precision", "float32"]
    command = ["finetune", "grade", "--model", tiny_model, "--train", data, "--dev", data, "--out", out, *recipe]
    assert "dev: accuracy 1.000" in typed(capsys, *command, "--best-grade", 4)
    assert json.loads((out / "model" / "task.json").read_text())["best_grade"] == 4
    assert "This model grades a text" in (out / "model" / "README.md").read_text(encoding="utf-8")
    assert load_task(out / "model") == (GradingTask(4), 32)
    assert "accuracy 1.000" in typed(capsys, "evaluate", "--model", out / "model", "--file", data)
    assert typed(capsys, "predict", "--model", out / "model", "the man reads").startswith("2\tthe man reads")
    assert load_pipeline("grade", out / "model")(["a book !", "the woman eats bread"]) == [1, 3]
    said = typed(capsys, *command[:8], "--out", tmp_path / "other", "--stride", 3, code=2)
    assert "--stride is not for grade; leave it out" in said


def test_the_command_line_has_the_options_of_every_task():
    options = {setting.name: setting.option.help for setting in settings_of(options_of_all_tasks())}
    assert options["best_grade"] == "grade: The best grade there is."
    assert options["stride"].startswith("answer: ")

    command = get_command(app).commands["finetune"]
    argument = next(one for one in command.get_params(typer.Context(command)) if one.name == "task")
    assert all(name in argument.help for name in all_tasks())


REGISTERED_TOO = """
from dataclasses import replace
from grade import GradingTask
from bertsmith.finetune.tasks import register

@register
class SarcasmTask(GradingTask):
    spec = replace(GradingTask.spec, name="sarcasm")
"""


@pytest.mark.parametrize("text", [REGISTERED_TOO, REGISTERED_TOO.replace("@register", "")], ids=["twice", "once"])
def test_a_package_names_its_tasks_as_entry_points(monkeypatch, tmp_path, text):
    (tmp_path / "sarcasm.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    entry = metadata.EntryPoint("sarcasm", "sarcasm:SarcasmTask", "bertsmith.tasks")
    broken = metadata.EntryPoint("broken", "nowhere_at_all", "bertsmith.tasks")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [broken, entry] if group == entry.group else [])
    registry._installed.cache_clear()
    with pytest.warns(UserWarning, match="nowhere_at_all, an entry point bertsmith.tasks, cannot be used"):
        assert all_tasks()["sarcasm"].spec.name == "sarcasm"
    del sys.modules["sarcasm"]


def test_of_two_packages_with_one_name_the_second_is_named(monkeypatch):
    entries = [metadata.EntryPoint("same", f"json:{name}", "bertsmith.tasks") for name in ("loads", "dumps")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    with pytest.warns(UserWarning, match="json:dumps, an entry point bertsmith.tasks, is not used: another .* 'same'"):
        assert installed("bertsmith.tasks") == {"same": json.loads}


def test_what_is_no_task_is_said(tmp_path):
    with pytest.raises(ConfigError, match="task 'sing' is unknown; use one of answer, choose, classify"):
        task_named("sing")
    with pytest.raises(ConfigError, match="task 'sing' is unknown"):
        finetune("sing", tmp_path, tmp_path / "run", train="a.tsv", dev="b.tsv", learning_rate=1e-3)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="task 'grade' of .*grade has one of that name"):
        register(type("Other", (GradingTask,), {"spec": GradingTask.spec}))
    with pytest.raises(CheckpointError, match="no task.json; name a folder that `bertsmith finetune` wrote"):
        load_task(tmp_path)
    path = tmp_path / "task.json"
    for values, message in (
        ({"task": "sing", "max_length": 9}, "task 'sing' is unknown"),
        ({"task": "grade", "max_length": 9}, "best_grade is missing"),
        ({"task": "tag", "max_length": 9, "labels": ["A", 3]}, r"labels\[1\] is 3, not text"),
        ({"task": "answer", "max_length": 9, "stride": -1}, "stride is -1; give at least 0"),
        ({"task": "answer", "max_length": -9}, "max_length is -9; give at least 0"),
    ):
        path.write_text(json.dumps(values))
        with pytest.raises(CheckpointError, match=rf"task.json: damaged \(.*{message}"):
            load_task(tmp_path)
