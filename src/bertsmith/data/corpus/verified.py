"""Which shards were verified, and when: so that opening a corpus does not read all of it again.

What is noted says: the file of this size, last changed at this moment, had this checksum. As long as size and moment
are the same, the file is taken to be the same. What changes a file's bytes but not its time (a failing disk) is not
seen that way; running `bertsmith corpus` again reads every byte.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.data.corpus.documents import checksum_of
from bertsmith.data.corpus.manifest import BUILD_AGAIN, ShardEntry
from bertsmith.errors import CheckpointError, RunFolderError
from bertsmith.files import write_text

_VERIFIED = ".checked.json"


def verify_shards(folder: Path, shards: Sequence[ShardEntry], *, every_byte: bool = False) -> None:
    """Makes sure that the shards are what their manifest says.

    Args:
        folder: of the corpus.
        shards: of its manifest.
        every_byte: also read files that were verified before and have not been touched since.

    Raises:
        CheckpointError: a shard is missing or damaged.
    """
    verified = {} if every_byte else _read_verified(folder)
    has_changed = False
    for shard in shards:
        path = folder / shard.file
        try:
            if verified.get(shard.file) == _state(path, shard):
                continue
            has_changed = True
            digest = checksum_of(path)
        except OSError as error:
            raise CheckpointError(f"{path}: shard cannot be read ({error.strerror or error}); {BUILD_AGAIN}") from None
        if digest != shard.checksum:
            raise CheckpointError(f"{path}: shard is damaged (its checksum differs); {BUILD_AGAIN}")
    if has_changed:
        note_verified(folder, shards)


def note_verified(folder: Path, shards: Sequence[ShardEntry]) -> None:
    """Notes that the shards have just been made or verified, if the folder can be written."""
    # 只读的语料文件夹，或几个进程同时打开：记不下来也不妨碍使用
    with contextlib.suppress(OSError, RunFolderError):
        states = {shard.file: _state(folder / shard.file, shard) for shard in shards}
        write_text(folder / _VERIFIED, json.dumps(states))


def _state(path: Path, shard: ShardEntry) -> list[Any]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, shard.checksum]


def _read_verified(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        verified = json.loads((folder / _VERIFIED).read_text(encoding="utf-8"))
        if isinstance(verified, dict):
            return verified
    return {}
