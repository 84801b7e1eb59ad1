"""`bertsmith push`: a model folder to the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def push(
    folder: Annotated[Path, typer.Argument(help="Model folder.")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Repository on the Hub; created if missing.")],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private.")] = False,
    branch: Annotated[str, typer.Option(help="Branch to write to, created if missing; default: main.")] = "",
    message: Annotated[str, typer.Option(help="Commit message.")] = "",
) -> None:
    """Upload a model folder with its card to the Hub; HF_TOKEN holds the token."""
    from bertsmith.interop.hub import push_model

    print(push_model(folder, repository, private=private, branch=branch, message=message))
