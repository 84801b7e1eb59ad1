"""`bertsmith.index`: what `bertsmith index` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith.options import built, divided
from bertsmith.result import Result
from bertsmith.retrieval.build import Indexed, IndexSettings, Progress, build_index


def index(
    folder: str | Path,
    model: str | Path,
    out: str | Path,
    *,
    on_progress: Progress | None = None,
    **settings: Any,
) -> Result[Indexed]:
    """Makes a folder of text searchable, or brings its index up to date: what is unchanged is not embedded again.

    Examples:
        >>> import bertsmith
        >>> bertsmith.index("texts", "run/model", "texts.index").metrics["documents"] > 0
        True
        >>> hits = bertsmith.load_index("texts.index").search("who sang?", k=1)
        >>> len(hits)
        1

    Args:
        folder: holds `.txt` and `.md` files, in any subfolders.
        model: a model folder, or `org/name` of the Hub.
        out: the folder of the index.
        on_progress: told how many passages have vectors and how many there are.
        **settings: the options of `bertsmith index`, with underscores, such as `passage_tokens`.

    Returns:
        `metrics`: documents and passages there are now, passages that had to be embedded, and files that were added,
        changed and deleted; `details`: the same as an object.

    Raises:
        ConfigError: a setting is unknown or impossible, or a library is not installed.
        InputError: the folder is missing or holds no text, or a file is unreadable or vanished meanwhile.
        CheckpointError: the model folder is unusable, or the index is damaged.
        RunFolderError: `out` belongs to another folder, model or setting, is in use, or cannot be written.
    """
    (chosen,) = divided(settings, IndexSettings, command="index")
    found = build_index(folder, model, out, built(IndexSettings, chosen), on_progress=on_progress)
    names = ("documents", "passages", "embedded", "added", "changed", "deleted")
    return Result(Path(out), {name: getattr(found, name) for name in names}, None, None, found)
