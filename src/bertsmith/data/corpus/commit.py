"""From partial shards to a finished corpus: drop repeats, settle the splits, move the shards, write the manifest.

Notable:
- everything here depends on the partial shards in their order and nothing else, so a build that was killed here does
  the same again; from the moment `commit.json` is there, only moving is left, which may be broken off and repeated
- shards that keep all their documents are moved, not copied; others are written anew without what was dropped
- the manifest comes last: with it the corpus is complete, without it there is none
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.duplicates import NearDuplicates, find_exact
from bertsmith.data.corpus.manifest import (
    BUILD_AGAIN,
    HELDOUT,
    SPLITS,
    TRAIN,
    Manifest,
    ShardEntry,
    SplitEntry,
    write_manifest,
)
from bertsmith.data.corpus.options import CorpusOptions
from bertsmith.data.corpus.partial_shards import DROPPED, PartialShard, splits_by_text
from bertsmith.data.corpus.statistics import ShardStatistics, summarize
from bertsmith.data.corpus.verified import note_verified
from bertsmith.data.reading.text import LEAST_TEXTS, few_texts_error
from bertsmith.errors import CheckpointError, RunFolderError
from bertsmith.json_files import from_json, read_json, to_json, write_json
from bertsmith.tokenizer import Tokenizer

PARTS = ".parts"
STATISTICS = "statistics.json"
_COMMIT = "commit.json"
SHARD_NAME = re.compile(rf"({'|'.join(SPLITS)})-\d{{5,}}\.arrow")


def commit(
    folder: Path,
    partial_shards: Sequence[PartialShard],
    tokenizer: Tokenizer,
    options: CorpusOptions,
    settings: Mapping[str, Any],
) -> None:
    """Makes the corpus of its partial shards.

    Args:
        folder: of the corpus; the partial shards lie in its `.parts`.
        partial_shards: all of them, in order.
        tokenizer: made the ids.
        options: the partial shards were made with.
        settings: for the manifest.

    Raises:
        InputError: fewer than `LEAST_TEXTS` texts stay.
        RunFolderError: the disk is full or the place cannot be written.
    """
    hashes = [partial.hashes() for partial in partial_shards]
    natural = [splits_by_text(partial.texts(), options.heldout_share) for partial in partial_shards]
    splits, duplicates = _without_duplicates(partial_shards, hashes, natural, options)
    splits = _settled(splits, partial_shards, options.heldout_share, sum(duplicates.values()))
    entries: dict[str, list[ShardEntry]] = {name: [] for name in SPLITS}
    held: dict[str, list[ShardStatistics]] = {name: [] for name in SPLITS}
    pieces = {name: np.zeros(tokenizer.vocab_size, dtype=np.int64) for name in SPLITS}
    moves = []
    for partial, before, after in zip(partial_shards, natural, splits, strict=True):
        for shard in partial.shards(before, after, tokenizer.vocab_size):
            name, record = SPLITS[shard.split], shard.record
            file = f"{name}-{len(entries[name]):05d}.arrow"
            entries[name].append(ShardEntry(file, record.statistics.documents, record.bytes, record.checksum))
            held[name].append(record.statistics)
            pieces[name] += shard.pieces
            moves.append([str(shard.path.relative_to(folder)), file])
    counts = {name: _counts(held[name]) for name in SPLITS}
    manifest = Manifest(
        tokenizer=tokenizer.fingerprint,
        settings=dict(settings),
        words=options.words is not None,
        duplicates=duplicates,
        splits={name: SplitEntry(**counts[name], shards=tuple(entries[name])) for name in SPLITS},
        piece_counts=pieces[TRAIN],
    )
    statistics = {
        **_counts([*held[TRAIN], *held[HELDOUT]]),
        "splits": counts,
        "duplicates": duplicates,
        **summarize(pieces[TRAIN] + pieces[HELDOUT], [*held[TRAIN], *held[HELDOUT]], tokenizer),
    }
    # 提交点：此后只剩改名，中断了再来一遍也一样
    decided = {"moves": moves, "manifest": to_json(manifest), "statistics": statistics}
    write_json(folder / PARTS / _COMMIT, decided, checked=True)
    apply_commit(folder)
    # 刚写成的不必再读一遍；隔了一段时间才搬完的（见 `apply_commit`）则要读
    note_verified(folder, manifest.shards)


def apply_commit(folder: Path) -> None:
    """Moves everything to its place, if it has been decided what goes where.

    Raises:
        RunFolderError: the place cannot be written, or what was decided is damaged.
    """
    path = folder / PARTS / _COMMIT
    if not path.is_file():
        return
    decided: dict[str, Any] = read_json(path, dict, RunFolderError, f"remove {folder / PARTS} to begin anew")
    manifest: Manifest = from_json(Manifest, decided["manifest"])
    names = {name for _, name in decided["moves"]}
    # 从前没建完的语料可能留下同样命名的分片
    for stale in folder.glob("*.arrow"):
        if SHARD_NAME.fullmatch(stale.name) and stale.name not in names:
            stale.unlink()
    for source, name in decided["moves"]:
        if (folder / source).exists():
            os.replace(folder / source, folder / name)
    write_json(folder / STATISTICS, decided["statistics"], checked=True)
    # 清单最后写：有清单就说明所有分片完整
    write_manifest(folder, manifest)
    shutil.rmtree(folder / PARTS, ignore_errors=True)


def read_statistics(folder: Path) -> dict[str, Any]:
    """Reads `statistics.json` of a finished corpus.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    return read_json(folder / STATISTICS, dict[str, Any], CheckpointError, BUILD_AGAIN)


def _counts(shards: Sequence[ShardStatistics]) -> dict[str, int]:
    return {
        "documents": sum(shard.documents for shard in shards),
        "sentences": sum(shard.sentences for shard in shards),
        "tokens": sum(shard.tokens for shard in shards),
    }


def _without_duplicates(
    partial_shards: Sequence[PartialShard],
    hashes: Sequence[NDArray[np.uint64]],
    natural: Sequence[NDArray[np.int8]],
    options: CorpusOptions,
) -> tuple[list[NDArray[np.int8]], dict[str, int]]:
    """Says where every document goes, with repeats dropped, and how many these are."""
    splits = [group.copy() for group in natural]
    if not options.keep_duplicates:
        for group, repeated in zip(splits, find_exact(hashes), strict=True):
            group[repeated] = DROPPED
    exact = sum(int((group == DROPPED).sum()) for group in splits)
    if options.near_duplicates is not None:
        index = NearDuplicates(options.near_duplicates)
        for partial, group in zip(partial_shards, splits, strict=True):
            signatures = partial.signatures()
            for number in np.flatnonzero(group != DROPPED).tolist():
                if index.repeats(signatures[number]):
                    group[number] = DROPPED
    dropped = sum(int((group == DROPPED).sum()) for group in splits)
    return splits, {"exact": exact, "near": dropped - exact}


def _settled(
    splits: Sequence[NDArray[np.int8]], partial_shards: Sequence[PartialShard], share: float, duplicates: int
) -> list[NDArray[np.int8]]:
    """Sees to it that two texts are there to train on and one to validate on, and that this one is not too much.

    The numbers of many texts hold out the share by themselves. A few long ones may hold out nothing, or half of the
    corpus: then texts are taken in the order of their numbers, as long as the share is not exceeded, or else the
    shortest one.
    """
    together = np.concatenate([np.zeros(0, dtype=np.int8), *splits])
    kept = together != DROPPED
    numbers = np.concatenate([np.zeros(0, np.uint64), *(partial.texts() for partial in partial_shards)])[kept]
    lengths = np.concatenate([np.zeros(0, np.int64), *(partial.lengths() for partial in partial_shards)])[kept]
    texts, text_of = np.unique(numbers, return_inverse=True)
    if len(texts) < LEAST_TEXTS:
        raise few_texts_error(len(texts), duplicates)
    sizes = np.bincount(text_of, weights=lengths)
    held = splits_by_text(texts, share) == 1
    wanted = share * sizes.sum()
    if not 0.5 * wanted <= sizes[held].sum() <= 2 * wanted or (~held).sum() < 2:
        held[:] = False
        # texts 已按号码排好：结果同样只取决于内容
        for number in range(len(texts)):
            held[number] = sizes[held].sum() + sizes[number] <= wanted and held.sum() < len(texts) - 2
        if not held.any():
            held[np.argmin(sizes)] = True
    together[kept] = held[text_of]
    return np.split(together, np.cumsum([len(group) for group in splits])[:-1])
