"""`bertsmith lab`: look inside models, in the browser."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class PageLanguage(str, Enum):
    """Languages of the page."""

    en = "en"
    zh = "zh"


def lab(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model: FOLDER, org/name or NAME=FOLDER; may be repeated; default: village."),
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
    language: Annotated[PageLanguage, typer.Option(help="Language of the first page.")] = PageLanguage.en,
    progress: Annotated[
        Path | None, typer.Option(help="File of the flash cards; default: that of `bertsmith learn`.")
    ] = None,
) -> None:
    """Look inside models in the browser: masks, attention, tokens, your task, search, training runs, and lessons."""
    from bertsmith.errors import ConfigError
    from bertsmith.serve.settings import served

    try:
        from bertsmith.lab.run import run_lab
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'bertsmith[serve,lab]'") from None
    # 什么都不给也能打开：自带的小村庄模型，不用先训练
    settings = replace(
        served(model or (None if index else ["village"]), index),
        host=host,
        port=port,
        drain=0.0,
        key_file=str(api_key_file) if api_key_file else None,
        allowed_hosts=tuple(allow_host or ()),
    )
    run_lab(settings, runs or (), language=language.value, progress=progress)
