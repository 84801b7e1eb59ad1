"""From finished parts to a finished corpus: drop repeats, settle the splits, move the shards, write the manifest.

Notable:
- everything here depends on the parts in their order and nothing else, so a build that was killed here does the same
  again; from the moment `commit.json` is there, only moving is left, which may be broken off and repeated
- shards that keep all their documents are moved, not copied; others are written anew without what was dropped
- the manifest comes last: with it the corpus is complete, without it there is none
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.duplicates import NearDuplicates, find_exact
from bertsmith.data.corpus.manifest import FORMAT_VERSION, HELDOUT, MANIFEST, SPLITS, TRAIN
from bertsmith.data.corpus.partial_shards import DROPPED, Part, ShardSettings, splits_by_hash
from bertsmith.data.corpus.statistics import summarize
from bertsmith.data.corpus.verified import write_stamps
from bertsmith.errors import InputError
from bertsmith.files import write_text
from bertsmith.tokenizer import WordPieceTokenizer

PARTS = ".parts"
_COMMIT = "commit.json"
SHARD_NAME = re.compile(rf"({'|'.join(SPLITS)})-\d{{5,}}\.arrow")


@dataclass(frozen=True)
class Dropping:
    """Which documents do not stay.

    Attributes:
        exact: those with the same ids as an earlier one.
        near: those whose similarity to an earlier one reaches this; None for none.
    """

    exact: bool = False
    near: float | None = None


def finish(
    folder: Path,
    parts: Sequence[Part],
    tokenizer: WordPieceTokenizer,
    *,
    shard_settings: ShardSettings,
    dropping: Dropping,
    settings: dict[str, Any],
) -> None:
    """Makes the corpus of its parts.

    Args:
        folder: of the corpus; the parts lie in its `.parts`.
        parts: all of them, in order.
        tokenizer: made the ids.
        shard_settings: the parts were made with.
        dropping: which documents do not stay.
        settings: for the manifest.

    Raises:
        InputError: fewer than three documents stay: two are needed for random pairs, one to validate on.
        RunFolderError: the disk is full or the place cannot be written.
    """
    hashes = [part.hashes() for part in parts]
    splits, duplicates = _place(parts, hashes, shard_settings.heldout_share, dropping)
    _settle(splits, hashes, duplicates)
    pieces = {name: np.zeros(tokenizer.vocab_size, dtype=np.int64) for name in SPLITS}
    entries: dict[str, dict[str, Any]] = {
        name: {"documents": 0, "sentences": 0, "tokens": 0, "shards": []} for name in SPLITS
    }
    moves, histograms = [], []
    for part, placed in zip(parts, splits, strict=True):
        for shard in part.shards(placed, tokenizer.vocab_size):
            split, record = SPLITS[shard.split], shard.record
            entry = entries[split]
            name = f"{split}-{len(entry['shards']):05d}.arrow"
            entry["shards"].append({"file": name} | {key: record[key] for key in ("documents", "bytes", "checksum")})
            for key in ("documents", "sentences", "tokens"):
                entry[key] += record[key]
            pieces[split] += shard.pieces
            histograms.append(record)
            moves.append([str(shard.path.relative_to(folder)), name])
    manifest = {
        "format": "bertsmith token shards",
        "version": FORMAT_VERSION,
        "tokenizer": tokenizer.fingerprint,
        "settings": settings,
        "words": shard_settings.words,
        "duplicates": duplicates,
        "splits": entries,
        "piece_counts": pieces[TRAIN].tolist(),
    }
    statistics = {
        **{key: sum(entries[name][key] for name in SPLITS) for key in ("documents", "sentences", "tokens")},
        "splits": {name: {key: entries[name][key] for key in ("documents", "sentences", "tokens")} for name in SPLITS},
        "duplicates": duplicates,
        **summarize(pieces[TRAIN] + pieces[HELDOUT], histograms, tokenizer),
    }
    # 提交点：此后只剩改名，中断了再来一遍也一样
    commit = {"moves": moves, "manifest": manifest, "statistics": statistics}
    write_text(folder / PARTS / _COMMIT, json.dumps(commit, ensure_ascii=False))
    apply_commit(folder)


def apply_commit(folder: Path) -> bool:
    """Moves everything to its place, if it has been decided what goes where.

    Returns:
        Whether the corpus is complete now.

    Raises:
        RunFolderError: the place cannot be written.
    """
    path = folder / PARTS / _COMMIT
    if not path.is_file():
        return False
    commit = json.loads(path.read_text(encoding="utf-8"))
    names = {name for _, name in commit["moves"]}
    # 从前没建完的语料可能留下同样命名的分片
    for stale in folder.glob("*.arrow"):
        if SHARD_NAME.fullmatch(stale.name) and stale.name not in names:
            stale.unlink()
    for source, name in commit["moves"]:
        if (folder / source).exists():
            os.replace(folder / source, folder / name)
    write_text(folder / "statistics.json", json.dumps(commit["statistics"], indent=1, ensure_ascii=False) + "\n")
    shards = [shard for split in commit["manifest"]["splits"].values() for shard in split["shards"]]
    write_stamps(folder, shards)
    # 清单最后写：有清单就说明所有分片完整
    write_text(folder / MANIFEST, json.dumps(commit["manifest"], indent=1, ensure_ascii=False))
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    return True


def _place(
    parts: Sequence[Part], hashes: Sequence[NDArray[np.uint64]], heldout_share: float, dropping: Dropping
) -> tuple[list[NDArray[np.int8]], dict[str, int]]:
    """Says where every document goes, and how many are dropped."""
    splits = [splits_by_hash(part, heldout_share) for part in hashes]
    if dropping.exact:
        for placed, repeated in zip(splits, find_exact(hashes), strict=True):
            placed[repeated] = DROPPED
    exact = sum(int((placed == DROPPED).sum()) for placed in splits)
    if dropping.near is not None:
        index = NearDuplicates(dropping.near)
        for part, placed in zip(parts, splits, strict=True):
            signatures = part.signatures()
            for number in np.flatnonzero(placed != DROPPED).tolist():
                if index.repeats(signatures[number]):
                    placed[number] = DROPPED
    dropped = sum(int((placed == DROPPED).sum()) for placed in splits)
    return splits, {"exact": exact, "near": dropped - exact}


def _settle(splits: list[NDArray[np.int8]], hashes: Sequence[NDArray[np.uint64]], duplicates: dict[str, int]) -> None:
    """Sees to it, in place, that two documents are there to train on and one to validate on."""
    together = np.concatenate([np.zeros(0, dtype=np.int8), *splits])
    values = np.concatenate([np.zeros(0, dtype=np.uint64), *hashes])
    train, heldout = np.flatnonzero(together == 0), np.flatnonzero(together == 1)
    total = len(train) + len(heldout)
    if total < 3:
        repeated = sum(duplicates.values())
        besides = f" besides {repeated} duplicate(s)" if repeated else ""
        raise InputError(
            f"the corpus has {total} document(s){besides}, at least 3 are needed; "
            "separate documents by blank lines and pass --documents blank-line, or add files"
        )
    # 哈希最接近界线的文档先换边：结果同样只取决于内容
    if not len(heldout):
        together[train[np.argmin(values[train])]] = 1
    elif len(train) < 2:
        order = heldout[np.argsort(values[heldout])]
        together[order[len(order) - (2 - len(train)) :]] = 0
    splits[:] = np.split(together, np.cumsum([len(part) for part in hashes])[:-1]) if splits else []
