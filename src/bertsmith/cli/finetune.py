"""`bertsmith finetune` and `bertsmith evaluate`: from a labelled file to a model for one task, and its scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.finetune.datasets.reader import ReadingOptions
    from bertsmith.finetune.further import FurtherOptions
    from bertsmith.finetune.job import ComparisonOptions
    from bertsmith.finetune.settings import FineTuningSettings
    from bertsmith.finetune.tasks.task import Evaluation
    from bertsmith.finetune.teaching import TeachingOptions
    from bertsmith.train.tracking import TrackingOptions


def _task() -> Any:
    from bertsmith.finetune.tasks.registry import all_tasks

    return typer.Argument(metavar="TASK", help=f"What is learned: {', '.join(all_tasks())}.")


def _options_of_all_tasks() -> type:
    from bertsmith.finetune.tasks.registry import options_of_all_tasks

    return options_of_all_tasks()


@declares(
    reading="bertsmith.finetune.datasets.reader.ReadingOptions",
    options=_options_of_all_tasks,
    settings="bertsmith.finetune.settings.FineTuningSettings",
    further="bertsmith.finetune.further.FurtherOptions",
    comparison="bertsmith.finetune.job.ComparisonOptions",
    teaching="bertsmith.finetune.teaching.TeachingOptions",
    tracking="bertsmith.train.tracking.TrackingOptions",
)
def finetune(
    task: Annotated[str, _task()],
    model: Annotated[Path, typer.Option(help="Model to start from: a folder, or org/name of the Hub.")],
    out: Annotated[Path, typer.Option(help="Run folder, model in OUT/model; the same command goes on after a stop.")],
    train: Annotated[
        str | None, typer.Option(help="File or URL: TSV, CSV, JSONL, Parquet, CoNLL, CoNLL-U or SQuAD.")
    ] = None,
    dev: Annotated[str | None, typer.Option(help="The same; chooses the best epoch. Not needed with --folds.")] = None,
    test: Annotated[str | None, typer.Option(help="The same; scored with the weights chosen on dev.")] = None,
    unlabelled: Annotated[
        str | None, typer.Option(help="embed: folder of text files to learn from instead; see --positives.")
    ] = None,
    *,
    reading: Given[ReadingOptions],
    options: Given[Any],
    settings: Given[FineTuningSettings],
    further: Given[FurtherOptions],
    comparison: Given[ComparisonOptions],
    teaching: Given[TeachingOptions],
    tracking: Given[TrackingOptions],
) -> None:
    """Fine-tune a model on labelled files; interrupted, the same command goes on."""
    from rich.console import Console

    from bertsmith.finetune.calls import finetune as run_finetuning
    from bertsmith.train.stopping import TrainingStopped

    groups = (reading, options, settings, further, comparison, teaching, tracking)
    given: dict[str, Any] = {name: value for group in groups for name, value in group.values.items()}
    given |= {"train": train, "dev": dev, "test": test, "unlabelled": unlabelled}
    try:
        result = run_finetuning(task, model, out, console=Console(), **given).details
    except TrainingStopped as stopped:
        # 被叫停不是错误：进度已存盘，同一条命令接着跑，退出码是 0
        print(stopped)
        return
    print(_line("dev", result.dev))
    if result.test is not None:
        print(_line("test", result.test))
    kept = " and ".join(str(out / name) for name in ("model", "adapter") if (out / name).is_dir())
    print(f"best epoch {result.epoch}; kept in {kept}; report in {out / 'report.html'}")


@declares(reading="bertsmith.finetune.datasets.reader.ReadingOptions")
def evaluate(
    model: Annotated[Path, typer.Option(help="Folder that `bertsmith finetune` wrote.")],
    file: Annotated[str, typer.Option("--file", help="Labelled file or URL, as in fine-tuning.")],
    adapter: Annotated[Path | None, typer.Option(help="Adapter folder to load on top of the model.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for all details.")] = None,
    precision: Annotated[str, typer.Option(help="Precision: auto, bf16, float32 or int8.")] = "auto",
    *,
    reading: Given[ReadingOptions],
) -> None:
    """Score a fine-tuned model on a labelled file."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from bertsmith.files import require_other_file
    from bertsmith.finetune.calls import evaluate as score
    from bertsmith.json_files import write_json

    if out is not None:
        require_other_file(out, Path(file))
    found = score(model, file, adapter=adapter, precision=precision, **reading.values).details
    print(_line(file, found))
    if out is not None:
        write_json(out, found)
    if found.classes:
        table = Table()
        for heading in ("label", "precision", "recall", "F1", "examples"):
            table.add_column(heading, justify="left" if heading == "label" else "right")
        for label, row in found.classes.items():
            # 标签是用户写的：方括号不是排版标记
            table.add_row(Text(label), f"{row.precision:.3f}", f"{row.recall:.3f}", f"{row.f1:.3f}", str(row.support))
        Console().print(table)
    if out is not None:
        print(f"all details in {out}")


def _line(name: str, found: Evaluation) -> str:
    """Returns the metrics in one line, with their intervals."""
    from bertsmith.finetune.metrics.bootstrap import in_digits

    metrics = []
    for metric, value in found.metrics.items():
        interval = found.intervals.get(metric)
        bounds = f" ({in_digits(interval.low)}-{in_digits(interval.high)})" if interval else ""
        metrics.append(f"{metric} {in_digits(value)}{bounds}")
    return f"{name}: {', '.join(metrics)}"
