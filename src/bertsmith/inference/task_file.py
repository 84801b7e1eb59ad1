"""`task.json`, beside `config.json` in a fine-tuned folder: what the model is for, and how it is to be read.

It holds what the field's `config.json` has no place for: the task's name, the longest sequence it was trained on,
thresholds, how long an answer may be. Folders of other origin have none, and are read with defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import CheckpointError
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.precision import Precision
from bertsmith.json_files import read_json, write_json

TASK_FILE = "task.json"
TASK_FILE_ADVICE = "copy the folder again, or remove the file to read the model with defaults"


def write_task_file(folder: str | Path, values: dict[str, Any]) -> None:
    """Writes `task.json`.

    Args:
        folder: the model folder.
        values: JSON: `task`, `max_length`, and what the task's `describe` says.
    """
    write_json(Path(folder) / TASK_FILE, values)


def read_task_file(folder: str | Path) -> dict[str, Any]:
    """Returns what `write_task_file` wrote; an empty dictionary where there is none.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = Path(folder) / TASK_FILE
    if not path.exists():
        return {}
    values = read_json(path, dict[str, Any], CheckpointError, TASK_FILE_ADVICE)
    for name, kind in (("task", str), ("max_length", int)):
        if not isinstance(values.get(name), kind) or (kind is int and values[name] < 0):
            raise CheckpointError(f"{path}: damaged ({name} is {values.get(name)!r}); {TASK_FILE_ADVICE}")
    return values


@contextmanager
def task_values(folder: str | Path) -> Iterator[dict[str, Any]]:
    """Gives what `read_task_file` reads; a value that is missing or of another kind is damage of that file.

    Raises:
        CheckpointError: the file is damaged, or what is read from its values inside the block is.
    """
    try:
        yield read_task_file(folder)
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        path = Path(folder) / TASK_FILE
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error}); {TASK_FILE_ADVICE}") from None


def paired_of(folder: str | Path) -> bool | None:
    """Returns whether a folder's model was trained on pairs of texts; None where the folder does not say."""
    paired = read_task_file(folder).get("paired")
    return None if paired is None else bool(paired)


def inference_config_of(
    folder: str | Path, *, precision: Precision | None = None, device: torch.device | str | None = None
) -> InferenceConfig:
    """Returns where a pipeline runs, with the longest sequence that the folder's model was trained on.

    Args:
        folder: the model folder.
        precision: as in `InferenceConfig`.
        device: likewise.
    """
    return InferenceConfig(device, precision, int(read_task_file(folder).get("max_length", 0)))
