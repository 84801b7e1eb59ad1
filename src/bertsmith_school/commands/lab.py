"""`bertsmith lab`: look inside models, in the browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer


def lab(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model: FOLDER, org/name or NAME=FOLDER; may be repeated; default: the bundled ones."),
    ] = None,
    *,
    index: Annotated[
        list[str] | None, typer.Option(help="Index to search: FOLDER or NAME=FOLDER; may be repeated.")
    ] = None,
    runs: Annotated[
        list[Path] | None, typer.Option(help="Run folder to watch, or a folder of runs; may be repeated.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8001,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with one API key per line; default: BERTSMITH_API_KEYS.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Name that browsers may use, such as a proxy's; may be repeated.")
    ] = None,
    language: Annotated[Literal["en", "zh"], typer.Option(help="Language of the first page.")] = "en",
    progress: Annotated[
        Path | None, typer.Option(help="File of the flash cards; default: that of `bertsmith learn`.")
    ] = None,
) -> None:
    """Look inside models in the browser: masks, attention, tokens, your task, search, training runs, and lessons."""
    from bertsmith.errors import ConfigError
    from bertsmith.hub import BUNDLED
    from bertsmith.serve.settings import served

    try:
        from bertsmith_school.lab.run import run_lab
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'bertsmith[school]'") from None
    # 什么都不给也能打开：自带的小村庄模型和它的评论分类器，不用先训练
    settings = replace(
        served([_named(one) for one in model or ()] or (None if index else list(BUNDLED)), index),
        host=host,
        port=port,
        drain=0.0,
        key_file=str(api_key_file) if api_key_file else None,
        allowed_hosts=tuple(allow_host or ()),
    )
    run_lab(settings, runs or (), language=language, progress=progress)


def _named(model: str) -> str:
    """Names a run's `model` by the folder of the run: `model` would be no name to tell it by."""
    folder = Path(model)
    named = folder.name == "model" and "=" not in model and folder.is_dir()
    return f"{folder.absolute().parent.name}={model}" if named else model
