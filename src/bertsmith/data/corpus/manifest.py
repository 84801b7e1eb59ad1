"""`manifest.json` of a corpus folder: what it holds, and how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.errors import CheckpointError, RunFolderError
from bertsmith.json_files import from_json, read_json, write_json
from bertsmith.tokenizer import Tokenizer

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
TRAIN, HELDOUT = "train", "heldout"
SPLITS = (TRAIN, HELDOUT)
BUILD_AGAIN = "remove the folder and build the corpus again"


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
class SplitEntry:
    """A split: how much it holds, and the shards that hold it, in order."""

    documents: int
    sentences: int
    tokens: int
    shards: tuple[ShardEntry, ...]

    @property
    def counts(self) -> SplitCounts:
        """How much the split holds."""
        return SplitCounts(self.documents, self.sentences, self.tokens)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`.

    Attributes:
        format: what the folder is, in words.
        version: of the format.
        tokenizer: fingerprint of the tokenizer that made the ids.
        settings: the sources and options of the corpus.
        words: whether the corpus knows which ids continue a word.
        duplicates: how many documents were dropped as `exact` and as `near` repeats.
        splits: the splits by name.
        piece_counts: [V] how often each id occurs in the training split.
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
        """Checks that both splits are there."""
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
    """Reads the manifest of a finished corpus.

    Raises:
        CheckpointError: there is none, or it is damaged or of another format version.
    """
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
    """Makes sure that a finished corpus is the one that is asked for.

    Raises:
        CheckpointError: the manifest is damaged.
        RunFolderError: the tokenizer or a setting differs; the message names which.
    """
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
