"""`task.json`, beside `config.json` in a fine-tuned folder: what the model is for, and how it is to be read.

It holds what the field's `config.json` has no place for: the task's name, the longest sequence it was trained on,
thresholds, how long an answer may be. Folders of other origin have none, and are read with defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import CheckpointError
from bertsmith.files import write_text
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.precision import Precision

TASK_FILE = "task.json"


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
    path = Path(folder) / TASK_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values["task"], str) or int(values["max_length"]) < 0:
            raise ValueError("task and max_length are of another kind")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, OverflowError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error})") from None
    return dict(values)


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
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error})") from None


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
