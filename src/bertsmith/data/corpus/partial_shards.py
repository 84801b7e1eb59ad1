"""What one chunk of the input becomes: partial shards, in the folder of an unfinished corpus.

- a chunk becomes a folder that appears by renaming, whole or not at all: a killed build keeps what it has
- its content depends on the chunk's documents and the options alone, not on who made it, nor when
- a chunk has a partial shard for about every `shard_tokens` ids: an Arrow file for each split, and beside them the
  arrays that the commit needs of every document and sentence, in input order
- documents are the same if their texts are, not if their ids are: a word that the vocabulary cannot spell counts as the
  word that it is, though all such words have the id of `[UNK]`
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.duplicates import signatures_of
from bertsmith.data.corpus.manifest import SPLITS, checksum_of, fault_of
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.data.corpus.shards import MappedDocuments, TokenizedDocuments, write_documents
from bertsmith.data.corpus.statistics import ShardStatistics
from bertsmith.data.corpus.words import encode_with_words
from bertsmith.data.reading.text import Document
from bertsmith.errors import RunFolderError
from bertsmith.files import atomic_path, read_json, write_json
from bertsmith.tokenizer import FlatIds, Tokenizer
from bertsmith.tokenizer.encoding import collector_paused
from bertsmith.tokenizer.kinds import SPECIAL_WORDS

DROPPED = len(SPLITS)
"""Where a document goes that goes to no split."""
_GROUP_SENTENCES = 4096
_CHUNK = "chunk.json"


@dataclass(frozen=True)
class ShardRecord:
    """What is noted of an Arrow file: its size in bytes, its checksum, and what it holds."""

    bytes: int
    checksum: str
    statistics: ShardStatistics


@dataclass(frozen=True)
class ChunkRecord:
    """`chunk.json`: numbers of ids and of rows without text, the shards by split, the checksums of their arrays."""

    tokens: int
    partial_shards: tuple[dict[str, ShardRecord], ...]
    arrays: tuple[str, ...]
    empty_rows: int


def write_partial_shards(
    path: Path, documents: Iterable[Document], tokenizer: Tokenizer, options: CorpusOptions, empty: Counter[str]
) -> int:
    """Turns the documents of a chunk into its folder, made in one step, and returns the number of ids.

    `empty` counts rows without text while the documents are read.
    """
    tokens = 0
    records: list[dict[str, ShardRecord]] = []
    # 千万个字符串和元组里没有循环引用：垃圾回收器一遍遍地走，只是白费时间
    with collector_paused(), atomic_path(path) as temporary:
        temporary.mkdir()
        for group in _tokenized(documents, tokenizer, options):
            tokens += len(group.documents.tokens)
            records.append(_write(temporary, len(records), group, tokenizer, options))
        arrays = tuple(checksum_of(temporary / _arrays_file(number)) for number in range(len(records)))
        write_json(temporary / _CHUNK, ChunkRecord(tokens, tuple(records), arrays, empty.total()), checked=True)
    return tokens


def read_record(path: Path) -> ChunkRecord:
    """Reads what is noted of a finished chunk."""
    return read_json(path / _CHUNK, ChunkRecord, RunFolderError, _advice(path))


def verify_partial_shards(path: Path) -> None:
    """Makes sure that the files of a chunk that was finished some time ago are what was written."""
    record = read_record(path)
    checksums = {_arrays_file(number): checksum for number, checksum in enumerate(record.arrays)}
    for number, shards in enumerate(record.partial_shards):
        checksums |= {_shard_file(number, name): shard.checksum for name, shard in shards.items()}
    for name, checksum in checksums.items():
        if fault := fault_of(path / name, checksum):
            raise RunFolderError(f"{path / name}: damaged ({fault}); {_advice(path)}")


@dataclass(frozen=True)
class PartialShard:
    """One partial shard of a chunk, as it lies on the disk."""

    folder: Path
    number: int
    records: dict[str, ShardRecord]

    def load(self, name: str) -> Any:
        """Returns an array of those that `_write` lays down, such as the `hashes` of the documents."""
        with np.load(self.folder / _arrays_file(self.number), allow_pickle=False) as arrays:
            return arrays[name]

    def shards(
        self, natural: NDArray[np.int8], splits: NDArray[np.int8], lines: NDArray[np.bool_], tokenizer: Tokenizer
    ) -> Iterator[tuple[str, Path, ShardRecord, NDArray[np.int64]]]:
        """Gives the shards that hold every document where it belongs; writes new ones where that has changed.

        Of each its split, its file, what is noted of it, and [V] int64, how often each id occurs in it.

        Args:
            natural: [D] the split of every document by the number of its text, in which it lies now.
            splits: [D] index into `SPLITS` of every document, or `DROPPED`.
            lines: [S] the sentences that stay.
        """
        # 没有文档要搬动或去掉：已写好的分片原样可用，省去整份重写
        if np.array_equal(natural, splits) and lines.all():
            for name, record in self.records.items():
                yield name, self._path(name), record, self.load(f"{name}_pieces")
            return
        mapped = [MappedDocuments(self._path(name)).whole() if name in self.records else None for name in SPLITS]
        origins = np.repeat(natural, self.load("sentences"))
        for target, name in enumerate(SPLITS):
            chosen = []
            for origin in (target, 1 - target):
                wanted, documents = splits[natural == origin] == target, mapped[origin]
                if documents is not None and wanted.any():
                    chosen.append(documents.select(wanted, lines[origins == origin]))
            if chosen:
                path = self._path(f"{name}.kept")
                yield (name, path, *_write_shard(path, TokenizedDocuments.join(chosen), tokenizer))

    def _path(self, name: str) -> Path:
        return self.folder / _shard_file(self.number, name)


def splits_by_text(texts: NDArray[np.uint64], heldout_share: float) -> NDArray[np.int8]:
    """Divides documents into training (0) and held-out (1) by the number of their text, so by its content alone."""
    # 号码由内容而来：划分与文件顺序、进程数无关；同一本书的各段、重复的文档必在同一边
    return (texts.astype(np.float64) / 2**64 < heldout_share).astype(np.int8)


class _Encoded(NamedTuple):
    """`content`: ids with a number per unknown word; `written` [3]: characters, those in such words, special tokens."""

    documents: TokenizedDocuments
    content: TokenizedDocuments
    written: NDArray[np.int64]


def _tokenized(documents: Iterable[Document], tokenizer: Tokenizer, options: CorpusOptions) -> Iterator[_Encoded]:
    waiting: list[_Encoded] = []
    tokens = 0
    for group in _groups(documents, options.shard_tokens):
        encoded = _encode(group, tokenizer, words=options.words is not None)
        waiting.append(encoded)
        tokens += len(encoded.documents.tokens)
        if tokens >= options.shard_tokens:
            yield _joined(waiting)
            waiting, tokens = [], 0
    if tokens:
        yield _joined(waiting)


def _joined(groups: Sequence[_Encoded]) -> _Encoded:
    documents, content, written = zip(*groups, strict=True)
    return _Encoded(TokenizedDocuments.join(documents), TokenizedDocuments.join(content), np.sum(written, axis=0))


def _encode(documents: Sequence[Document], tokenizer: Tokenizer, *, words: bool) -> _Encoded:
    # 一批文档的句子一次编码成一整块数组：不产生任何 Python 整数列表
    sentences = [sentence for document in documents for sentence in document.sentences]
    encoded, continuations = (
        encode_with_words(sentences, tokenizer) if words else (tokenizer.encode_flat(sentences), None)
    )
    content, unknown_characters = _with_unknown_words(sentences, encoded, tokenizer)
    lengths = np.diff(encoded.bounds)
    document_of = np.repeat(np.arange(len(documents)), [len(document.sentences) for document in documents])
    per_document = np.bincount(document_of[lengths > 0], minlength=len(documents))
    some = per_document > 0
    found = TokenizedDocuments(
        encoded.ids, lengths[lengths > 0], per_document[some], np.zeros(some.sum(), np.uint64), continuations
    )
    compared = replace(found, tokens=content)
    parts = itertools.compress((document.text for document in documents), some)
    texts = [own if text is None else text for text, own in zip(parts, compared.hashes().tolist(), strict=True)]
    special = sum(len(SPECIAL_WORDS.findall(sentence)) for sentence in sentences if "[" in sentence or "<" in sentence)
    written = np.array([sum(map(len, sentences)), unknown_characters, special], dtype=np.int64)
    return _Encoded(replace(found, texts=np.array(texts, dtype=np.uint64)), compared, written)


def _with_unknown_words(
    sentences: Sequence[str], encoded: FlatIds, tokenizer: Tokenizer
) -> tuple[NDArray[np.int32], int]:
    """Returns the ids with a negative number for each `[UNK]`, made of its word, and how many characters these have."""
    unknown = np.flatnonzero(encoded.ids == (-1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id))
    if not len(unknown):
        return encoded.ids, 0
    # 只有含 [UNK] 的句子才需要对回原文
    of = np.unique(np.searchsorted(encoded.bounds, unknown, side="right") - 1)
    chosen = [sentences[index] for index in of.tolist()]
    aligned = tokenizer.align_flat(chosen)
    sentence_of = np.repeat(np.arange(len(chosen)), np.diff(aligned.bounds))
    content, characters = encoded.ids.copy(), 0
    for place, at in zip(unknown.tolist(), np.flatnonzero(aligned.ids == tokenizer.unk_token_id).tolist(), strict=True):
        word = chosen[sentence_of[at]][aligned.starts[at] : aligned.ends[at]]
        characters += len(word)
        content[place] = ~(zlib.crc32((word.lower() if tokenizer.lowercase else word).encode("utf-8", "replace")) >> 1)
    return content, characters


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


def _write(
    folder: Path, number: int, encoded: _Encoded, tokenizer: Tokenizer, options: CorpusOptions
) -> dict[str, ShardRecord]:
    documents, content = encoded.documents, encoded.content
    arrays: dict[str, Any] = {
        "hashes": content.hashes(),
        "texts": documents.texts,
        "lengths": np.diff(documents.document_bounds()),
        "sentences": documents.document_lengths,
        "sentence_hashes": content.sentence_hashes(),
        "sentence_lengths": documents.sentence_lengths,
        "written": encoded.written,
    }
    if options.near_duplicates is not None:
        arrays["signatures"] = signatures_of(content)
    splits = splits_by_text(documents.texts, options.heldout_share)
    records = {}
    for split, name in enumerate(SPLITS):
        if (splits == split).any():
            path = folder / _shard_file(number, name)
            records[name], arrays[f"{name}_pieces"] = _write_shard(path, documents.select(splits == split), tokenizer)
    np.savez(folder / _arrays_file(number), **arrays)
    return records


def _write_shard(
    path: Path, documents: TokenizedDocuments, tokenizer: Tokenizer
) -> tuple[ShardRecord, NDArray[np.int64]]:
    checksum = write_documents(path, documents)
    record = ShardRecord(path.stat().st_size, checksum, ShardStatistics.of(documents, tokenizer))
    return record, np.bincount(documents.tokens, minlength=tokenizer.vocab_size)


def _shard_file(number: int, name: str) -> str:
    return f"{number:03d}.{name}.arrow"


def _arrays_file(number: int) -> str:
    return f"{number:03d}.npz"


def _advice(path: Path) -> str:
    return f"remove {path} and run the same command again"
