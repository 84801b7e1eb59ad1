"""Token shards: a corpus as ids on disk, written once, read by memory mapping.

A shard is an Arrow IPC file with one row a document: a list of sentences, each a list of ids. `manifest.json` is
written last and says what is complete: which tokenizer made the ids, how many there are, and a checksum per shard.
Pairs and masks are not stored; they are drawn while reading, so no epoch repeats another. A small share of the
texts, chosen by what they say, is held out for validation: a book that was cut into documents with all of them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith.data.corpus.documents import MappedDocuments
from bertsmith.data.corpus.manifest import BUILD_AGAIN, HELDOUT, MANIFEST, TRAIN, SplitCounts, read_manifest
from bertsmith.data.corpus.verified import verify_shards
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.tokenizer import Tokenizer

__all__ = ["HELDOUT", "TRAIN", "SplitCounts", "TokenCorpus"]

_MOST_MAPPED = 256
"""Shards mapped at a time: each holds a file descriptor, of which a process has about a thousand."""


class TokenCorpus:
    """A finished folder of shards, memory-mapped.

    Attributes:
        piece_counts: [V] int64, how often each id occurs in the training split.
        counts: how much each split holds.
        has_words: the corpus knows which ids continue a word.
        fingerprint: of the manifest, and so of the shards, their settings and their tokenizer.
    """

    def __init__(self, folder: str | Path, tokenizer: Tokenizer | None = None) -> None:
        """Opens a corpus; shards that were touched since they were last checked are checked against the manifest.

        Args:
            folder: made by `build_corpus`.
            tokenizer: when given, must be the one that made the ids.

        Raises:
            CheckpointError: no manifest, another format version, another tokenizer, or a shard is damaged.
        """
        self.folder = Path(folder)
        manifest = read_manifest(self.folder)
        if tokenizer is not None and manifest.tokenizer != tokenizer.fingerprint:
            raise CheckpointError(f"{folder}: its ids come from another tokenizer; {BUILD_AGAIN}")
        self.fingerprint = hashlib.blake2b((self.folder / MANIFEST).read_bytes(), digest_size=16).hexdigest()
        self.piece_counts = np.array(manifest.piece_counts, dtype=np.int64)
        self.has_words = manifest.words
        self.counts = {name: split.counts for name, split in manifest.splits.items()}
        self._manifest = manifest
        self._first_document = {
            name: np.cumsum([0, *(shard.documents for shard in split.shards)])
            for name, split in manifest.splits.items()
        }
        self._mapped: dict[str, MappedDocuments] = {}
        verify_shards(self.folder, manifest.shards)

    def verify(self) -> None:
        """Reads every byte of every shard and checks it against the manifest.

        Raises:
            CheckpointError: a shard is missing or damaged.
        """
        verify_shards(self.folder, self._manifest.shards, every_byte=True)

    def document(self, split: str, index: int) -> list[NDArray[np.int32]]:
        """Returns the sentences of a document as [S_i] int32 views of the mapped file.

        Args:
            split: `train` or `heldout`.
            index: in [0, counts[split].documents).
        """
        shard, row = self._find(split, index)
        return shard.document(row)

    def text(self, split: str, index: int) -> int:
        """Returns the number of the text that a document is a part of: parts of one book have the same.

        Args:
            split: `train` or `heldout`.
            index: in [0, counts[split].documents).
        """
        shard, row = self._find(split, index)
        return shard.text(row)

    def continuations(self, split: str, index: int) -> list[NDArray[np.bool_]]:
        """Returns which ids of a document continue the word of the id before: `##` pieces, and inside Chinese words.

        Args:
            split: `train` or `heldout`.
            index: in [0, counts[split].documents).

        Returns:
            [S_i] bool for each sentence, in the shape of `document`; the first id of a sentence never continues.

        Raises:
            ConfigError: the corpus was built without words.
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
        """Finds the shard of a document and its row there; maps the shard if it is not mapped."""
        first = self._first_document[split]
        number = int(np.searchsorted(first, index, side="right")) - 1
        name = self._manifest.splits[split].shards[number].file
        mapped = self._mapped.get(name)
        if mapped is None:
            try:
                mapped = MappedDocuments(self.folder / name)
            except (OSError, pa.ArrowException) as error:
                place = self.folder / name
                raise CheckpointError(f"{place}: shard cannot be read ({error}); {BUILD_AGAIN}") from None
            # 最早映射的先放手；已交出去的视图仍各自持有映射，不会失效
            if len(self._mapped) >= _MOST_MAPPED:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[name] = mapped
        return mapped, index - int(first[number])
