"""`bertsmith quickstart`: the main job in one command."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class DocumentsOption(str, Enum):
    """How files become documents."""

    auto = "auto"
    blank_line = "blank-line"
    file = "file"


def quickstart(
    corpus: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders or globs of .txt or .txt.gz; none for the bundled world."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder; the same command goes on where it stopped.")] = Path(
        "runs/quickstart"
    ),
    size: Annotated[
        str | None,
        typer.Option(
            help="tiny, mini, small, medium, base, large or L/H such as 6/384; default: mini, for the world tiny."
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.05, help="Time for pre-training; default: 10, for the bundled world 1,500 steps."),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Most word pieces; default: 4,096 to 30,522, by the amount of text.")
    ] = None,
    documents: Annotated[
        DocumentsOption,
        typer.Option(help="One document per file, or per block between blank lines; auto: per file if several."),
    ] = DocumentsOption.auto,
    encoding: Annotated[str, typer.Option(help="auto, or a codec such as iso-8859-1.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """Learn a vocabulary, pre-train a BERT, fill masks and write a report; on the bundled world, fine-tune too."""
    from rich.console import Console

    from bertsmith.quickstart import QuickstartOptions
    from bertsmith.quickstart import quickstart as run_quickstart

    options = QuickstartOptions(
        corpus=corpus or [],
        out=out,
        size=size,
        minutes=minutes,
        vocab_size=vocab_size,
        documents=documents.value,
        encoding=encoding,
        seed=seed,
    )
    run_quickstart(options, Console())
