"""Token shards: a corpus as ids on disk, written once, read by memory mapping.

- documents are a few arrays, whatever their number: encoding, splitting, dropping and writing are array work
- a shard is an Arrow file with one row a document: a list of sentences, each a list of ids, and the number of the text
  it is a part of; where words matter, another column says of each id whether it continues the word of the one before
- pairs and masks are not stored; they are drawn while reading, so no epoch repeats another
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith.data.corpus.manifest import (
    BUILD_AGAIN,
    HELDOUT,
    MANIFEST,
    TRAIN,
    SplitCounts,
    checksum_of,
    read_manifest,
    verify_shards,
)
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.files import atomic_path
from bertsmith.seeding import mixed_bits
from bertsmith.tokenizer import Tokenizer

__all__ = ["HELDOUT", "TRAIN", "SplitCounts", "TokenCorpus"]

_MOST_MAPPED = 256
"""Shards mapped at a time: each holds a file descriptor, of which a process has about a thousand."""


class TokenCorpus:
    """A finished folder of shards, memory-mapped.

    Attributes:
        piece_counts: [V] int64, how often each id occurs in the training split.
        has_words: the corpus knows which ids continue a word.
        fingerprint: of the manifest, and so of the shards, their settings and their tokenizer.
    """

    def __init__(self, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
        """Opens a corpus; shards that were touched since they were last checked are checked against the manifest."""
        self.folder = Path(folder)
        manifest = read_manifest(self.folder)
        if tokenizer is not None and manifest.tokenizer != tokenizer.fingerprint:
            raise CheckpointError(f"{folder}: its ids come from another tokenizer; {BUILD_AGAIN}")
        self.fingerprint = hashlib.blake2b((self.folder / MANIFEST).read_bytes(), digest_size=16).hexdigest()
        self.piece_counts = np.array(manifest.piece_counts, dtype=np.int64)
        self.has_words = manifest.words
        self.counts: Mapping[str, SplitCounts] = manifest.splits
        self._manifest = manifest
        self._first_document = {
            name: np.cumsum([0, *(shard.documents for shard in split.shards)])
            for name, split in manifest.splits.items()
        }
        self._mapped: dict[str, MappedDocuments] = {}
        verify_shards(self.folder, manifest.shards)

    def verify(self) -> None:
        """Reads every byte of every shard and checks it against the manifest."""
        verify_shards(self.folder, self._manifest.shards, every_byte=True)

    def document(self, split: str, index: int) -> list[NDArray[np.int32]]:
        """Returns the sentences of document `index` of a split as [S_i] int32 views of the mapped file."""
        shard, row = self._find(split, index)
        return shard.document(row)

    def text(self, split: str, index: int) -> int:
        """Returns the number of the text that a document is a part of: parts of one book have the same."""
        shard, row = self._find(split, index)
        return shard.text(row)

    def continuations(self, split: str, index: int) -> list[NDArray[np.bool_]]:
        """Returns which ids of a document continue the word of the id before: `##` pieces, and inside Chinese words.

        The shape is that of `document`, [S_i] bool for each sentence, whose first id never continues.
        """
        if not self.has_words:
            raise ConfigError(f"{self.folder}: does not know its words; build it with --words jieba")
        shard, row = self._find(split, index)
        return shard.continuations(row)

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the piece distribution in nats: the loss of a model that knows frequencies and no context."""
        share = self.piece_counts[self.piece_counts > 0] / self.piece_counts.sum()
        return float(-(share * np.log(share)).sum())

    def _find(self, split: str, index: int) -> tuple[MappedDocuments, int]:
        first = self._first_document[split]
        number = int(np.searchsorted(first, index, side="right")) - 1
        name = self._manifest.splits[split].shards[number].file
        mapped = self._mapped.get(name)
        if mapped is None:
            place = self.folder / name
            try:
                mapped = MappedDocuments(place)
            except (OSError, pa.ArrowException) as error:
                raise CheckpointError(f"{place}: shard cannot be read ({error}); {BUILD_AGAIN}") from None
            # 最早映射的先放手；已交出去的视图仍各自持有映射，不会失效
            if len(self._mapped) >= _MOST_MAPPED:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[name] = mapped
        return mapped, index - int(first[number])


@dataclass(frozen=True)
class TokenizedDocuments:
    """D documents of S sentences of T ids, one behind the other.

    Attributes:
        sentence_lengths: [S] int64, ids per sentence, none 0.
        document_lengths: [D] int64, sentences per document, none 0.
        texts: [D] uint64, the number of the text that a document is a part of.
        continuations: [T] bool, whether an id continues the word of the one before; None without words.
    """

    tokens: NDArray[np.int32]
    sentence_lengths: NDArray[np.int64]
    document_lengths: NDArray[np.int64]
    texts: NDArray[np.uint64]
    continuations: NDArray[np.bool_] | None = None

    @classmethod
    def join(cls, groups: Sequence[TokenizedDocuments]) -> TokenizedDocuments:
        """Puts groups of documents, at least one, one behind the other."""
        columns = [[getattr(group, column.name) for group in groups] for column in fields(cls)]
        # 没有词界的那一列全是 None
        joined: list[Any] = [None if parts[0] is None else np.concatenate(parts) for parts in columns]
        return cls(*joined)

    @property
    def num_documents(self) -> int:
        """The number of documents, D."""
        return len(self.document_lengths)

    def document_bounds(self) -> NDArray[np.int64]:
        """Returns [D+1] int64: document d has `tokens[bounds[d]:bounds[d+1]]`."""
        return _bounds(self.sentence_lengths)[_bounds(self.document_lengths)]

    def hashes(self) -> NDArray[np.uint64]:
        """Returns [D] uint64, a hash of the ids of every document: equal documents have equal ones."""
        content = np.ascontiguousarray(self.tokens).data.cast("B")
        bounds = (self.document_bounds() * self.tokens.itemsize).tolist()
        digests = [hashlib.blake2b(content[a:b], digest_size=8).digest() for a, b in itertools.pairwise(bounds)]
        return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)

    def sentence_hashes(self) -> NDArray[np.uint64]:
        """Returns [S] uint64, a hash of the ids of every sentence: cheaper than the one above, and not as strong."""
        starts = _bounds(self.sentence_lengths)[:-1]
        place = np.arange(len(self.tokens)) - np.repeat(starts, self.sentence_lengths)
        mixed = mixed_bits((self.tokens.astype(np.uint64) ^ (place.astype(np.uint64) << np.uint64(32))) + np.uint64(1))
        return np.add.reduceat(mixed, starts) if len(starts) else mixed

    def select(self, documents: NDArray[np.bool_], lines: NDArray[np.bool_] | None = None) -> TokenizedDocuments:
        """Returns the documents for which [D] `documents` is true, in order; of them the sentences of [S] `lines`."""
        sentences = np.repeat(documents, self.document_lengths)
        kept = self.document_lengths
        if lines is not None:
            sentences &= lines
            kept = np.add.reduceat(lines.astype(np.int64), _bounds(self.document_lengths)[:-1])
        tokens = np.repeat(sentences, self.sentence_lengths)
        return TokenizedDocuments(
            self.tokens[tokens],
            self.sentence_lengths[sentences],
            kept[documents],
            self.texts[documents],
            None if self.continuations is None else self.continuations[tokens],
        )


def write_documents(path: Path, documents: TokenizedDocuments) -> str:
    """Writes documents as an Arrow file, and returns its checksum."""
    sentences = pa.array(_bounds(documents.sentence_lengths).astype(np.int32))
    rows = pa.array(_bounds(documents.document_lengths).astype(np.int32))
    columns = {"sentences": pa.array(documents.tokens)}
    if documents.continuations is not None:
        columns["continuations"] = pa.array(documents.continuations)
    lists = [pa.ListArray.from_arrays(rows, pa.ListArray.from_arrays(sentences, column)) for column in columns.values()]
    batch = pa.record_batch([*lists, pa.array(documents.texts)], names=[*columns, "text"])
    with atomic_path(path) as temporary:
        with pa.ipc.new_file(str(temporary), batch.schema) as sink:
            sink.write_batch(batch)
        return checksum_of(temporary)


class MappedDocuments:
    """An Arrow file of documents, mapped without a copy; `OSError` or `pyarrow.ArrowException` where it is none."""

    def __init__(self, path: Path) -> None:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        column = batch.column("sentences")
        self._sentence_offsets = column.offsets.to_numpy()
        self._token_offsets = column.values.offsets.to_numpy()
        self._tokens = column.values.values.to_numpy()
        self._texts = batch.column("text").to_numpy()
        self.has_words = "continuations" in batch.schema.names
        if self.has_words:
            bits = batch.column("continuations").values.values
            self._bits = np.frombuffer(bits.buffers()[1], dtype=np.uint8)

    def document(self, index: int) -> list[NDArray[np.int32]]:
        """Returns the ids of a document's sentences as views."""
        return [self._tokens[start:end] for start, end in itertools.pairwise(self._offsets(index))]

    def text(self, index: int) -> int:
        """Returns the number of the text that a document is a part of."""
        return int(self._texts[index])

    def continuations(self, index: int) -> list[NDArray[np.bool_]]:
        """Returns, in the shape of `document`, whether each id continues the word of the one before."""
        offsets = self._offsets(index)
        first, last = offsets[0], offsets[-1]
        # 磁盘上一个布尔值占一个比特：只解开这篇文档所在的那几个字节
        bits = np.unpackbits(self._bits[first // 8 : -(-last // 8)], bitorder="little").view(np.bool_)[first % 8 :]
        return [bits[start - first : end - first] for start, end in itertools.pairwise(offsets)]

    def whole(self) -> TokenizedDocuments:
        """Returns all documents."""
        bits = None
        if self.has_words:
            bits = np.unpackbits(self._bits, bitorder="little")[: len(self._tokens)].view(np.bool_)
        return TokenizedDocuments(
            self._tokens,
            np.diff(self._token_offsets).astype(np.int64),
            np.diff(self._sentence_offsets).astype(np.int64),
            self._texts,
            bits,
        )

    def _offsets(self, index: int) -> list[int]:
        first, last = self._sentence_offsets[index : index + 2]
        offsets: list[int] = self._token_offsets[first : last + 1].tolist()
        return offsets


def _bounds(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
