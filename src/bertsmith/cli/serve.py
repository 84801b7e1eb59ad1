"""`bertsmith serve`: models over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.serve.settings import ServeSettings


@declares(settings="bertsmith.serve.settings.ServeSettings")
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model: FOLDER, org/name or NAME=FOLDER; repeat; default: the indexes'."),
    ] = None,
    index: Annotated[
        list[str] | None, typer.Option(help="Index to search at /search: FOLDER or NAME=FOLDER; may be repeated.")
    ] = None,
    *,
    settings: Given[ServeSettings],
) -> None:
    """Serve models over HTTP: their own endpoints, and OpenAI's /v1/embeddings; /docs shows them."""
    from bertsmith.errors import ConfigError
    from bertsmith.serve.settings import served

    try:
        from bertsmith.serve.run import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'bertsmith[serve]'") from None
    run(settings.over(served(model, index)))
