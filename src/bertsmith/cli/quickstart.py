"""`bertsmith quickstart`: the main job in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.quickstart.options import QuickstartOptions


@declares(options="bertsmith.quickstart.options.QuickstartOptions")
def quickstart(
    *,
    corpus: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders or globs of .txt or .txt.gz; none: the bundled village."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder; the same command goes on where it stopped.")] = Path(
        "runs/quickstart"
    ),
    options: Given[QuickstartOptions],
) -> None:
    """Learn a vocabulary, pre-train a BERT, fill masks and write a report; on the bundled village, fine-tune too."""
    from rich.console import Console

    from bertsmith.quickstart.calls import quickstart as run_quickstart

    run_quickstart(corpus or [], out, console=Console(), **options.values)
