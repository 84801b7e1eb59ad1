"""`bertsmith study`: the paper's tables on any text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertsmith.cli.options import declares


def _study() -> Any:
    from bertsmith_school.study import studies

    return typer.Argument(metavar="STUDY", help=f"What is compared: {', '.join(studies())}.")


@declares("bertsmith_school.study.run.StudyOptions")
def study(
    name: Annotated[str, _study()],
    *,
    text: Annotated[
        list[str] | None, typer.Option(help="File, folder or glob of text; the bundled village if left out.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="TOML file of the tasks to score on.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the study; the same command resumes where it stopped.")],
    **settings: Any,
) -> None:
    """Run a table of the paper on your own text: many small runs, compared with intervals."""
    from rich.console import Console

    from bertsmith.settings import built
    from bertsmith_school.study import run_study
    from bertsmith_school.study.run import StudyOptions

    run_study(name, text or [], tasks, out, built(StudyOptions, settings), Console())
