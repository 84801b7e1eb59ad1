"""`bertsmith report`: the curves of runs, finished or still going."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of `bertsmith pretrain`; several are overlaid.")],
    out: Annotated[
        Path | None, typer.Option(help="HTML file; default: report.html in the run folder, or here for several.")
    ] = None,
) -> None:
    """Write report.html: figures, curves and settings of one run or several, at any time."""
    from bertsmith.train.report import write_run_report

    print(f"written: {write_run_report(runs, out)}")
