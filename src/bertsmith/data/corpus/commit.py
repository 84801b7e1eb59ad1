"""From partial shards to a finished corpus: drop repeats, settle the splits, move the shards, write the manifest.

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

from bertsmith.data.corpus.duplicates import NearDuplicates
from bertsmith.data.corpus.manifest import (
    BUILD_AGAIN,
    HELDOUT,
    SPLITS,
    TRAIN,
    Manifest,
    ShardEntry,
    SplitEntry,
    note_verified,
    write_manifest,
)
from bertsmith.data.corpus.partial_shards import DROPPED, PartialShard, splits_by_text
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.data.corpus.statistics import ShardStatistics, summarize
from bertsmith.data.reading.text import LEAST_TEXTS, few_texts_error
from bertsmith.errors import CheckpointError, InputError, RunFolderError
from bertsmith.files import from_json, read_json, to_json, write_json
from bertsmith.tokenizer import Tokenizer

PARTS = ".parts"
CHUNKS_MADE = f"{PARTS}/[0-9]*"
STATISTICS = "statistics.json"
_COMMIT = "commit.json"
REPEATED = 10
"""Documents that hold the same line from which it counts as repeated, where the options do not say."""
SHARD_NAME = re.compile(rf"({'|'.join(SPLITS)})-\d{{5,}}\.arrow")


def commit(
    folder: Path,
    partial_shards: Sequence[PartialShard],
    tokenizer: Tokenizer,
    options: CorpusOptions,
    settings: Mapping[str, Any],
    empty_rows: int,
) -> None:
    """Makes the corpus of its partial shards in order; `InputError` where fewer than `LEAST_TEXTS` texts stay.

    `empty_rows` of the input had no text.
    """
    natural = [splits_by_text(partial.load("texts"), options.heldout_share) for partial in partial_shards]
    splits, duplicates = _without_duplicates(partial_shards, natural, options)
    splits = _settled(splits, partial_shards, options.heldout_share, sum(duplicates.values()))
    splits, lines, repeated = _without_repeated_lines(partial_shards, splits, options)
    entries: dict[str, list[ShardEntry]] = {name: [] for name in SPLITS}
    held: dict[str, list[ShardStatistics]] = {name: [] for name in SPLITS}
    pieces = {name: np.zeros(tokenizer.vocab_size, dtype=np.int64) for name in SPLITS}
    moves = []
    for partial, before, after, kept in zip(partial_shards, natural, splits, lines, strict=True):
        for name, path, record, counted in partial.shards(before, after, kept, tokenizer):
            file = f"{name}-{len(entries[name]):05d}.arrow"
            entries[name].append(ShardEntry(file, record.statistics.documents, record.bytes, record.checksum))
            held[name].append(record.statistics)
            pieces[name] += counted
            moves.append([str(path.relative_to(folder)), file])
    counts = {name: _counts(held[name]) for name in SPLITS}
    manifest = Manifest(
        tokenizer=tokenizer.fingerprint,
        settings=dict(settings),
        words=options.words is not None,
        duplicates=duplicates,
        splits={name: SplitEntry(**counts[name], shards=tuple(entries[name])) for name in SPLITS},
        piece_counts=pieces[TRAIN],
    )
    characters, unknown, special = np.sum([partial.load("written") for partial in partial_shards], axis=0).tolist()
    statistics = {
        **_counts([*held[TRAIN], *held[HELDOUT]]),
        "splits": counts,
        "duplicates": duplicates,
        "empty_rows": empty_rows,
        # 拼不出的部分先数：丢掉重复文档之前的全部文本
        "characters": characters,
        "unknown_characters": unknown,
        "special_tokens_as_text": special,
        "repeated_lines": repeated,
        **summarize(pieces[TRAIN] + pieces[HELDOUT], [*held[TRAIN], *held[HELDOUT]], tokenizer),
    }
    # 提交点：此后只剩改名，中断了再来一遍也一样
    decided = {"moves": moves, "manifest": to_json(manifest), "statistics": statistics}
    write_json(folder / PARTS / _COMMIT, decided, checked=True)
    apply_commit(folder)
    # 刚写成的不必再读一遍；隔了一段时间才搬完的（见 `apply_commit`）则要读
    note_verified(folder, manifest.shards)


def apply_commit(folder: Path) -> None:
    """Moves everything to its place, if it has been decided what goes where."""
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
    """Reads `statistics.json` of a finished corpus."""
    return read_json(folder / STATISTICS, dict[str, Any], CheckpointError, BUILD_AGAIN)


def _counts(shards: Sequence[ShardStatistics]) -> dict[str, int]:
    return {name: sum(getattr(shard, name) for shard in shards) for name in ("documents", "sentences", "tokens")}


def _without_duplicates(
    partial_shards: Sequence[PartialShard], natural: Sequence[NDArray[np.int8]], options: CorpusOptions
) -> tuple[list[NDArray[np.int8]], dict[str, int]]:
    """Says where every document goes, with repeats dropped, and how many these are."""
    splits = [group.copy() for group in natural]
    if splits and not options.keep_duplicates:
        # 号码相同就是同一串 id：每篇只占八个字节，留下最先出现的一篇
        hashes = np.concatenate([partial.load("hashes") for partial in partial_shards])
        repeated = np.ones(len(hashes), dtype=np.bool_)
        repeated[np.unique(hashes, return_index=True)[1]] = False
        for group, repeats in zip(splits, _cut_like(splits, repeated), strict=True):
            group[repeats] = DROPPED
    exact = sum(int((group == DROPPED).sum()) for group in splits)
    if options.near_duplicates is not None:
        index = NearDuplicates(options.near_duplicates)
        for partial, group in zip(partial_shards, splits, strict=True):
            signatures = partial.load("signatures")
            for number in np.flatnonzero(group != DROPPED).tolist():
                if index.repeats(signatures[number]):
                    group[number] = DROPPED
    dropped = sum(int((group == DROPPED).sum()) for group in splits)
    return splits, {"exact": exact, "near": dropped - exact}


def _without_repeated_lines(
    partial_shards: Sequence[PartialShard], splits: Sequence[NDArray[np.int8]], options: CorpusOptions
) -> tuple[list[NDArray[np.int8]], list[NDArray[np.bool_]], dict[str, float]]:
    """Says which sentences stay, where documents with none go, and what repeats; one copy stays, to train on."""
    sentences = [partial.load("sentences") for partial in partial_shards]
    hashes, lengths = (
        np.concatenate([partial.load(f"sentence_{name}") for partial in partial_shards])
        for name in ("hashes", "lengths")
    )
    split_of = np.repeat(np.concatenate(splits), np.concatenate(sentences))
    document_of = np.repeat(np.arange(sum(map(len, sentences)), dtype=np.int32), np.concatenate(sentences))
    kept = np.flatnonzero(split_of != DROPPED)
    # 句子以亿计，每句的字节都要省：只排一次序，相同的句子排在一起，其中同一文档的又在一起
    kept = kept[np.argsort(hashes[kept], kind="stable")]
    is_new = _differs(hashes[kept])
    line_of = np.cumsum(is_new) - 1
    least = options.drop_repeated_lines or REPEATED
    is_repeated = np.bincount(line_of[is_new | _differs(document_of[kept])], minlength=1) >= least
    copies = np.sort(kept[is_repeated[line_of]])
    stays = np.ones(len(hashes), dtype=np.bool_)
    figures = {
        "documents": least,
        "lines": int(is_repeated.sum()),
        "copies": len(copies),
        "token_share": float(lengths[copies].sum() / max(1, lengths[kept].sum())),
        "heldout_token_share": float(
            lengths[copies].sum(where=split_of[copies] == 1) / max(1, lengths.sum(where=split_of == 1))
        ),
        "dropped": 0,
    }
    if options.drop_repeated_lines is not None and len(copies):
        # 训练集里的第一份留下；留出集里一份不留，分数才不是背出来的
        trained = copies[split_of[copies] == 0]
        _, first = np.unique(hashes[trained], return_index=True)
        stays[copies] = False
        stays[trained[first]] = True
        figures["dropped"] = int((~stays).sum())
    per_partial = np.split(stays, np.cumsum([group.sum() for group in sentences])[:-1])
    left = []
    for group, sizes, lines in zip(splits, sentences, per_partial, strict=True):
        held = np.add.reduceat(lines, np.cumsum(sizes) - sizes) if len(sizes) else sizes
        left.append(np.where(held > 0, group, np.int8(DROPPED)).astype(np.int8))
    together, texts = (np.concatenate(each) for each in (left, [partial.load("texts") for partial in partial_shards]))
    # 只剩一本书的训练集里，“随机的下一句”无处可取
    if len(np.unique(texts[together == 0])) < 2 or not (together == 1).any():
        raise InputError(
            f"--drop-repeated-lines {least} leaves fewer than two texts to train on, or none to validate on; give a"
            " larger number"
        )
    return left, per_partial, figures


def _settled(
    splits: Sequence[NDArray[np.int8]], partial_shards: Sequence[PartialShard], share: float, duplicates: int
) -> list[NDArray[np.int8]]:
    """Sees to it that two texts are there to train on and one to validate on, and that this one is not too much."""
    together = np.concatenate([np.zeros(0, dtype=np.int8), *splits])
    kept = together != DROPPED
    numbers = np.concatenate([np.zeros(0, np.uint64), *(partial.load("texts") for partial in partial_shards)])[kept]
    lengths = np.concatenate([np.zeros(0, np.int64), *(partial.load("lengths") for partial in partial_shards)])[kept]
    texts, text_of = np.unique(numbers, return_inverse=True)
    if len(texts) < LEAST_TEXTS:
        raise few_texts_error(len(texts), duplicates)
    sizes = np.bincount(text_of, weights=lengths)
    held = splits_by_text(texts, share) == 1
    wanted = share * sizes.sum()
    if not 0.5 * wanted <= sizes[held].sum() <= 2 * wanted or (~held).sum() < 2:
        held[:] = False
        # texts 已按号码排好：结果同样只取决于内容
        count, total = 0, 0.0
        for number, size in enumerate(sizes.tolist()):
            if total + size <= wanted and count < len(texts) - 2:
                held[number] = True
                count, total = count + 1, total + size
        if not held.any():
            held[np.argmin(sizes)] = True
    together[kept] = held[text_of]
    return _cut_like(splits, together)


def _differs(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Says of each value, [n], whether it differs from the one before; the first does."""
    return np.concatenate([np.ones(min(1, len(values)), dtype=np.bool_), values[1:] != values[:-1]])


def _cut_like(groups: Sequence[NDArray[Any]], together: NDArray[Any]) -> list[NDArray[Any]]:
    return np.split(together, np.cumsum([len(group) for group in groups])[:-1])
