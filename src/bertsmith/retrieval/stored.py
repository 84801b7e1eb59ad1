"""An index on disk: what lies in its folder, and how it is opened.

    search-index.json      of which folder, by which model and settings: written once
    current.json           the generation that counts, its documents, a checksum for each of its files
    generation-00003/      passages.arrow, vectors.npy, lexical/, and codes.faiss where there are many vectors
    .vectors/              vectors of an update that was broken off

Renaming `current.json` into place is the one moment at which an update happens: whoever reads before it sees the old
generation whole, whoever reads after it the new one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError, CheckpointError
from bertsmith.hub import hub_name, model_folder, pin
from bertsmith.inference.embed import Embed, Pooling
from bertsmith.json_files import read_json
from bertsmith.model.folder import fingerprint_weights
from bertsmith.retrieval.ranking import USUAL_WEIGHT
from bertsmith.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "0.3"
"""The first version of bertsmith that wrote such folders."""
CLAIM, CURRENT = "search-index.json", "current.json"
PASSAGES, VECTORS, LEXICAL, CODES = "passages.arrow", "vectors.npy", "lexical", "codes.faiss"
_ADVICE = "remove the folder and run bertsmith index again"


@dataclass(frozen=True)
class Start:
    """The commit of a model of the Hub, as `hub.noted_start` notes it."""

    name: str
    commit: str


@dataclass(frozen=True)
class Claim:
    """What an index is of; every update must ask for the same.

    Attributes:
        format: of the folder.
        folder: of the documents.
        model: path or Hub name.
        fingerprint: of everything that decides the vectors: weights, tokenizer, pooling, length.
        passage_tokens: as in `IndexSettings`, like the rest.
        overlap: as there.
        pooling: as there.
        query_prompt: as there.
        passage_prompt: as there.
        encoding: as there.
        start: the commit of a model of the Hub.
    """

    format: str
    folder: str
    model: str
    fingerprint: str
    passage_tokens: int
    overlap: int | None
    pooling: Pooling | None
    query_prompt: str
    passage_prompt: str
    encoding: str
    start: Start | None = None


@dataclass(frozen=True)
class IndexedDocument:
    """A document of an index.

    Attributes:
        name: the path below the folder.
        digest: of its bytes.
        passages: how many it has; they lie one behind the other.
        metadata: of its front matter.
    """

    name: str
    digest: str
    passages: int
    metadata: dict[str, str]


@dataclass(frozen=True)
class Current:
    """What an index holds now.

    Attributes:
        generation: counted from 1.
        width: numbers in a vector.
        precision: in which the model computed the newest vectors.
        documents: in the order of their passages.
        checksums: CRC-32C of every file of the generation, by its path in it, and of the file beside it that says what
            the index is of.
        weight: of the vectors in a hybrid search, in [0, 1].
    """

    generation: int
    width: int
    precision: str
    documents: tuple[IndexedDocument, ...]
    checksums: dict[str, int]
    weight: float = USUAL_WEIGHT

    @property
    def folder(self) -> str:
        """The name of the folder of the generation."""
        return f"generation-{self.generation:05d}"

    @property
    def passages(self) -> int:
        """How many there are."""
        return sum(document.passages for document in self.documents)


@dataclass(frozen=True)
class StoredIndex:
    """An index that was opened: its files are what they were when they were written.

    Attributes:
        folder: of the index.
        claim: what it is of.
        current: what it holds.
    """

    folder: Path
    claim: Claim
    current: Current

    @classmethod
    def open(cls, folder: str | Path) -> StoredIndex:
        """Opens an index and reads every byte of it once.

        Raises:
            CheckpointError: there is none, another version wrote it, or a file is damaged.
        """
        folder = Path(folder)
        claim = read_claim(folder)
        if not (folder / CURRENT).is_file():
            raise CheckpointError(f"{folder}: the index is not finished; run the same bertsmith index again")
        index = cls(folder, claim, _read_current(folder))
        try:
            index.verify()
        except FileNotFoundError:
            # 正在读时另一个进程换上了新的一代：再读一次就是新的
            index = cls(folder, claim, _read_current(folder))
            try:
                index.verify()
            except FileNotFoundError as error:
                raise CheckpointError(f"{error.filename}: is missing; {_ADVICE}") from None
        return index

    def verify(self) -> None:
        """Compares every file with its checksum.

        Raises:
            CheckpointError: one differs, or cannot be read.
            FileNotFoundError: one is missing.
        """
        for name, expected in self.current.checksums.items():
            path = self.path / name
            try:
                found = checksum_of(path)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
            if found != expected:
                raise CheckpointError(f"{path}: damaged (its checksum differs); {_ADVICE}")

    @property
    def path(self) -> Path:
        """The folder of the generation."""
        return self.folder / self.current.folder

    @cached_property
    def passages(self) -> pa.Table:
        """[N] rows, mapped."""
        return read_passages(self.path / PASSAGES)

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        """[N, width] float32 of unit length, mapped."""
        vectors: NDArray[np.float32] = np.load(self.path / VECTORS, mmap_mode="r", allow_pickle=False)
        return vectors

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """[documents + 1] the first row of every document, and the number of rows."""
        return np.cumsum([0, *(document.passages for document in self.current.documents)])

    def load_model(self, model: str | Path | None = None, **how: Any) -> Embed:
        """Loads the model that made the vectors.

        Args:
            model: where it lies now; None for where it lay then.
            **how: as for `load_pipeline`.

        Raises:
            CheckpointError: it is gone, or another.
        """
        start = self.claim.start
        if model is None and start is not None:
            pin(start.name, start.commit)
        name = str(model or self.claim.model)
        if hub_name(name) is None and not Path(name).is_dir():
            raise CheckpointError(f"{self.folder}: its model {name} is gone; say with --model where it lies now")
        found = fingerprint_of(name)
        if found != self.claim.fingerprint:
            raise CheckpointError(
                f"{self.folder}: was made by another model than {name} (weights, tokenizer or pooling differ); name"
                " that one with --model, or make another index"
            )
        return Embed.load(name, **how)


def read_passages(path: Path) -> pa.Table:
    """Returns passages, mapped from their file."""
    # 服务器不搜索时不加载 pyarrow：启动时间大半是导入
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def read_claim(folder: Path) -> Claim:
    """Reads what an index is of.

    Raises:
        CheckpointError: the folder holds no index, a damaged one, or one of another version.
    """
    path = folder / CLAIM
    if not path.is_file():
        raise CheckpointError(f"{folder}: holds no index; make one with: bertsmith index FOLDER --out {folder}")
    found: dict[str, Any] = read_json(path, dict, CheckpointError, _ADVICE)
    if found.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder}: an index of format {found.get('format')}, this version reads {FORMAT}; make it again"
        )
    return read_json(path, Claim, CheckpointError, _ADVICE)


def _read_current(folder: Path) -> Current:
    return read_json(folder / CURRENT, Current, CheckpointError, _ADVICE)


def fingerprint_of(model: str | Path) -> str:
    """Returns a digest of everything in a model folder that decides its vectors.

    Raises:
        CheckpointError: it is no model folder for vectors.
    """
    folder = model_folder(model)
    try:
        told = Embed.settings_in(folder)
        parts = (fingerprint_weights(folder), load_tokenizer(folder).fingerprint, told.pooling, told.max_length)
    except BertsmithError as error:
        raise CheckpointError(str(error)) from None
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def checksum_of(path: Path) -> int:
    """Returns the CRC-32C of a file.

    Raises:
        OSError: it cannot be read.
    """
    checksum = 0
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 22):
            checksum = google_crc32c.extend(checksum, chunk)
    return checksum
