"""`task.json`, beside `config.json` in a fine-tuned folder: what the model is for, and how it is to be read.

It holds what the field's `config.json` has no place for: the task's name, the longest sequence it was trained on,
thresholds, how long an answer may be. Folders of other origin have none, and are read with defaults. Each reader takes
from the file what it knows (`read_settings`) and leaves the rest to others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bertsmith.errors import BertsmithError, CheckpointError
from bertsmith.files import write_text
from bertsmith.hub import model_folder
from bertsmith.json_files import from_json, read_json

TASK_FILE = "task.json"


@dataclass(frozen=True)
class TaskFile:
    """What every `task.json` says; a pipeline with settings of its own extends it.

    Attributes:
        task: its name; empty where a folder has no such file.
        max_length: most ids of the sequences that the model was trained on; 0 for as many as it reads.
        required: fields that a file must have; the defaults of these are for folders without the file.
    """

    required: ClassVar[tuple[str, ...]] = ("task", "max_length")

    task: str = ""
    max_length: int = 0

    def __post_init__(self) -> None:
        """Checks the length.

        Raises:
            ValueError: it is negative.
        """
        if self.max_length < 0:
            raise ValueError(f"max_length {self.max_length} is negative")

    def arguments(self) -> dict[str, Any]:
        """Returns the settings besides the task and the length, as arguments of the pipeline."""
        names = {one.name for one in fields(self)} - {one.name for one in fields(TaskFile)}
        return {name: getattr(self, name) for name in sorted(names)}


SettingsT = TypeVar("SettingsT", bound=TaskFile)


def write_task_file(folder: str | Path, values: dict[str, Any]) -> None:
    """Writes `task.json`.

    Args:
        folder: the model folder.
        values: JSON: `task`, `max_length`, and what the task's `describe` says.
    """
    write_text(Path(folder) / TASK_FILE, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def read_task_file(folder: str | Path) -> dict[str, Any]:
    """Returns what `write_task_file` wrote; an empty dictionary where there is none.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = model_folder(folder) / TASK_FILE
    # 文件夹本身不存在时不归这里管：载入模型时会说得更清楚
    if not path.exists():
        return {}
    values: dict[str, Any] = read_json(path, dict[str, Any], CheckpointError, _ADVICE)
    try:
        _from_values(TaskFile, values)
    except ValueError as error:
        raise _damaged(path, error) from None
    return values


def read_settings(folder: str | Path, kind: type[SettingsT], task: str) -> SettingsT:
    """Returns those of the values of `task.json` that a dataclass has fields for.

    Args:
        folder: the model folder.
        kind: the dataclass.
        task: that the reader is for.

    Returns:
        The settings; made without the file where there is none, so that all fields have their defaults.

    Raises:
        CheckpointError: the file is damaged, or lacks a value because it is of another task.
    """
    values = read_task_file(folder)
    if not values:
        return kind()
    try:
        return _from_values(kind, values)
    except (ValueError, BertsmithError) as error:
        path = Path(folder) / TASK_FILE
        if values["task"] != task:
            raise CheckpointError(
                f"{path}: the model was fine-tuned for {values['task']!r}, not for {task!r}"
            ) from None
        raise _damaged(path, error) from None


def paired_of(folder: str | Path) -> bool | None:
    """Returns whether a folder's model was trained on pairs of texts; None where the folder does not say."""
    paired = read_task_file(folder).get("paired")
    return None if paired is None else bool(paired)


def _from_values(kind: type[SettingsT], values: dict[str, Any]) -> SettingsT:
    if missing := [name for name in kind.required if name not in values]:
        raise ValueError(f"{', '.join(missing)} missing")
    known = {one.name for one in fields(kind)}
    found: SettingsT = from_json(kind, {name: value for name, value in values.items() if name in known})
    return found


_ADVICE = "fine-tune again, or copy the folder again"


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path}: damaged ({error}); {_ADVICE}")
