"""`bertsmith.distil`: what `bertsmith distil` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.options import built, divided
from bertsmith.quickstart.distillation import DistillationOptions, DistillationResult
from bertsmith.quickstart.distillation import distil as run_distillation
from bertsmith.result import Result
from bertsmith.train.report import write_run_report


def distil(
    teacher: str | Path,
    text: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    console: Console | None = None,
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
    texts = [str(text)] if isinstance(text, (str, Path)) else [str(one) for one in text]
    found = run_distillation(str(teacher), texts, folder, options, console or Console(quiet=True))
    names = ("loss_after", "loss_before", "parameters", "teacher_parameters")
    metrics = {name: float(getattr(found, name)) for name in names}
    return Result(folder, metrics, found.model_folder, write_run_report([folder]), found)
