"""What was checked when: so that opening a corpus does not read all of it again.

A stamp says: the file of this size, last changed at this moment, had this checksum. As long as size and moment are the
same, the file is taken to be the same. What changes a file's bytes but not its time (a failing disk) is not seen that
way; running `bertsmith corpus` again reads every byte.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.data.corpus.documents import checksum_of
from bertsmith.errors import CheckpointError, RunFolderError
from bertsmith.files import write_text

_STAMPS = ".checked.json"
_AGAIN = "remove the folder and build the corpus again"


def check_shards(folder: Path, shards: Sequence[dict[str, Any]], *, trust_stamps: bool = True) -> None:
    """Makes sure that the shards are what their manifest says.

    Args:
        folder: of the corpus.
        shards: their entries in the manifest.
        trust_stamps: pass over a file that was checked before and has not been touched since.

    Raises:
        CheckpointError: a shard is missing or damaged.
    """
    found = _read_stamps(folder) if trust_stamps else {}
    changed = False
    for shard in shards:
        path = folder / shard["file"]
        try:
            stamp = [path.stat().st_size, path.stat().st_mtime_ns, shard["checksum"]]
            if found.get(shard["file"]) == stamp:
                continue
            changed = True
            digest = checksum_of(path)
        except OSError as error:
            raise CheckpointError(f"{path}: shard cannot be read ({error.strerror or error}); {_AGAIN}") from None
        if digest != shard["checksum"]:
            raise CheckpointError(f"{path}: shard is damaged (its checksum differs); {_AGAIN}")
    if changed:
        write_stamps(folder, shards)


def write_stamps(folder: Path, shards: Sequence[dict[str, Any]]) -> None:
    """Notes that the shards have just been made or checked, if the folder can be written."""
    # 只读的语料文件夹，或几个进程同时打开：记不下来也不妨碍使用
    with contextlib.suppress(OSError, RunFolderError):
        stamps = {}
        for shard in shards:
            status = (folder / shard["file"]).stat()
            stamps[shard["file"]] = [status.st_size, status.st_mtime_ns, shard["checksum"]]
        write_text(folder / _STAMPS, json.dumps(stamps))


def _read_stamps(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        stamps = json.loads((folder / _STAMPS).read_text(encoding="utf-8"))
        if isinstance(stamps, dict):
            return stamps
    return {}
