"""All tasks by name, found from the files of this package, and which of them a model folder is for.

A task is the class of a file here that has a `spec`; no list names it. One from elsewhere is added by `register`, or by
a package that names it as an entry point of the group `bertsmith.tasks`:

    [project.entry-points."bertsmith.tasks"]
    sarcasm = "mypackage.sarcasm:SarcasmTask"
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import make_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from bertsmith.errors import BertsmithError, CheckpointError, ConfigError
from bertsmith.finetune.tasks.task import NoOptions, Task, TaskT
from bertsmith.inference.pipeline import label_names, pipelines_of_folder
from bertsmith.inference.task_file import TASK_FILE, read_task_file, write_task_file
from bertsmith.model import ModelConfig
from bertsmith.settings import Setting, installed, named, option, settings_of

_ADDED: dict[str, type[Task[Any, Any]]] = {}
"""What `register` was given, by name."""
_installed = cache(installed)


def register(task: type[TaskT]) -> type[TaskT]:
    """Adds the class of a task; use it as a decorator."""
    # 不问别的包：登记的这一刻，自己所在的模块可能正作为入口点被载入
    known = _own().get(task.spec.name) or _ADDED.setdefault(task.spec.name, task)
    if known is not task:
        raise ConfigError(f"task {task.spec.name!r} of {task.__module__}: {known.__module__} has one of that name")
    return task


def all_tasks() -> dict[str, type[Task[Any, Any]]]:
    """Returns the class of every task by its name, in alphabetical order."""
    return dict(sorted({**_installed("bertsmith.tasks"), **_ADDED, **_own()}.items()))


def task_named(name: str) -> type[Task[Any, Any]]:
    """Returns the class of a task."""
    return named(name, all_tasks(), "task")


def options_of_all_tasks() -> type:
    """Returns a dataclass with the options of every task, for the command line; their help says whose they are."""
    settings: dict[str, Setting] = {}
    names: dict[str, list[str]] = {}
    for name, task in all_tasks().items():
        for setting in settings_of(task.spec.options):
            settings.setdefault(setting.name, setting)
            names.setdefault(setting.name, []).append(name)
    declared = []
    for name, setting in settings.items():
        said = {**vars(setting.option), "help": f"{', '.join(names[name])}: {setting.option.help}"}
        kind = setting.type | None if setting.optional else setting.type
        declared.append((name, kind, option(setting.default, **said)))
    return make_dataclass("TaskOptions", declared, frozen=True, namespace={"panel": NoOptions.panel})


def save_task(task: Task[Any, Any], folder: Path, max_length: int) -> None:
    """Writes `task.json`; `max_length` is the most ids of a sequence that the model was trained on."""
    write_task_file(folder, {"task": task.name, "max_length": max_length, **task.describe()})


def load_task(folder: str | Path) -> tuple[Task[Any, Any], int]:
    """Returns the task that a model folder was fine-tuned for, and the most ids of its sequences."""
    values = read_task_file(folder)
    if not values:
        raise CheckpointError(f"{folder}: no {TASK_FILE}; name a folder that `bertsmith finetune` wrote")
    try:
        return task_named(values["task"]).from_description(values), int(values["max_length"])
    except (ValueError, BertsmithError) as error:
        raise CheckpointError(
            f"{Path(folder) / TASK_FILE}: damaged ({error}); copy the folder again, or fine-tune again"
        ) from None


def task_of_model(folder: str | Path) -> tuple[Task[Any, Any], int]:
    """Returns the task of a folder and the most ids of a sequence.

    Without `task.json`, as other tools leave a folder, it is the task that its head is for, with the labels of its
    `config.json`, or the one that needs no head.
    """
    if not read_task_file(folder):
        for kind in (all_tasks()[name] for name in pipelines_of_folder(folder) if name in all_tasks()):
            length = kind.spec.pipeline.settings_in(folder).max_length
            if not kind.spec.pipeline.needs_fine_tuning:
                return kind().as_in(Path(folder)), length
            labels = label_names(ModelConfig.load(folder)) if "labels" in kind.__annotations__ else []
            # 还缺别的设置的任务读不出来：那就照旧说没有 task.json
            with suppress(ValueError):
                made = kind.from_description({"labels": labels} if labels else {})
                return made.as_in(Path(folder)), length
    return load_task(folder)


@cache
def _own() -> dict[str, type[Task[Any, Any]]]:
    """Returns the tasks of this package, by name."""
    found = {}
    for module in iter_modules(__path__, f"{__name__}."):
        for value in vars(import_module(module.name)).values():
            # 导入来的类不算：一个文件只登记它自己定义的任务
            its_own = isinstance(value, type) and issubclass(value, Task) and value.__module__ == module.name
            if its_own and "spec" in vars(value):
                found[value.spec.name] = value
    return found
