"""Token shards: a corpus as ids on disk, written once, read by memory mapping.

A shard is an Arrow IPC file with one row a document: a list of sentences, each a list of ids. `manifest.json` is
written last and says what is complete: which tokenizer made the ids, how many there are, and a checksum per shard.
Pairs and masks are not stored; they are drawn while reading, so no epoch repeats another. A small share of the
documents, chosen by the hash of their ids, is held out for validation.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith.data.corpus.commit import PARTS, Dropping, finish
from bertsmith.data.corpus.documents import MappedBlock
from bertsmith.data.corpus.manifest import HELDOUT, MANIFEST, TRAIN, SplitCounts, read_manifest, require_same_settings
from bertsmith.data.corpus.partial_shards import ShardSettings, read_parts, write_unit
from bertsmith.data.corpus.verified import check_shards
from bertsmith.data.reading.text import Document
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.files import locked, make_folder
from bertsmith.tokenizer import WordPieceTokenizer

__all__ = ["HELDOUT", "SHARD_TOKENS", "TRAIN", "SplitCounts", "TokenCorpus", "build_shards"]

SHARD_TOKENS = 16_000_000
"""Ids per shard: 64 MB, small enough to make and check quickly, large enough that their number stays small."""
_MOST_MAPPED = 256
"""Shards mapped at a time: each holds a file descriptor, of which a process has about a thousand."""


def build_shards(
    documents: Iterable[Document],
    tokenizer: WordPieceTokenizer,
    folder: str | Path,
    *,
    settings: dict[str, Any],
    heldout_share: float = 0.02,
    shard_tokens: int = SHARD_TOKENS,
    words: bool = False,
) -> TokenCorpus:
    """Tokenizes documents that are at hand into a folder of shards, or returns the corpus that is there already.

    For files, and many of them, there is `build.build_corpus`: parallel and resumable. Here every document stays, also
    if it repeats another.

    Args:
        documents: read once, in order; memory is bounded by one shard.
        tokenizer: makes the ids.
        folder: where the shards go.
        settings: everything else the shards depend on, such as sources; kept in the manifest and compared.
        heldout_share: share of the documents that is held out, in (0, 1).
        shard_tokens: ids per shard.
        words: store which ids continue a word, by jieba.

    Raises:
        InputError: there are fewer than three documents.
        RunFolderError: the folder holds a corpus made with other settings, or cannot be written.
    """
    folder = make_folder(Path(folder))
    settings = {**settings, "heldout_share": heldout_share, "shard_tokens": shard_tokens}
    if words:
        settings["words"] = "jieba"
    # 先占住文件夹：另一个进程会把这里没建完的部分当作废品删掉
    with locked(folder):
        if (folder / MANIFEST).is_file():
            require_same_settings(folder, tokenizer, settings)
            return TokenCorpus(folder, tokenizer)
        # 文档流无法从中间接着读：上次没建完的部分作废，从头再来
        shutil.rmtree(folder / PARTS, ignore_errors=True)
        shard_settings = ShardSettings(heldout_share, shard_tokens, words)
        unit = folder / PARTS / "00000"
        try:
            write_unit(unit, documents, tokenizer, shard_settings)
            parts = read_parts(unit, shard_settings)
            finish(folder, parts, tokenizer, shard_settings=shard_settings, dropping=Dropping(), settings=settings)
        finally:
            shutil.rmtree(folder / PARTS, ignore_errors=True)
        return TokenCorpus(folder, tokenizer)


class TokenCorpus:
    """A finished folder of shards, memory-mapped.

    Attributes:
        piece_counts: [V] int64, how often each id occurs in the training split.
        counts: how much each split holds.
        has_words: the corpus knows which ids continue a word.
        fingerprint: of the manifest, and so of the shards, their settings and their tokenizer.
    """

    def __init__(self, folder: str | Path, tokenizer: WordPieceTokenizer | None = None) -> None:
        """Opens a corpus; shards that were touched since they were last checked are checked against the manifest.

        Args:
            folder: made by `build_shards` or `build_corpus`.
            tokenizer: when given, must be the one that made the ids.

        Raises:
            CheckpointError: no manifest, another format version, another tokenizer, or a shard is damaged.
        """
        self.folder = Path(folder)
        manifest = read_manifest(self.folder)
        if tokenizer is not None and manifest["tokenizer"] != tokenizer.fingerprint:
            raise CheckpointError(
                f"{folder}: its ids come from another tokenizer; remove the folder and build the corpus again"
            )
        self.fingerprint = hashlib.blake2b((self.folder / MANIFEST).read_bytes(), digest_size=16).hexdigest()
        self.piece_counts = np.array(manifest["piece_counts"], dtype=np.int64)
        self.has_words: bool = manifest.get("words", False)
        splits = manifest["splits"]
        self.counts = {
            name: SplitCounts(split["documents"], split["sentences"], split["tokens"]) for name, split in splits.items()
        }
        self._shards: dict[str, list[dict[str, Any]]] = {name: split["shards"] for name, split in splits.items()}
        self._first_document = {
            name: np.cumsum([0, *(shard["documents"] for shard in shards)]) for name, shards in self._shards.items()
        }
        self._mapped: dict[str, MappedBlock] = {}
        check_shards(self.folder, [shard for shards in self._shards.values() for shard in shards])

    def verify(self) -> None:
        """Reads every byte of every shard and checks it against the manifest.

        Raises:
            CheckpointError: a shard is missing or damaged.
        """
        shards = [shard for shards in self._shards.values() for shard in shards]
        check_shards(self.folder, shards, trust_stamps=False)

    def document(self, split: str, index: int) -> list[NDArray[np.int32]]:
        """Returns the sentences of a document as [S_i] int32 views of the mapped file.

        Args:
            split: `train` or `heldout`.
            index: in [0, counts[split].documents).
        """
        shard, row = self._find(split, index)
        return shard.document(row)

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

    def _find(self, split: str, index: int) -> tuple[MappedBlock, int]:
        """Finds the shard of a document and its row there; maps the shard if it is not mapped."""
        first = self._first_document[split]
        number = int(np.searchsorted(first, index, side="right")) - 1
        name = self._shards[split][number]["file"]
        mapped = self._mapped.get(name)
        if mapped is None:
            try:
                mapped = MappedBlock(self.folder / name)
            except (OSError, pa.ArrowException) as error:
                place = self.folder / name
                raise CheckpointError(
                    f"{place}: shard cannot be read ({error}); remove the folder and build the corpus again"
                ) from None
            # 最早映射的先放手；已交出去的视图仍各自持有映射，不会失效
            if len(self._mapped) >= _MOST_MAPPED:
                del self._mapped[next(iter(self._mapped))]
            self._mapped[name] = mapped
        return mapped, index - int(first[number])
