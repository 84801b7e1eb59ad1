"""What a model folder is good for: the names of its pipelines, from `task.json` or, without one, from its head."""

from __future__ import annotations

from pathlib import Path

from bertsmith.errors import CheckpointError
from bertsmith.inference.pipeline import all_pipelines
from bertsmith.inference.task_file import read_task_file
from bertsmith.model import ModelConfig, architectures_by_name
from bertsmith.model.folder import read_architecture


def pipelines_of_folder(folder: str | Path) -> tuple[str, ...]:
    """Returns the names of the pipelines that a model folder is good for.

    A fine-tuned folder is used for what it was fine-tuned for, and nothing else.

    Raises:
        CheckpointError: no pipeline reads its model.
    """
    task = read_task_file(folder).get("task")
    if task is not None:
        return (str(task),)
    architecture, pipelines = read_architecture(folder), all_pipelines()
    read = tuple(model for pipeline in pipelines.values() for model in pipeline.architectures)
    known = [name for name, model in architectures_by_name().items() if issubclass(model, read)]
    if architecture not in known:
        holds = (
            f"holds a {architecture}, which no pipeline reads"
            if architecture
            else ("config.json names no architecture")
        )
        raise CheckpointError(f"{folder}: {holds}; it must be one of {', '.join(known)}")
    config = ModelConfig.load(folder)
    return tuple(name for name, pipeline in pipelines.items() if pipeline.is_for(architecture, config))


def task_of_folder(folder: str | Path) -> str:
    """Returns the name of the one pipeline that a fine-tuned folder is for.

    Raises:
        CheckpointError: its model has no head that predicts.
    """
    name = pipelines_of_folder(folder)[0]
    known = all_pipelines().get(name)
    if known is not None and not known.needs_fine_tuning and not read_task_file(folder):
        raise CheckpointError(
            f"{folder}: holds a {read_architecture(folder)}, which predicts nothing here; fine-tune it first"
        )
    return name
