"""`bertsmith report`: the curves of runs, finished or still going."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several of `bertsmith pretrain` are overlaid.")],
    out: Annotated[
        Path | None, typer.Option(help="HTML file; default: report.html in the run folder, or here for several.")
    ] = None,
) -> None:
    """Write report.html: figures, curves and settings of one run or several, at any time."""
    from bertsmith.errors import ConfigError
    from bertsmith.finetune.report.run_report import write_report
    from bertsmith.train.report import write_run_report

    fine_tuned = [run for run in runs if (run / "finetune.json").exists() or (run / "search.json").exists()]
    if not fine_tuned:
        print(f"written: {write_run_report(runs, out)}")
        return
    if len(fine_tuned) < len(runs) or out is not None:
        raise ConfigError(f"{fine_tuned[0]}: a fine-tuning run has a page of its own; leave out --out and other runs")
    for run in fine_tuned:
        print(f"written: {write_report(run)}")
