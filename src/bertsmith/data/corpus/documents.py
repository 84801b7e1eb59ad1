"""Documents as arrays, and the Arrow file that holds them.

Notable:
- documents are a few arrays, whatever their number: encoding, splitting, dropping and writing are array work
- on disk, one row a document: a list of sentences, each a list of ids, and the number of the text it is a part of;
  where words matter, another column says of each id whether it continues the word of the one before
- reading maps the file: what is handed out are views of it, and nothing is held in memory
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith.files import atomic_path


@dataclass(frozen=True)
class TokenizedDocuments:
    """D documents of S sentences of T ids, one behind the other.

    Attributes:
        tokens: [T] int32, the ids.
        sentence_lengths: [S] int64, ids per sentence, none 0.
        document_lengths: [D] int64, sentences per document, none 0.
        texts: [D] uint64, the number of the text that a document is a part of.
        continuations: [T] bool, whether an id continues the word of the one before; None where words were not asked
            for.
    """

    tokens: NDArray[np.int32]
    sentence_lengths: NDArray[np.int64]
    document_lengths: NDArray[np.int64]
    texts: NDArray[np.uint64]
    continuations: NDArray[np.bool_] | None = None

    @classmethod
    def join(cls, groups: Sequence[TokenizedDocuments]) -> TokenizedDocuments:
        """Puts groups of documents, at least one, one behind the other."""
        words = [group.continuations for group in groups if group.continuations is not None]
        return cls(
            np.concatenate([group.tokens for group in groups]),
            np.concatenate([group.sentence_lengths for group in groups]),
            np.concatenate([group.document_lengths for group in groups]),
            np.concatenate([group.texts for group in groups]),
            np.concatenate(words) if words else None,
        )

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

    def select(self, documents: NDArray[np.bool_]) -> TokenizedDocuments:
        """Returns the documents for which [D] `documents` is true, in order."""
        sentences = np.repeat(documents, self.document_lengths)
        tokens = np.repeat(sentences, self.sentence_lengths)
        return TokenizedDocuments(
            self.tokens[tokens],
            self.sentence_lengths[sentences],
            self.document_lengths[documents],
            self.texts[documents],
            None if self.continuations is None else self.continuations[tokens],
        )


def write_documents(path: Path, documents: TokenizedDocuments) -> str:
    """Writes documents as an Arrow file.

    Returns:
        Its checksum.

    Raises:
        RunFolderError: the disk is full or the place cannot be written.
    """
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


def checksum_of(path: Path) -> str:
    """Returns the checksum of a file as hex digits.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


class MappedDocuments:
    """An Arrow file of documents, its arrays mapped without a copy.

    Attributes:
        num_documents: D.
        has_words: there is a column of continuations.

    Raises:
        OSError, pyarrow.ArrowException: the file cannot be read, or is no such file.
    """

    def __init__(self, path: Path) -> None:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        column = batch.column("sentences")
        self.num_documents: int = len(column)
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
        bits = np.unpackbits(self._bits[first // 8 : -(-last // 8)], bitorder="little").view(np.bool_)
        bits = bits[first % 8 :]
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
        first, last = self._sentence_offsets[index], self._sentence_offsets[index + 1]
        offsets: list[int] = self._token_offsets[first : last + 1].tolist()
        return offsets


def _bounds(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds
