"""`bertsmith adapt`: a general model learns the text of a domain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.quickstart.adaptation import AdaptationOptions


@declares(options="bertsmith.quickstart.adaptation.AdaptationOptions")
def adapt(
    *,
    model: Annotated[str, typer.Option(help="Model folder, or org/name on the Hub.")],
    text: Annotated[list[str], typer.Option(help="File, folder or glob of .txt or .txt.gz; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command goes on where it stopped.")],
    options: Given[AdaptationOptions],
) -> None:
    """Adapt a model to a domain: vocabulary report, new pieces if asked for, continued pre-training."""
    from rich.console import Console

    from bertsmith.quickstart.calls import adapt as run_adaptation

    run_adaptation(model, text, out, console=Console(), **options.values)
