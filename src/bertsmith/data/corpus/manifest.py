"""`manifest.json` of a corpus folder: what it holds, and how it was made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import CheckpointError, RunFolderError
from bertsmith.tokenizer import WordPieceTokenizer

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TRAIN, HELDOUT = "train", "heldout"
SPLITS = (TRAIN, HELDOUT)


@dataclass(frozen=True)
class SplitCounts:
    """How much a split holds."""

    documents: int
    sentences: int
    tokens: int


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of a finished corpus.

    Raises:
        CheckpointError: there is none, or it is damaged or of another format version.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: no manifest.json; this is not a finished corpus") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged ({error}); remove the folder and build the corpus again") from None
    needed = {"tokenizer", "settings", "splits", "piece_counts"}
    if not isinstance(manifest, dict) or manifest.get("version") != FORMAT_VERSION or needed - manifest.keys():
        raise CheckpointError(
            f"{path}: not a corpus of format version {FORMAT_VERSION}; remove the folder and build the corpus again"
        )
    return manifest


def require_same_settings(folder: Path, tokenizer: WordPieceTokenizer, settings: dict[str, Any]) -> None:
    """Makes sure that a finished corpus is the one that is asked for.

    Raises:
        CheckpointError: the manifest is damaged.
        RunFolderError: the tokenizer or a setting differs; the message names which.
    """
    manifest = read_manifest(folder)
    found = {"tokenizer": manifest["tokenizer"], **manifest["settings"]}
    wanted = {"tokenizer": tokenizer.fingerprint, **settings}
    if different := different_keys(found, wanted):
        raise RunFolderError(
            f"{folder}: holds a corpus made with other settings ({', '.join(different)}); choose another --out"
        )


def different_keys(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Returns the keys under which two requests differ once they are JSON; a missing key is as good as null."""
    wanted = json.loads(json.dumps(wanted))
    return sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
