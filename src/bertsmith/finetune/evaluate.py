"""Scoring a fine-tuned folder on a labelled file."""

from __future__ import annotations

from pathlib import Path

from bertsmith.finetune.adapters import load_adapted
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.settings import compute_dtype, runs_in
from bertsmith.finetune.tasks.registry import load_task
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.inference.engine import InferenceConfig
from bertsmith.kernels.layers import best_device
from bertsmith.tokenizer import load_tokenizer


def evaluate_folder(
    folder: str | Path,
    path: str | Path,
    options: ReadingOptions | None = None,
    *,
    adapter: str | Path | None = None,
    precision: str = "auto",
) -> Evaluation:
    """Scores a model that `bertsmith finetune` wrote, with the thresholds that it found.

    Args:
        folder: the model folder; with an adapter, the backbone it was trained over.
        path: a labelled file, in a form that the task reads.
        options: how it is read.
        adapter: the folder of an adapter.
        precision: of the matmuls: `auto`, `bf16` or `float32`.

    Raises:
        CheckpointError: the folder holds no fine-tuned model.
        InputError: the file is not usable, or does not fit the model.
        ConfigError: an option is not for this task, or the precision is unknown.
    """
    described = Path(folder if adapter is None else adapter)
    task, max_length = load_task(described)
    model = task.load(described) if adapter is None else load_adapted(folder, adapter)
    examples = task.spec.reader.read(path, options, task=task.name)
    device = best_device()
    compute_dtype(precision, device)
    inference = InferenceConfig(device, runs_in(precision), max_length)
    predictions = task.predict(model, load_tokenizer(folder), examples, inference)
    return task.evaluate(examples, predictions)
