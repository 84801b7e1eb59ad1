"""Token shards: a corpus as ids on disk, written once, read by memory mapping.

A shard is an Arrow IPC file with one row a document: a list of sentences, each a list of ids. `manifest.json` is
written last and says what is complete: which tokenizer made the ids, how many there are, and a checksum per shard.
Pairs and masks are not stored; they are drawn while reading, so no epoch repeats another. A small share of the
documents, chosen by the hash of their ids, is held out for validation.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith.data.text import Document
from bertsmith.errors import CheckpointError, InputError, RunFolderError
from bertsmith.files import atomic_path, make_folder, write_text
from bertsmith.tokenizer import WordPieceTokenizer

FORMAT_VERSION = 1
TRAIN, HELDOUT = "train", "heldout"
SHARD_TOKENS = 16_000_000
"""Ids per shard: 64 MB, small enough to make and check quickly, large enough that their number stays small."""


@dataclass(frozen=True)
class SplitCounts:
    """How much a split holds."""

    documents: int
    sentences: int
    tokens: int


def build_shards(
    documents: Iterable[Document],
    tokenizer: WordPieceTokenizer,
    folder: str | Path,
    *,
    settings: dict[str, Any],
    heldout_share: float = 0.02,
    shard_tokens: int = SHARD_TOKENS,
) -> TokenCorpus:
    """Tokenizes documents into a folder of shards, or returns the corpus that is there already.

    Args:
        documents: read once, in order; memory is bounded by one shard.
        tokenizer: makes the ids.
        folder: where the shards go.
        settings: everything else the shards depend on, such as sources; kept in the manifest and compared.
        heldout_share: share of the documents that is held out, in (0, 1).
        shard_tokens: ids per shard.

    Raises:
        InputError: there are fewer than three documents.
        RunFolderError: the folder holds a corpus made with other settings, or cannot be written.
    """
    folder = make_folder(Path(folder))
    settings = {**settings, "heldout_share": heldout_share, "shard_tokens": shard_tokens}
    if (folder / "manifest.json").is_file():
        _require_same_settings(folder, tokenizer, settings)
        return TokenCorpus(folder, tokenizer)
    writer = _ShardWriter(folder, tokenizer.vocab_size, shard_tokens, heldout_share)
    for group in _groups(documents, sentences=4096):
        # 一批文档的句子一次编码成一整块数组：不产生任何 Python 整数列表
        encoded = tokenizer.encode_flat([sentence for document in group for sentence in document.sentences])
        sentences = iter(np.split(encoded.ids, encoded.bounds[1:-1]))
        for document in group:
            writer.add([ids for ids in itertools.islice(sentences, len(document.sentences)) if len(ids)])
    writer.finish()
    manifest = {
        "format": "bertsmith token shards",
        "version": FORMAT_VERSION,
        "tokenizer": tokenizer.fingerprint,
        "settings": settings,
        "splits": writer.splits,
        "piece_counts": writer.piece_counts.tolist(),
    }
    # 清单最后写：有清单就说明所有分片完整，中途被杀则重新来过
    write_text(folder / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False))
    return TokenCorpus(folder, tokenizer)


class TokenCorpus:
    """A finished folder of shards, memory-mapped.

    Attributes:
        piece_counts: [V] int64, how often each id occurs in the training split.
        fingerprint: of the manifest, and so of the shards, their settings and their tokenizer.
    """

    def __init__(self, folder: str | Path, tokenizer: WordPieceTokenizer | None = None) -> None:
        """Opens the shards and checks them against their manifest.

        Args:
            folder: made by `build_shards`.
            tokenizer: when given, must be the one that made the ids.

        Raises:
            CheckpointError: no manifest, another format version, another tokenizer, or a shard is damaged.
        """
        self.folder = Path(folder)
        manifest = _read_manifest(self.folder)
        if tokenizer is not None and manifest["tokenizer"] != tokenizer.fingerprint:
            raise CheckpointError(
                f"{folder}: its ids come from another tokenizer; remove the folder and build the corpus again"
            )
        self.fingerprint = hashlib.blake2b((self.folder / "manifest.json").read_bytes(), digest_size=16).hexdigest()
        self.piece_counts = np.array(manifest["piece_counts"], dtype=np.int64)
        self.counts = {
            name: SplitCounts(split["documents"], split["sentences"], split["tokens"])
            for name, split in manifest["splits"].items()
        }
        self._shards = {
            name: [_MappedShard(self.folder, entry) for entry in split["shards"]]
            for name, split in manifest["splits"].items()
        }
        self._first_document = {
            name: np.cumsum([0, *(shard.num_documents for shard in shards)]) for name, shards in self._shards.items()
        }

    def document(self, split: str, index: int) -> list[NDArray[np.int32]]:
        """Returns the sentences of a document as [S_i] int32 views of the mapped file.

        Args:
            split: `train` or `heldout`.
            index: in [0, counts[split].documents).
        """
        shard = int(np.searchsorted(self._first_document[split], index, side="right")) - 1
        return self._shards[split][shard].document(index - int(self._first_document[split][shard]))

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the piece distribution in nats: the loss of a model that knows frequencies and no context."""
        share = self.piece_counts[self.piece_counts > 0] / self.piece_counts.sum()
        return float(-(share * np.log(share)).sum())


class _MappedShard:
    """One Arrow file, its three arrays mapped without a copy."""

    def __init__(self, folder: Path, entry: dict[str, Any]) -> None:
        path = folder / entry["file"]
        try:
            mapped = pa.memory_map(str(path))
            digest = hashlib.blake2b(mapped.read_buffer(), digest_size=16).hexdigest()
        except OSError as error:
            raise CheckpointError(
                f"{path}: shard cannot be read ({error}); remove the folder and build the corpus again"
            ) from None
        if digest != entry["checksum"]:
            raise CheckpointError(
                f"{path}: shard is damaged (its checksum differs); remove the folder and build the corpus again"
            )
        mapped.seek(0)
        column = pa.ipc.open_file(mapped).get_batch(0).column("sentences")
        self._sentence_offsets = column.offsets.to_numpy()
        self._token_offsets = column.values.offsets.to_numpy()
        self._tokens = column.values.values.to_numpy()
        self.num_documents: int = entry["documents"]

    def document(self, index: int) -> list[NDArray[np.int32]]:
        first, last = self._sentence_offsets[index], self._sentence_offsets[index + 1]
        offsets = self._token_offsets[first : last + 1].tolist()
        return [self._tokens[start:end] for start, end in itertools.pairwise(offsets)]


class _ShardWriter:
    """Collects documents per split and writes a shard whenever enough ids are there."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int, heldout_share: float) -> None:
        self.folder = folder
        self.shard_tokens = shard_tokens
        self.heldout_share = heldout_share
        self.piece_counts = np.zeros(vocab_size, dtype=np.int64)
        self.splits: dict[str, dict[str, Any]] = {
            name: {"documents": 0, "sentences": 0, "tokens": 0, "shards": []} for name in (TRAIN, HELDOUT)
        }
        self._waiting: dict[str, list[tuple[float, list[NDArray[np.int32]]]]] = {TRAIN: [], HELDOUT: []}
        self._waiting_tokens = {TRAIN: 0, HELDOUT: 0}

    def add(self, sentences: list[NDArray[np.int32]]) -> None:
        if not sentences:
            return
        # 按内容哈希划分验证集：与文件顺序、进程数无关，重复的文档必在同一边
        content = np.concatenate(sentences)
        # 只留这份拷贝的视图：否则每篇等待写出的文档都会拖住整批编码结果的内存
        sentences = np.split(content, np.cumsum([len(ids) for ids in sentences])[:-1])
        fraction = int.from_bytes(hashlib.blake2b(content.tobytes(), digest_size=8).digest(), "little") / 2**64
        split = HELDOUT if fraction < self.heldout_share else TRAIN
        if self._waiting_tokens[split] >= self.shard_tokens:
            self._write(split)
        self._waiting[split].append((fraction, sentences))
        self._waiting_tokens[split] += len(content)

    def finish(self) -> None:
        """Writes what waits, after making sure that both splits hold something.

        Raises:
            InputError: fewer than three documents: two are needed for random pairs, one to validate on.
        """
        train, heldout = self._waiting[TRAIN], self._waiting[HELDOUT]
        total = sum(split["documents"] for split in self.splits.values()) + len(train) + len(heldout)
        if total < 3:
            raise InputError(
                f"the corpus has {total} document(s), at least 3 are needed; "
                "separate documents by blank lines and pass --documents blank-line, or add files"
            )
        if not self.splits[HELDOUT]["documents"] and not heldout:
            heldout.append(train.pop(min(range(len(train)), key=lambda index: train[index][0])))
        while not self.splits[TRAIN]["documents"] and len(train) < 2:
            train.append(heldout.pop())
        for split, waiting in self._waiting.items():
            if waiting:
                self._write(split)

    def _write(self, split: str) -> None:
        documents = [sentences for _, sentences in self._waiting[split]]
        sentences = [ids for document in documents for ids in document]
        tokens = np.concatenate(sentences)
        record = self.splits[split]
        name = f"{split}-{len(record['shards']):05d}.arrow"
        inner = pa.ListArray.from_arrays(_offsets(sentences), pa.array(tokens))
        column = pa.ListArray.from_arrays(_offsets(documents), inner)
        table = pa.record_batch([column], names=["sentences"])
        with atomic_path(self.folder / name) as temporary, pa.ipc.new_file(str(temporary), table.schema) as sink:
            sink.write_batch(table)
        if split == TRAIN:
            self.piece_counts += np.bincount(tokens, minlength=len(self.piece_counts))
        checksum = hashlib.blake2b((self.folder / name).read_bytes(), digest_size=16).hexdigest()
        record["shards"].append({"file": name, "documents": len(documents), "checksum": checksum})
        record["documents"] += len(documents)
        record["sentences"] += len(sentences)
        record["tokens"] += len(tokens)
        self._waiting[split], self._waiting_tokens[split] = [], 0


def _groups(documents: Iterable[Document], *, sentences: int) -> Iterator[Sequence[Document]]:
    group: list[Document] = []
    count = 0
    for document in documents:
        group.append(document)
        count += len(document.sentences)
        if count >= sentences:
            yield group
            group, count = [], 0
    if group:
        yield group


def _offsets(parts: Sequence[Sequence[Any] | NDArray[np.int32]]) -> NDArray[np.int32]:
    """Returns where each of n parts starts, and where the last one ends: [n+1]."""
    return np.cumsum([0, *(len(part) for part in parts)], dtype=np.int32)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
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


def _require_same_settings(folder: Path, tokenizer: WordPieceTokenizer, settings: dict[str, Any]) -> None:
    manifest = _read_manifest(folder)
    found = {"tokenizer": manifest["tokenizer"], **manifest["settings"]}
    wanted = {"tokenizer": tokenizer.fingerprint, **json.loads(json.dumps(settings))}
    different = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    if different:
        raise RunFolderError(
            f"{folder}: holds a corpus made with other settings ({', '.join(different)}); choose another --out"
        )
