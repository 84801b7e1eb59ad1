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
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="knowledge: model folders, or org/name of the Hub.")
    ] = None,
    *,
    text: Annotated[
        list[str] | None, typer.Option(help="File, folder or glob of text; the bundled village if left out.")
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help="TOML file of the tasks to score on.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with sets of the field (sst2, stsb and others) to score on instead.")
    ] = None,
    blimp: Annotated[Path | None, typer.Option(help="knowledge: folder of BLiMP's files, to judge as well.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the study; the same command resumes where it stopped.")],
    **settings: Any,
) -> None:
    """Run a table of the paper on your own text, or score finished models: many small runs, compared with intervals."""
    from rich.console import Console

    from bertsmith.errors import ConfigError
    from bertsmith.settings import built
    from bertsmith_school.study import run_study, score_models, study_named
    from bertsmith_school.study.run import StudyOptions
    from bertsmith_school.study.tasks import field_tasks, read_tasks

    pretrains = study_named(name).pretrains
    typed = {"models": models, "blimp": blimp} if pretrains else {"text": text, **settings}
    unused = [one for one, value in typed.items() if value and one not in ("seeds", "jobs", "engine")]
    if unused:
        does = "pre-trains its own models" if pretrains else "scores finished models"
        raise ConfigError(f"study {name} {does}; leave out {', '.join(unused).replace('_', '-')}")
    if tasks is not None and data is not None:
        raise ConfigError("--tasks and --data both say what to score on; leave one of them out")
    console = Console()
    found, missing = ([], "") if data is None else field_tasks(data)
    if missing:
        console.print(missing, highlight=False, markup=False, soft_wrap=True)
    found = found if tasks is None else read_tasks(tasks)
    options = built(StudyOptions, settings)
    if pretrains:
        run_study(name, text or [], found, out, options, console)
    else:
        score_models(models or [], found, out, options, console, blimp=blimp)
