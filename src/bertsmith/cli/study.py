"""`bertsmith study`: the paper's tables on any text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.study.run import StudyOptions


def _study() -> Any:
    from bertsmith.study import studies

    return typer.Argument(metavar="STUDY", help=f"What is compared: {', '.join(studies())}.")


@declares(options="bertsmith.study.run.StudyOptions")
def study(
    name: Annotated[str, _study()],
    *,
    text: Annotated[
        list[str] | None, typer.Option(help="File, folder or glob of text; the bundled village if left out.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="TOML file of the tasks to score on.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the study; the same command goes on where it stopped.")],
    options: Given[StudyOptions],
) -> None:
    """Run a table of the paper on your own text: many small runs, compared with intervals."""
    from rich.console import Console

    from bertsmith.study import run_study

    run_study(name, text or [], tasks, out, options.build(), Console())
