"""`bertsmith distil`: a smaller model learns from a larger one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.quickstart.distillation import DistillationOptions


@declares(options="bertsmith.quickstart.distillation.DistillationOptions")
def distil(
    *,
    teacher: Annotated[str, typer.Option(help="Model folder with a masked-LM head, or org/name on the Hub.")],
    text: Annotated[list[str], typer.Option(help="File, folder or glob of .txt or .txt.gz; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command goes on where it stopped.")],
    options: Given[DistillationOptions],
) -> None:
    """Distil a model into a smaller one on text without labels: some of its layers, or a fresh model of a size."""
    from rich.console import Console

    from bertsmith.quickstart.calls import distil as run_distillation

    run_distillation(teacher, text, out, console=Console(), **options.values)
