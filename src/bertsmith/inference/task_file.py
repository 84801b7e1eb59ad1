"""`task.json`, beside `config.json` in a fine-tuned folder: what the model is for, and how it is to be read.

It holds what `config.json` has no place for. Folders of other origin have none, and are read with defaults. Each reader
takes from the file what it knows (`read_settings`) and leaves the rest to others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bertsmith.errors import BertsmithError, CheckpointError
from bertsmith.files import from_json, parse_json, read_json, write_text
from bertsmith.hub import model_folder
from bertsmith.settings import Checked, option

TASK_FILE = "task.json"
USAGE_FILE = "config_sentence_transformers.json"


@dataclass(frozen=True)
class TaskFile(Checked):
    """What every `task.json` says; a pipeline with settings of its own extends it.

    `max_length` is the most ids of a sequence in training; 0 for as many as the model reads. A file must have the
    fields of `required`: their defaults are for folders without one.
    """

    required: ClassVar[tuple[str, ...]] = ("task", "max_length")

    task: str = ""
    max_length: int = option(0, min=0)

    def arguments(self) -> dict[str, Any]:
        """Returns the settings besides the task and the length, as arguments of the pipeline."""
        names = {one.name for one in fields(self)} - {one.name for one in fields(TaskFile)}
        return {name: getattr(self, name) for name in sorted(names)}


SettingsT = TypeVar("SettingsT", bound=TaskFile)


def write_task_file(folder: str | Path, values: dict[str, Any]) -> None:
    """Writes `task.json`: `task`, `max_length`, and what the task's `describe` says."""
    write_text(Path(folder) / TASK_FILE, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def read_task_file(folder: str | Path) -> dict[str, Any]:
    """Returns what `write_task_file` wrote; an empty dictionary where there is none."""
    path = model_folder(folder) / TASK_FILE
    # 文件夹本身不存在时不归这里管：载入模型时会说得更清楚
    if not path.exists():
        return {}
    values: dict[str, Any] = read_json(path, dict[str, Any], CheckpointError, _ADVICE)
    try:
        _from_values(TaskFile, values)
    except (ValueError, BertsmithError) as error:
        raise _damaged(path, error) from None
    return values


def read_settings(folder: str | Path, kind: type[SettingsT], task: str) -> SettingsT:
    """Returns those of the values of `task.json` that a dataclass has fields for; defaults where there is no file."""
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


def read_told(path: Path, kind: type[Any]) -> Any:
    """Reads a JSON file that other tools wrote; an empty one where there is no file."""
    if not path.is_file():
        return kind()
    try:
        values = parse_json(path)
        if not isinstance(values, kind):
            raise ValueError(f"holds no {'object' if kind is dict else 'list'}")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error})") from None
    return values


def stated_length(folder: str | Path) -> int:
    """Returns how many ids a folder allows in a sequence, with the special tokens; 0 where it says nothing."""
    folder = model_folder(folder)
    length = read_told(folder / "sentence_bert_config.json", dict).get("max_seq_length")
    # 没有写明长度的文件夹，按分词器自己的上限截断，与 sentence-transformers 一致
    length = length or read_told(folder / "tokenizer_config.json", dict).get("model_max_length")
    if length is not None and (not isinstance(length, int | float) or not 3 <= length < float("inf")):
        raise CheckpointError(
            f"{folder}: sequences of {length!r} ids are impossible; see its sentence_bert_config.json"
        )
    return int(length or 0)


def stated_prompts(folder: Path) -> tuple[dict[str, str], str]:
    """Returns a folder's prompts by name, and the name of the one that is used unasked; empty for none."""
    path = folder / USAGE_FILE
    values = read_told(path, dict)
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{path}: damaged (prompts are not texts by name)")
    if default not in ("", *prompts):
        raise CheckpointError(f"{path}: the default prompt {default!r} is none of {', '.join(prompts) or 'no prompts'}")
    return prompts, default
