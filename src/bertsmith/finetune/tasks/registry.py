"""All tasks by name, and which of them a model folder is for."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.finetune.tasks.answer import AnsweringTask
from bertsmith.finetune.tasks.choose import ChoiceTask
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.features import FeatureTaggingTask
from bertsmith.finetune.tasks.multilabel import MultiLabelTask
from bertsmith.finetune.tasks.rank import RankingTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.finetune.tasks.task import Task
from bertsmith.inference.task_file import TASK_FILE, read_task_file, write_task_file

TASKS: dict[str, Any] = {
    task.name: task
    for task in (
        ClassificationTask,
        MultiLabelTask,
        RegressionTask,
        TaggingTask,
        AnsweringTask,
        ChoiceTask,
        RankingTask,
        FeatureTaggingTask,
    )
}
"""The class of every task, by the word on the command line."""


def save_task(task: Task[Any, Any], folder: Path, max_length: int) -> None:
    """Writes `task.json`; `max_length` is the most ids of a sequence that the model was trained on."""
    write_task_file(folder, {"task": task.name, "max_length": max_length, **task.describe()})


def load_task(folder: str | Path) -> tuple[Task[Any, Any], int]:
    """Returns the task that a model folder was fine-tuned for, and the most ids of its sequences.

    Raises:
        CheckpointError: the folder has no `task.json`, or one that is damaged.
    """
    values = read_task_file(folder)
    if not values:
        raise CheckpointError(f"{folder}: no {TASK_FILE}; name a folder that `bertsmith finetune` wrote")
    try:
        found: Task[Any, Any] = TASKS[values["task"]].from_description(values)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}/{TASK_FILE}: damaged ({type(error).__name__}: {error})") from None
    return found, int(values["max_length"])


def make_task(name: str, train: Sequence[Any], **options: Any) -> Task[Any, Any]:
    """Returns the task that a training file is for.

    Args:
        name: one of `TASKS`.
        train: its examples; labels are found in them.
        **options: of the task's `of`; None means that it was not given.

    Raises:
        ConfigError: no task has that name, or it has no such option.
        InputError: the examples are not enough for the task.
    """
    if name not in TASKS:
        raise ConfigError(f"task {name!r} is unknown; use one of {', '.join(TASKS)}")
    known = signature(TASKS[name].of).parameters
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in known:
            raise ConfigError(f"--{option.replace('_', '-')} is not for {name}; leave it out")
    made: Task[Any, Any] = TASKS[name].of(train, **given)
    return made
