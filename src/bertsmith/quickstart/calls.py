"""`bertsmith.quickstart`, `plan`, `adapt`, `distil` and `compress`: what the commands of these names do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.data.reading.rows import FileNames, require_file_names
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.datasets.rows import DataSource
from bertsmith.kernels.layers import on_device
from bertsmith.options import built, changed, divided
from bertsmith.quickstart.adaptation import AdaptationOptions, AdaptationResult
from bertsmith.quickstart.adaptation import adapt as run_adaptation
from bertsmith.quickstart.compression import CompressionOptions, CompressionRow
from bertsmith.quickstart.compression import compress as run_compression
from bertsmith.quickstart.distillation import DistillationOptions, DistillationResult
from bertsmith.quickstart.distillation import distil as run_distillation
from bertsmith.quickstart.journey import quickstart as run_quickstart
from bertsmith.quickstart.options import PlanOptions, QuickstartOptions
from bertsmith.quickstart.planning import Plan
from bertsmith.quickstart.planning import plan as make_plan
from bertsmith.quickstart.showcase import QuickstartResult
from bertsmith.result import Result
from bertsmith.train.distributed import Ranks
from bertsmith.train.report import write_run_report


def quickstart(
    corpus: FileNames = (),
    out: str | Path = "runs/quickstart",
    *,
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[QuickstartResult]:
    """Does the whole job: learns a vocabulary, pre-trains, fills masks and writes a report.

    Examples:
        >>> import bertsmith
        >>> first = bertsmith.quickstart("texts", "first", size="1/64", minutes=0.05)
        >>> sorted(first.metrics)[:2], first.report.name
        (['mlm_accuracy', 'mlm_loss'], 'report.html')

    Args:
        corpus: files, folders or patterns of `.txt`; none for the bundled world, on which it fine-tunes, too.
        out: the output folder; the same call goes on where it was broken off.
        console: shows what is done; silent when None.
        device: None takes the GPU where there is one.
        **settings: the options of `bertsmith quickstart`, with underscores: `size`, `minutes`, `search` and so on.

    Returns:
        `metrics`: those of the model on held-out documents, and `unigram_entropy`, the loss of a model that knows
        frequencies only; `report`: the page; `details`: of pre-training, fine-tuning and search.

    Raises:
        ConfigError: a setting is unknown or impossible.
        BertsmithError: the input or the output folder is unusable; what was complete stays.
        TrainingStopped: a signal came, and the state is saved.
    """
    # 先查选项再碰文件：写错的名字不该留下半个文件夹
    (chosen,) = divided(settings, QuickstartOptions, command="quickstart")
    folder = Path(out)
    options = changed(QuickstartOptions(_files(corpus, "corpus"), folder), **chosen)
    with on_device(device):
        found = run_quickstart(options, console or Console(quiet=True))
    # 词频熵是只懂词频的模型的损失：低于它才说明用上了上下文，所以要并排放着
    metrics = {**found.pretraining.heldout, "unigram_entropy": found.pretraining.unigram_entropy}
    return Result(folder, metrics, folder / "model", folder / "report.html", found)


def plan(
    text: FileNames, *, device: torch.device | str | None = None, ranks: Ranks | None = None, **settings: Any
) -> Plan:
    """Measures text and machine for half a minute, and says which size learns most in a time; writes nothing.

    Examples:
        >>> import bertsmith
        >>> found = bertsmith.plan("texts", minutes=10, size=["2/128"])
        >>> found.best.size, found.best.loss < found.unigram_entropy
        ('2/128', True)

    Args:
        text: files, folders or patterns of `.txt`.
        device: to train on; None takes the GPU where there is one.
        ranks: the processes that would share the run; None is this one alone.
        **settings: the options of `bertsmith plan`, with underscores, such as `minutes`; `size` takes a list.

    Returns:
        What was measured, a forecast for each size, and the `best` of them.

    Raises:
        ConfigError: a setting is unknown or impossible, or no size takes enough steps in the time.
        InputError: there is no text, or too little to learn from.
    """
    (chosen,) = divided(settings, PlanOptions, command="plan")
    with on_device(device):
        return make_plan(_files(text, "text"), built(PlanOptions, chosen), ranks=ranks)


def adapt(
    model: str | Path,
    text: FileNames,
    out: str | Path,
    *,
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[AdaptationResult]:
    """Lets a general model go on learning from the text of a domain.

    Examples:
        >>> import bertsmith
        >>> adapted = bertsmith.adapt("run/model", "texts", "adapted", minutes=0.05, new_pieces=5)
        >>> sorted(adapted.metrics)
        ['loss_after', 'loss_before']

    Args:
        model: a model folder, or `org/name` on the Hub.
        text: files, folders or patterns of `.txt`.
        out: the run folder; the same call goes on where it was broken off.
        console: shows what is done; silent when None.
        device: None takes the GPU where there is one.
        **settings: the options of `bertsmith adapt`, with underscores, such as `minutes` and `new_pieces`.

    Returns:
        `metrics`: the held-out loss after and before; `report`: the curves; `details`: also what the words of the text
        cost in pieces, before and after.

    Raises:
        ConfigError: a setting is unknown or impossible.
        BertsmithError: the input or the output folder is unusable; what was complete stays.
        TrainingStopped: a signal came, and the state is saved.
    """
    (chosen,) = divided(settings, AdaptationOptions, command="adapt")
    options, folder = built(AdaptationOptions, chosen), Path(out)
    with on_device(device):
        found = run_adaptation(str(model), _files(text, "text"), folder, options, console or Console(quiet=True))
    metrics = {"loss_after": found.loss_after, "loss_before": found.loss_before}
    return Result(folder, metrics, found.model_folder, write_run_report([folder]), found)


def distil(
    teacher: str | Path,
    text: FileNames,
    out: str | Path,
    *,
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[DistillationResult]:
    """Trains a smaller model to say what a larger one says, on text without labels.

    Examples:
        >>> import bertsmith
        >>> small = bertsmith.distil("run/model", "texts", "small", size="1/64", minutes=0.05)
        >>> sorted(small.metrics)
        ['loss_after', 'loss_before', 'parameters', 'teacher_parameters']

    Args:
        teacher: a model folder, or `org/name` on the Hub.
        text: files, folders or patterns of `.txt`.
        out: the run folder; the same call goes on where it was broken off.
        console: shows what is done; silent when None.
        device: None takes the GPU where there is one.
        **settings: the options of `bertsmith distil`, with underscores: `size` or `keep_layers`, `minutes` and so on.

    Returns:
        `metrics`: the student's held-out loss before and after, and the parameters of both; `model_folder`: the
        student; `report`: the curves.

    Raises:
        ConfigError: a setting is unknown or impossible.
        BertsmithError: the input or the output folder is unusable; what was complete stays.
        TrainingStopped: a signal came, and the state is saved.
    """
    (chosen,) = divided(settings, DistillationOptions, command="distil")
    options, folder = built(DistillationOptions, chosen), Path(out)
    with on_device(device):
        found = run_distillation(str(teacher), _files(text, "text"), folder, options, console or Console(quiet=True))
    names = ("loss_after", "loss_before", "parameters", "teacher_parameters")
    metrics = {name: float(getattr(found, name)) for name in names}
    return Result(folder, metrics, found.model_folder, write_run_report([folder]), found)


def compress(
    model: str | Path,
    out: str | Path,
    *,
    dev: DataSource | None = None,
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[list[CompressionRow]]:
    """Makes a trained model smaller without training: fewer layers, heads and pieces, weights in fewer bits.

    Examples:
        >>> import bertsmith
        >>> smaller = bertsmith.compress("run/model", "smaller", bf16=True)
        >>> smaller.metrics["megabytes"] < smaller.details[0].megabytes
        True

    Args:
        model: a model folder, fine-tuned or not, or `org/name` on the Hub.
        out: the folder of the smaller model.
        dev: a labelled file or its URL, or rows in memory, as in `finetune`; each step is scored on it.
        console: shows a table of the steps; silent when None.
        device: None takes the GPU where there is one.
        **settings: the options of `bertsmith compress`, with underscores: `layers`, `heads`, `int8` and so on.

    Returns:
        `metrics`: of the smaller model `score` and `per_second` where there is a `dev`, `parameters`, and `megabytes`
        (10^6 bytes); `details`: the model as it was, then after each step.

    Raises:
        ConfigError: a setting is unknown or impossible, or there is nothing to do.
        BertsmithError: the folder or a file is not usable; nothing is written then.
    """
    chosen, reading = divided(settings, CompressionOptions, ReadingOptions, command="compress")
    options, folder = built(CompressionOptions, chosen), Path(out)
    with on_device(device):
        rows = run_compression(
            str(model), folder, options, dev=dev, reading=built(ReadingOptions, reading), console=console
        )
    # 最后一步就是成品；没有 dev 文件便没有分数和速度，不能拿零充数
    last = {name: getattr(rows[-1], name) for name in ("score", "parameters", "megabytes", "per_second")}
    metrics = {name: float(value) for name, value in last.items() if value is not None}
    return Result(folder, metrics, folder, None, rows)


def _files(text: FileNames, name: str) -> list[str]:
    return require_file_names(text, name, "write the texts to a .txt file, with blank lines between them")
