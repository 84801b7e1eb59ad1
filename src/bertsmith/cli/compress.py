"""`bertsmith compress`: a smaller model folder from a trained one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.finetune.datasets.reader import ReadingOptions
    from bertsmith.quickstart.compression import CompressionOptions


@declares(
    options="bertsmith.quickstart.compression.CompressionOptions",
    reading="bertsmith.finetune.datasets.reader.ReadingOptions",
)
def compress(
    model: Annotated[str, typer.Argument(help="Model folder, fine-tuned or not, or org/name on the Hub.")],
    out: Annotated[Path, typer.Option(help="Folder of the smaller model.")],
    dev: Annotated[str | None, typer.Option(help="Labelled file or URL; each step is scored on it.")] = None,
    *,
    options: Given[CompressionOptions],
    reading: Given[ReadingOptions],
) -> None:
    """Make a trained model smaller: fewer layers, heads and pieces, weights in fewer bits; each step is scored."""
    from rich.console import Console

    from bertsmith.quickstart.calls import compress as run_compression

    run_compression(model, out, dev=dev, console=Console(), **options.values, **reading.values)
