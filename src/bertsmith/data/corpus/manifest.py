"""`manifest.json` of a corpus folder: what it holds, how it was made, and whether its shards are still what it says.

Opening a corpus does not read all of it again: `.checked.json` notes that the file of this size, last changed at this
moment, had this checksum. What changes a file's bytes but not its time (a failing disk) is not seen that way; running
`bertsmith corpus` again reads every byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.errors import CheckpointError, RunFolderError
from bertsmith.files import chunks_of, from_json, parse_json, read_json, write_json, write_text
from bertsmith.tokenizer import Tokenizer

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
TRAIN, HELDOUT = "train", "heldout"
SPLITS = (TRAIN, HELDOUT)
BUILD_AGAIN = "remove the folder and build the corpus again"
_VERIFIED = ".checked.json"


@dataclass(frozen=True)
class SplitCounts:
    """How much a split holds."""

    documents: int
    sentences: int
    tokens: int


@dataclass(frozen=True)
class ShardEntry:
    """A shard: its file, the number of its documents, its size in bytes, and its checksum."""

    file: str
    documents: int
    bytes: int
    checksum: str


@dataclass(frozen=True)
class SplitEntry(SplitCounts):
    """A split: how much it holds, and the shards that hold it, in order."""

    shards: tuple[ShardEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`.

    `duplicates` counts the dropped `exact` and `near` repeats, `piece_counts` [V] each id in the training split.
    """

    format: str = "bertsmith token shards"
    version: int = FORMAT_VERSION
    tokenizer: str
    settings: dict[str, Any]
    words: bool = False
    duplicates: dict[str, int] = field(default_factory=dict)
    splits: dict[str, SplitEntry]
    piece_counts: Any

    def __post_init__(self) -> None:
        if set(self.splits) != set(SPLITS):
            raise ValueError(f"splits are {', '.join(self.splits) or 'none'}, not {' and '.join(SPLITS)}")

    @property
    def shards(self) -> list[ShardEntry]:
        """The shards of both splits."""
        return [shard for split in self.splits.values() for shard in split.shards]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest, which makes a folder of shards a finished corpus."""
    write_json(folder / MANIFEST, manifest, checked=True)


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a finished corpus."""
    path = folder / MANIFEST
    if not path.exists():
        raise CheckpointError(f"{folder}: no manifest.json; this is not a finished corpus")
    content: dict[str, Any] = read_json(path, dict, CheckpointError, BUILD_AGAIN)
    if (version := content.get("version")) != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: written by a bertsmith whose corpora have format version {version}, not {FORMAT_VERSION}; "
            f"{BUILD_AGAIN}"
        )
    try:
        manifest: Manifest = from_json(Manifest, content)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged ({error}); {BUILD_AGAIN}") from None
    return manifest


def require_same_settings(folder: Path, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Makes sure that a finished corpus is the one that is asked for."""
    manifest = read_manifest(folder)
    # 设置不同的语料绝不接着用：混在一起的分片事后看不出来
    found = {"tokenizer": manifest.tokenizer, **manifest.settings}
    if different := different_keys(found, {"tokenizer": tokenizer.fingerprint, **settings}):
        raise RunFolderError(
            f"{folder}: holds a corpus made with other settings ({', '.join(different)}); choose another --out"
        )


def different_keys(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Returns the keys under which two requests differ once they are JSON; a missing key is as good as null."""
    wanted = json.loads(json.dumps(wanted))
    return sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))


def checksum_of(path: Path) -> str:
    """Returns the checksum of a file as hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks_of(path):
        digest.update(chunk)
    return digest.hexdigest()


def fault_of(path: Path, checksum: str) -> str:
    """Says what is wrong with a file that had this checksum; empty for nothing."""
    try:
        return "" if checksum_of(path) == checksum else "its checksum differs"
    except OSError as error:
        return error.strerror or str(error)


def verify_shards(folder: Path, shards: Sequence[ShardEntry], *, every_byte: bool = False) -> None:
    """Makes sure that shards are what their manifest says; `every_byte` reads those too that were verified before."""
    verified = {} if every_byte else _read_verified(folder)
    has_changed = False
    for shard in shards:
        path = folder / shard.file
        if path.exists() and verified.get(shard.file) == _state(path, shard):
            continue
        has_changed = True
        if fault := fault_of(path, shard.checksum):
            raise CheckpointError(f"{path}: shard is damaged ({fault}); {BUILD_AGAIN}")
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
        verified = parse_json(folder / _VERIFIED)
        if isinstance(verified, dict):
            return verified
    return {}
