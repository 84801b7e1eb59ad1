"""Scoring a fine-tuned folder on a labelled file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from bertsmith.finetune.adapters import load_adapted
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.datasets.rows import DataSource
from bertsmith.finetune.tasks.registry import all_tasks, load_task
from bertsmith.finetune.tasks.task import Evaluation, Task
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.precision import Precision
from bertsmith.inference.task_detection import pipelines_of_folder
from bertsmith.inference.task_file import read_task_file
from bertsmith.kernels.layers import best_device
from bertsmith.tokenizer import load_tokenizer


def evaluate_folder(
    folder: str | Path,
    path: DataSource,
    options: ReadingOptions | None = None,
    *,
    adapter: str | Path | None = None,
    precision: str = "auto",
) -> Evaluation:
    """Scores a model that `bertsmith finetune` wrote, with the thresholds that it found.

    Args:
        folder: the model folder; with an adapter, the backbone it was trained over. Any encoder is scored for its
            vectors, since these need no head.
        path: a labelled file, in a form that the task reads; or rows in memory.
        options: how it is read.
        adapter: the folder of an adapter.
        precision: of the matmuls; `auto` takes bf16 where the hardware multiplies it natively, else float32.

    Raises:
        CheckpointError: the folder holds no fine-tuned model.
        InputError: the file is not usable, or does not fit the model.
        ConfigError: an option is not for this task, or the precision is unknown.
    """
    described = Path(folder if adapter is None else adapter)
    task, max_length = task_of_model(described)
    # 这里的 auto 不测量：同一个文件的分数不该随机器的忙闲而变
    chosen = None if precision == "auto" else cast("Precision", precision)
    inference = InferenceConfig(best_device(), chosen, max_length)
    model = task.load(described) if adapter is None else load_adapted(folder, adapter)
    examples = task.spec.reader.read(path, options, task=task.name)
    predictions = task.predict(model, load_tokenizer(folder), examples, inference)
    return task.evaluate(examples, predictions)


def task_of_model(folder: str | Path) -> tuple[Task[Any, Any], int]:
    """Returns the task of a folder and the most ids of its sequences; without `task.json`, the one that needs no head.

    Raises:
        CheckpointError: there is none.
    """
    if not read_task_file(folder):
        for kind in (all_tasks()[name] for name in pipelines_of_folder(folder) if name in all_tasks()):
            if not kind.spec.pipeline.needs_fine_tuning:
                return kind().starting_from(Path(folder)), kind.spec.pipeline.settings_in(folder).max_length
    return load_task(folder)
