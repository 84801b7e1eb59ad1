"""`bertsmith serve`: models over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# 默认值写在这里一份，是为了让 --help 不必载入服务端；测试保证它与 ServeSettings 一致
_QUEUE, _DEADLINE, _BATCH_TOKENS, _BATCH_DELAY_MS, _DRAIN = 64, 30.0, 0, 3.0, 1.0
_MAX_ITEMS, _MAX_CHARACTERS, _MAX_TOKENS = 2048, 500_000, 131_072


def serve(
    model: Annotated[list[str], typer.Option(help="Model folder, or NAME=FOLDER; repeat it to serve several.")],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one this machine has.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes; they divide the cores among them.")] = 1,
    threads: Annotated[int, typer.Option(min=0, help="Computing threads of each process; 0: all its cores.")] = 0,
    precision: Annotated[str | None, typer.Option(help="As in `bertsmith embed`.")] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with an API key a line; otherwise BERTSMITH_API_KEYS is read.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Web origin whose pages may call the server; repeat for several.")
    ] = None,
    queue: Annotated[int, typer.Option(min=1, help="Requests accepted at a time; one more gets 429.")] = _QUEUE,
    deadline: Annotated[float, typer.Option(help="Seconds to answer in; later the request gets 504.")] = _DEADLINE,
    batch_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens computed in one go; 0: as suits the device.")
    ] = _BATCH_TOKENS,
    batch_delay_ms: Annotated[
        float, typer.Option(min=0, help="Longest wait for requests that are being read, to batch with them.")
    ] = _BATCH_DELAY_MS,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds between SIGTERM and the closing of the door; /ready says 503.")
    ] = _DRAIN,
    max_items: Annotated[int, typer.Option(min=1, help="Texts in a request.")] = _MAX_ITEMS,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters in a request.")] = _MAX_CHARACTERS,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens that a request may make.")] = _MAX_TOKENS,
) -> None:
    """Serve models over HTTP: their own endpoints, and OpenAI's /v1/embeddings; /docs shows them."""
    from bertsmith.errors import ConfigError
    from bertsmith.serve.settings import Limits, ServeSettings, named_models

    try:
        from bertsmith.serve.run import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'bertsmith[serve]'") from None
    run(
        ServeSettings(
            models=named_models(model),
            host=host,
            port=port,
            workers=workers,
            threads=threads,
            precision=precision,
            queue=queue,
            deadline=deadline,
            batch_tokens=batch_tokens,
            batch_delay=batch_delay_ms / 1000,
            drain=drain,
            limits=Limits(items=max_items, characters=max_characters, tokens=max_tokens),
            key_file=None if api_key_file is None else str(api_key_file),
            cors_origins=tuple(cors_origin or ()),
        )
    )
