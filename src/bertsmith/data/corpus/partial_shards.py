"""The building stones of a corpus: what one unit of work leaves in the folder of unfinished parts.

Notable:
- a unit becomes a folder that appears by renaming, so it is there whole or not at all: a killed build keeps what it has
- its content depends on the unit's documents and the settings alone, not on who made it, nor when
- a unit has a part for about every `shard_tokens` ids; a part is a shard for each split, and beside them what finishing
  needs of every document: its hash, and its MinHash signature where near-duplicates are looked for
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.documents import DocumentBlock, MappedBlock, write_block
from bertsmith.data.corpus.duplicates import signatures_of
from bertsmith.data.corpus.manifest import SPLITS
from bertsmith.data.corpus.statistics import length_histograms
from bertsmith.data.corpus.words import encode_with_words
from bertsmith.data.reading.text import Document
from bertsmith.files import atomic_path, write_text
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.tokenizer.batches import collector_paused

DROPPED = len(SPLITS)
"""Where a document goes that goes to no split."""
_GROUP_SENTENCES = 4096


@dataclass(frozen=True)
class ShardSettings:
    """What decides the content of a part, besides tokenizer and text.

    Attributes:
        heldout_share: share of the documents that is held out, in (0, 1).
        shard_tokens: ids of a part.
        words: store which ids continue a word.
        signatures: keep what near-duplicates are found by.
    """

    heldout_share: float
    shard_tokens: int
    words: bool = False
    signatures: bool = False


@dataclass(frozen=True)
class Shard:
    """One Arrow file and what the manifest says of it.

    Attributes:
        split: index into `SPLITS`.
        path: the file.
        record: counts, histograms and checksum.
        pieces: [V] int64, how often each id occurs in it.
    """

    split: int
    path: Path
    record: dict[str, Any]
    pieces: NDArray[np.int64]


def write_unit(
    path: Path, documents: Iterable[Document], tokenizer: WordPieceTokenizer, settings: ShardSettings
) -> int:
    """Turns the documents of a unit into its folder.

    Args:
        path: the folder, made in one step.
        documents: read once, in order; memory is bounded by `settings.shard_tokens`.
        tokenizer: makes the ids.
        settings: what the parts are like.

    Returns:
        The number of ids.

    Raises:
        RunFolderError: the disk is full or the place cannot be written.
    """
    tokens = 0
    records: list[dict[str, Any]] = []
    # 千万个字符串和元组里没有循环引用：垃圾回收器一遍遍地走，只是白费时间
    with collector_paused(), atomic_path(path) as temporary:
        temporary.mkdir()
        for block in _blocks(documents, tokenizer, settings):
            tokens += len(block.tokens)
            records.append(_write_part(temporary, len(records), block, tokenizer.vocab_size, settings))
        write_text(temporary / "unit.json", json.dumps({"tokens": tokens, "parts": records}))
    return tokens


def read_parts(path: Path, settings: ShardSettings) -> list[Part]:
    """Opens the parts of a finished unit, in order."""
    records = json.loads((path / "unit.json").read_text(encoding="utf-8"))["parts"]
    return [Part(path, number, record, settings) for number, record in enumerate(records)]


def unit_tokens(path: Path) -> int:
    """Reads how many ids a finished unit has."""
    return int(json.loads((path / "unit.json").read_text(encoding="utf-8"))["tokens"])


@dataclass(frozen=True)
class Part:
    """One part of a unit, as it lies on the disk."""

    folder: Path
    number: int
    records: dict[str, dict[str, Any]]
    settings: ShardSettings

    def hashes(self) -> NDArray[np.uint64]:
        """Returns [D] uint64, the hashes of the documents in input order."""
        hashes: NDArray[np.uint64] = self._load("hashes")
        return hashes

    def signatures(self) -> NDArray[np.uint32]:
        """Returns [D, 128] uint32."""
        signatures: NDArray[np.uint32] = self._load("signatures")
        return signatures

    def shards(self, splits: NDArray[np.int8], vocab_size: int) -> Iterator[Shard]:
        """Gives the shards that hold every document where it belongs; writes new ones where that has changed.

        Args:
            splits: [D] index into `SPLITS` of every document, or `DROPPED`.
            vocab_size: V.
        """
        natural = splits_by_hash(self.hashes(), self.settings.heldout_share)
        if np.array_equal(natural, splits):
            for split, name in enumerate(SPLITS):
                if name in self.records:
                    yield Shard(split, self._path(name), self.records[name], self._load(f"{name}_pieces"))
            return
        blocks = [MappedBlock(self._path(name)).whole() if name in self.records else None for name in SPLITS]
        for target, name in enumerate(SPLITS):
            chosen = []
            for origin in (target, 1 - target):
                wanted, block = splits[natural == origin] == target, blocks[origin]
                if block is not None and wanted.any():
                    chosen.append(block.select(wanted))
            if chosen:
                path = self._path(f"{name}.kept")
                record, pieces = _write_shard(path, DocumentBlock.join(chosen), vocab_size)
                yield Shard(target, path, record, pieces)

    def _path(self, name: str) -> Path:
        return self.folder / f"{self.number:03d}.{name}.arrow"

    def _load(self, name: str) -> Any:
        with np.load(self.folder / f"{self.number:03d}.npz", allow_pickle=False) as arrays:
            return arrays[name]


def splits_by_hash(hashes: NDArray[np.uint64], heldout_share: float) -> NDArray[np.int8]:
    """Divides documents into training (0) and held-out (1) by their content alone."""
    # 按内容哈希划分验证集：与文件顺序、进程数无关，重复的文档必在同一边
    return (hashes.astype(np.float64) / 2**64 < heldout_share).astype(np.int8)


def _blocks(
    documents: Iterable[Document], tokenizer: WordPieceTokenizer, settings: ShardSettings
) -> Iterator[DocumentBlock]:
    waiting: list[DocumentBlock] = []
    tokens = 0
    for group in _groups(documents, settings.shard_tokens):
        block = _encode(group, tokenizer, words=settings.words)
        if block.num_documents:
            waiting.append(block)
            tokens += len(block.tokens)
        if tokens >= settings.shard_tokens:
            yield DocumentBlock.join(waiting)
            waiting, tokens = [], 0
    if waiting:
        yield DocumentBlock.join(waiting)


def _encode(documents: Sequence[Document], tokenizer: WordPieceTokenizer, *, words: bool) -> DocumentBlock:
    # 一批文档的句子一次编码成一整块数组：不产生任何 Python 整数列表
    sentences = [sentence for document in documents for sentence in document.sentences]
    encoded, continuations = (
        encode_with_words(sentences, tokenizer) if words else (tokenizer.encode_flat(sentences), None)
    )
    lengths = np.diff(encoded.bounds)
    document_of = np.repeat(np.arange(len(documents)), [len(document.sentences) for document in documents])
    per_document = np.bincount(document_of[lengths > 0], minlength=len(documents))
    return DocumentBlock(encoded.ids, lengths[lengths > 0], per_document[per_document > 0], continuations)


def _write_part(
    folder: Path, number: int, block: DocumentBlock, vocab_size: int, settings: ShardSettings
) -> dict[str, Any]:
    arrays: dict[str, Any] = {"hashes": block.hashes()}
    if settings.signatures:
        arrays["signatures"] = signatures_of(block)
    splits = splits_by_hash(arrays["hashes"], settings.heldout_share)
    records = {}
    for split, name in enumerate(SPLITS):
        if (splits == split).any():
            path = folder / f"{number:03d}.{name}.arrow"
            records[name], arrays[f"{name}_pieces"] = _write_shard(path, block.select(splits == split), vocab_size)
    np.savez(folder / f"{number:03d}.npz", **arrays)
    return records


def _write_shard(path: Path, block: DocumentBlock, vocab_size: int) -> tuple[dict[str, Any], NDArray[np.int64]]:
    checksum = write_block(path, block)
    record = {
        "documents": block.num_documents,
        "sentences": len(block.sentence_lengths),
        "tokens": len(block.tokens),
        "bytes": path.stat().st_size,
        "checksum": checksum,
        **length_histograms(block),
    }
    return record, np.bincount(block.tokens, minlength=vocab_size)


def _groups(documents: Iterable[Document], shard_tokens: int) -> Iterator[Sequence[Document]]:
    group: list[Document] = []
    count = 0
    # 小分片（测试里）也要大致守住大小：一批的句子数不超过分片的 id 数
    most = min(_GROUP_SENTENCES, max(1, shard_tokens // 16))
    for document in documents:
        group.append(document)
        count += len(document.sentences)
        if count >= most:
            yield group
            group, count = [], 0
    if group:
        yield group
