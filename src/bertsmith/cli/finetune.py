"""`bertsmith finetune` and `bertsmith evaluate`: from a labelled file to a model for one task, and its scores."""

from __future__ import annotations

import re
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertsmith.cli.options import DeviceCommand, declares

if TYPE_CHECKING:
    from bertsmith.finetune.tasks.task import Evaluation


class TaskCommand(DeviceCommand):
    """`finetune`, whose help after a task shows the options of that task alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the words; notes the task that help is asked for."""
        from bertsmith.finetune.tasks import all_tasks

        ctx.meta["tasks"] = tuple(all_tasks()) if "--help" in args else ()
        ctx.meta["task"] = next((word for word in args if word in ctx.meta["tasks"]), None)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the options: those whose help begins with other tasks' names are left out."""
        params, task = super().get_params(ctx), ctx.meta.get("task")
        return [one for one in map(partial(_narrowed, ctx.meta), params) if one] if task else params


def _narrowed(meta: dict[str, Any], param: Any) -> Any:
    begins, colon, rest = (getattr(param, "help", None) or "").partition(": ")
    names = re.split(", | and ", begins)
    if not colon or not set(names) <= set(meta["tasks"]):
        return param
    if meta["task"] not in names:
        return None
    param = copy(param)
    param.help = rest[:1].upper() + rest[1:]
    return param


def _task() -> Any:
    from bertsmith.finetune.tasks import all_tasks

    return typer.Argument(metavar="TASK", help=f"What is learned: {', '.join(all_tasks())}.")


@declares(
    "bertsmith.finetune.datasets.ReadingOptions",
    "bertsmith.finetune.tasks.options_of_all_tasks",
    "bertsmith.finetune.settings.FineTuningSettings",
    "bertsmith.finetune.further.FurtherOptions",
    "bertsmith.finetune.job.ComparisonOptions",
    "bertsmith.finetune.teaching.TeachingOptions",
    "bertsmith.train.tracking.TrackingOptions",
)
def finetune(
    task: Annotated[str, _task()],
    model: Annotated[Path, typer.Option(help="Model to start from: a folder, or org/name of the Hub.")],
    out: Annotated[Path, typer.Option(help="Run folder, model in OUT/model; the same command resumes after a stop.")],
    train: Annotated[
        str | None, typer.Option(help="File or URL: TSV, CSV, JSONL, Parquet, CoNLL, CoNLL-U or SQuAD.")
    ] = None,
    dev: Annotated[str | None, typer.Option(help="Chooses the best epoch; else a part of --train does.")] = None,
    test: Annotated[str | None, typer.Option(help="The same; scored with the weights chosen on dev.")] = None,
    unlabelled: Annotated[
        str | None, typer.Option(help="embed: folder of text files to learn from instead; see --positives.")
    ] = None,
    **settings: Any,
) -> None:
    """Fine-tune a model on labelled files; interrupted, the same command resumes.

    `bertsmith finetune TASK --help` shows the options of that task alone.
    """
    from rich.console import Console

    from bertsmith.finetune.job import finetune as run_finetuning
    from bertsmith.train.monitor import TrainingStopped

    given = {**settings, "train": train, "dev": dev, "test": test, "unlabelled": unlabelled}
    try:
        result = run_finetuning(task, model, out, console=Console(), **given).details
    except TrainingStopped as stopped:
        # 被叫停不是错误：进度已存盘，同一条命令接着跑，退出码是 0
        print(stopped)
        return
    for name, scores in (("dev", result.dev), ("test", result.test)):
        if scores is not None:
            print(_line(name, scores))
    kept = " and ".join(str(out / name) for name in ("model", "adapter") if (out / name).is_dir())
    print(f"best epoch {result.epoch}; kept in {kept}; report in {out / 'report.html'}")


@declares("bertsmith.finetune.datasets.ReadingOptions")
def evaluate(
    model: Annotated[Path, typer.Option(help="Folder that `bertsmith finetune` wrote.")],
    file: Annotated[str, typer.Option("--file", help="Labelled file or URL, as in fine-tuning.")],
    adapter: Annotated[Path | None, typer.Option(help="Adapter folder to load on top of the model.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for all details.")] = None,
    precision: Annotated[str, typer.Option(help="Precision: auto, bf16, float32 or int8.")] = "auto",
    only: Annotated[
        Literal["words", "encoder"] | None, typer.Option(help="One part of a folder of `bertsmith solve`.")
    ] = None,
    **settings: Any,
) -> None:
    """Score a fine-tuned model on a labelled file."""
    from rich.console import Console

    from bertsmith.files import require_other_file, write_json
    from bertsmith.finetune.job import evaluate as score
    from bertsmith.reporting.page import Table

    if out is not None:
        require_other_file(out, Path(file))
    how = {**settings, "adapter": adapter, "precision": precision, "only": only}
    found = score(model, file, console=Console(), **how).details
    print(_line(file, found))
    if out is not None:
        write_json(out, found)
    if found.classes:
        rows = [
            (label, f"{row.precision:.3f}", f"{row.recall:.3f}", f"{row.f1:.3f}", str(row.support))
            for label, row in found.classes.items()
        ]
        Console().print(Table("", ("label", "precision", "recall", "F1", "examples"), rows).for_terminal())
    if out is not None:
        print(f"all details in {out}")


@declares("bertsmith.finetune.datasets.ReadingOptions")
def look(
    source: Annotated[str, typer.Argument(metavar="FILE-OR-FOLDER", help="Labelled file or URL, or a folder of text.")],
    task: Annotated[
        str | None, typer.Option(help="Read as for this task, or text; default: the first that can read it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder or org/name: count lengths in its pieces, and what it would cut.")
    ] = None,
    dev: Annotated[str | None, typer.Option(help="Count what this file shares with it.")] = None,
    test: Annotated[str | None, typer.Option(help="The same.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    **settings: Any,
) -> None:
    """Show what would be understood of a file or folder, before anything is learned from it."""
    from bertsmith.files import json_text, to_json
    from bertsmith.finetune.look import look as look_at

    found = look_at(source, task=task, model=model, dev=dev, test=test, **settings)
    print(json_text(to_json(found)).strip() if as_json else "\n".join(found.lines()))


def _line(name: str, found: Evaluation) -> str:
    from bertsmith.finetune.metrics import in_digits

    metrics = []
    for metric, value in found.metrics.items():
        interval = found.intervals.get(metric)
        bounds = f" ({in_digits(interval.low)}-{in_digits(interval.high)})" if interval else ""
        metrics.append(f"{metric} {in_digits(value)}{bounds}")
    return "\n".join([f"{name}: {', '.join(metrics)}", *(f"{name}: {remark}" for remark in found.remarks)])
