"""`bertsmith probe`: what a model knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.finetune.datasets.reader import ReadingOptions
    from bertsmith.interpret.probing.run import Probes


@declares(reading="bertsmith.finetune.datasets.reader.ReadingOptions")
def probe(
    model: Annotated[Path, typer.Argument(help="Model folder, or org/name of the Hub.")],
    *,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Minimal pairs, a line each: right, tab, wrong; default: the village's."),
    ] = None,
    tagged: Annotated[
        str | None, typer.Option(help="CoNLL or CoNLL-U file of words with tags; default: the village's.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report.html and probe.json.")] = None,
    reading: Given[ReadingOptions],
) -> None:
    """Probe a model: grammar by minimal pairs, what each layer knows about words, facts of the village."""
    from bertsmith.interpret.probing.run import probe as run_probes
    from bertsmith.interpret.probing.run import write_probes

    found = run_probes(model, pairs=pairs, tagged=tagged, reading=reading.build())
    print_tables(found)
    if out is not None:
        write_probes(found, out, model.name)
        print(f"report: {out / 'report.html'}")


def print_tables(found: Probes) -> None:
    """Prints what probes found."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from bertsmith.interpret.probing.run import tables_of

    for one in tables_of(found):
        table = Table(title=one.heading, title_justify="left", caption=one.note, caption_justify="left")
        for number, column in enumerate(one.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in one.rows:
            table.add_row(*map(Text, row))
        Console().print(table)
