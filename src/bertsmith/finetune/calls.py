"""`bertsmith.finetune` and `bertsmith.evaluate`: what the commands of these names do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.datasets.rows import DataSource
from bertsmith.finetune.evaluate import evaluate_folder
from bertsmith.finetune.further import FurtherOptions
from bertsmith.finetune.job import PAPER, ComparisonOptions, Job, run_job, usual_rate
from bertsmith.finetune.run import FineTuningResult
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.registry import options_of_all_tasks, task_named
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.finetune.teaching import TeachingOptions
from bertsmith.kernels.layers import on_device
from bertsmith.options import built, divided
from bertsmith.result import Result
from bertsmith.train.tracking import RunListener, TrackingOptions


def finetune(
    task: str,
    model: str | Path,
    out: str | Path,
    *,
    train: DataSource | None = None,
    dev: DataSource | None = None,
    test: DataSource | None = None,
    unlabelled: DataSource | None = None,
    console: Console | None = None,
    device: torch.device | str | None = None,
    listeners: Sequence[RunListener] = (),
    **settings: Any,
) -> Result[FineTuningResult]:
    """Fine-tunes a model on labelled rows; goes on where an earlier call was broken off.

    Examples:
        >>> import bertsmith
        >>> rows = [{"text": "a warm and lovely story", "label": "good"}, {"text": "a dull story", "label": "bad"}] * 8
        >>> tuned = bertsmith.finetune("classify", "run/model", "tuned", train=rows, dev=rows, epochs=1)
        >>> list(tuned.metrics)[:2]
        ['accuracy', 'macro_f1']

    Args:
        task: `classify`, `tag`, `answer` and so on; see `bertsmith finetune --help`.
        model: the model to start from: a folder, or `org/name` of the Hub.
        out: the run folder.
        train: a labelled file or its URL; or a data frame, a `datasets.Dataset`, or a list of dictionaries. So are
            `dev`, by which the best epoch is chosen, and `test`, which is scored with the weights that `dev` chose.
        dev: see `train`.
        test: see `train`.
        unlabelled: of `embed`: a folder of text files, or rows with a document in the column `text`, to learn from
            instead.
        console: shows progress; silent when None.
        device: None takes the GPU where there is one.
        listeners: are told how the runs go, besides those that `track` names.
        **settings: the options of `bertsmith finetune`, with underscores, such as `epochs` and `label_column`.

    Returns:
        `metrics`: on `test` where there is one, else on `dev`; `model_folder`: the model, or the adapter; `report`: the
        page; `details`: the best epoch, and both evaluations with all details.

    Raises:
        ConfigError: a setting is unknown, impossible, or not for this task.
        InputError: rows are not usable; the message names the file and line, or the row.
        RunFolderError: the run folder holds something else, or cannot be written.
        CheckpointError: the model folder is not usable.
        TrainingStopped: a signal came, and the state is saved.
    """
    reading, chosen, further, compared, teaching, tracking, options = divided(
        settings,
        ReadingOptions,
        FineTuningSettings,
        FurtherOptions,
        ComparisonOptions,
        TeachingOptions,
        TrackingOptions,
        options_of_all_tasks(),
        command="finetune",
    )
    comparison = built(ComparisonOptions, compared)
    for name in ("epochs", "batch_size"):
        if comparison.search == PAPER and name in chosen:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag}: --search paper tries several by itself; leave one of the two out")
    recipe = built(FineTuningSettings, chosen)
    if "learning_rate" not in chosen:
        recipe = replace(recipe, learning_rate=usual_rate(task, model, recipe.adapter))
    if "batch_size" not in chosen:
        recipe = replace(recipe, batch_size=task_named(task).spec.batch_size)
    folder = Path(out)
    job = Job(
        task,
        Path(model),
        train,
        dev,
        folder,
        recipe,
        test=test,
        unlabelled=unlabelled,
        reading=built(ReadingOptions, reading),
        options=options,
        comparison=comparison,
        further=built(FurtherOptions, further),
        teaching=built(TeachingOptions, teaching),
        fixed=tuple(chosen),
        listeners=[*(built(TrackingOptions, tracking).listeners() or ()), *listeners],
    )
    # 老师和预测也在这块设备上：它们各自去问，不一路传下去
    with on_device(device) as place:
        result = run_job(job, console=console, device=place)
    made = folder / "model" if (folder / "model").is_dir() else folder / "adapter"
    return Result(folder, (result.test or result.dev).metrics, made, folder / "report.html", result)


def evaluate(
    model: str | Path,
    data: DataSource,
    *,
    adapter: str | Path | None = None,
    precision: str = "auto",
    device: torch.device | str | None = None,
    **reading: Any,
) -> Result[Evaluation]:
    """Scores a fine-tuned model on labelled rows, with the thresholds that its run found.

    Examples:
        >>> import bertsmith
        >>> rows = [{"text": "a lovely story", "label": "good"}, {"text": "a dull story", "label": "bad"}]
        >>> found = bertsmith.evaluate("tuned/model", rows)
        >>> 0 <= found.metrics["accuracy"] <= 1, sorted(found.details.classes)
        (True, ['bad', 'good'])

    Args:
        model: the model folder that `finetune` made, or its name on the Hub; any encoder is scored for its vectors.
        data: labelled rows, as in `finetune`.
        adapter: the folder of an adapter over that model.
        precision: of the matmuls: `auto`, `bf16`, `float32` or `int8`.
        device: None takes the GPU where there is one.
        **reading: how the rows are read: `text_column`, `label_column` and so on, as in `finetune`.

    Returns:
        `metrics`; `details`: intervals, scores by class, the confusion matrix, and the worst mistakes.

    Raises:
        ConfigError: an option is unknown or not for this task, or the precision is.
        CheckpointError: the folder holds no fine-tuned model.
        InputError: the rows are not usable, or do not fit the model.
    """
    (given,) = divided(reading, ReadingOptions, command="evaluate")
    options = built(ReadingOptions, given)
    with on_device(device):
        found = evaluate_folder(model, data, options, adapter=adapter, precision=precision)
    return Result(Path(model), found.metrics, Path(model), None, found)
