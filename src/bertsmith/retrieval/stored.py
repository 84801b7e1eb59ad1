"""An index on disk: what lies in its folder, and how it is opened.

    search-index.json      of which folder, by which model and settings: written once
    current.json           the generation that counts, its documents, a checksum for each of its files
    generation-00003/      passages.arrow, vectors.npy, lexical/, and codes.faiss where there are many vectors
    .vectors/              vectors of an update that was broken off, in a folder for its request

Renaming `current.json` into place is the one moment at which an update happens: whoever opens before it has the old
generation whole, for as long as it is open, whoever opens after it the new one.

`export_passages` writes an index as one Parquet file, which vector databases and FAISS read. A row is a passage: `id`,
`file`, `start`, `end`, `line`, `page`, `heading`, `text`, `metadata` (JSON) and `vector`, a list of fixed size,
float32, of unit length where vectors are compared so. The file's own metadata names the model, its prompts and pooling
(null: as the model's folder says) and the similarity, since queries have to become vectors in the same way and be
compared so. `examples/pgvector_search.py` loads such a file into PostgreSQL.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from bertsmith.data.reading.document_kinds import Metadata
from bertsmith.errors import BertsmithError, CheckpointError
from bertsmith.files import atomic_path, chunks_of, read_json
from bertsmith.hub import hub_name, model_folder, pin
from bertsmith.inference.embed import Embed, Pooling, SimilarityFunction
from bertsmith.model.folder import fingerprint_weights
from bertsmith.retrieval.dense import USUAL_WEIGHT
from bertsmith.retrieval.passages import has_pages
from bertsmith.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import pyarrow as pa

OpenedT = TypeVar("OpenedT")

FORMAT = "0.3"
"""The first version of bertsmith that wrote such folders."""
READING = 2
"""Of words and of front matter; an index that was read in an older way is read anew by its next update."""
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

    `fingerprint` is of what decides the vectors: weights, tokenizer, pooling, length, width. Settings are those of
    `IndexSettings`.
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
    similarity: SimilarityFunction = "cosine"
    simplified: bool = False


@dataclass(frozen=True)
class IndexedDocument:
    """A document of an index, and how many passages it has; these lie one behind the other."""

    name: str
    digest: str
    passages: int
    metadata: Metadata


@dataclass(frozen=True)
class Current:
    """What an index holds now.

    Attributes:
        generation: counted from 1.
        precision: in which the model computed the newest vectors.
        documents: in the order of their passages.
        checksums: CRC-32C of every file of the generation, by its path in it, and of the file beside it that says what
            the index is of.
        weight: of the vectors in a hybrid search, in [0, 1].
        reading: how words and front matter were read: `READING`, or 1 as in 0.2.
    """

    generation: int
    width: int
    precision: str
    documents: tuple[IndexedDocument, ...]
    checksums: dict[str, int]
    weight: float = USUAL_WEIGHT
    reading: int = 1

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
    """An index that was opened: its files are what they were when they were written, and stay at hand.

    `passages`, [N] rows, and `vectors`, [N, width], are mapped; vectors have unit length where they are compared so.
    """

    folder: Path
    claim: Claim
    current: Current
    passages: pa.Table
    vectors: NDArray[np.float32]

    @classmethod
    def open(cls, folder: str | Path) -> StoredIndex:
        """Opens an index and reads every byte of it once."""
        return open_index(folder, lambda stored: stored)

    @classmethod
    def of_generation(cls, folder: Path, claim: Claim, current: Current) -> StoredIndex:
        """Opens the files of a generation; raises whatever the libraries that read them raise."""
        place = folder / current.folder
        _verify(place, current)
        # 映射住的文件随后被别的进程删掉，内容也还在
        vectors = np.load(place / VECTORS, mmap_mode="r", allow_pickle=False)
        passages = read_passages(place / PASSAGES)
        counts = [document.passages for document in current.documents]
        # 校验和只说文件没有坏；陌生人的文件可以个个完好，合起来却对不上
        if vectors.dtype != np.float32 or vectors.shape != (len(passages), current.width):
            raise ValueError("vectors and passages do not belong together")
        if min(counts, default=0) < 0 or sum(counts) != len(passages):
            raise ValueError("documents and passages do not belong together")
        return cls(folder, claim, current, passages, vectors)

    @property
    def path(self) -> Path:
        """The folder of the generation."""
        return self.folder / self.current.folder

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """[documents + 1] the first row of every document, and the number of rows."""
        return np.cumsum([0, *(document.passages for document in self.current.documents)])

    def load_model(self, model: str | Path | None = None, **how: Any) -> Embed:
        """Loads the model that made the vectors, from where it lay then or lies now; `how` is for `load_pipeline`."""
        start = self.claim.start
        if model is None and start is not None:
            pin(start.name, start.commit)
        name = str(model or self.claim.model)
        if hub_name(name) is None and not model_folder(name).is_dir():
            raise CheckpointError(f"{self.folder}: its model {name} is gone; say with --model where it lies now")
        found = fingerprint_of(name)
        if found != self.claim.fingerprint:
            raise CheckpointError(
                f"{self.folder}: was made by another model than {name} (weights, tokenizer or pooling differ); name"
                " that one with --model, or make another index"
            )
        return Embed.load(name, **how)


def _verify(place: Path, current: Current) -> None:
    """Compares every file of a generation with its checksum."""
    for name, expected in current.checksums.items():
        path = place / name
        # 名字可能是陌生人写的：管道和设备永远读不完
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: it is no plain file; {_ADVICE}")
        try:
            found = checksum_of(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
        if found != expected:
            raise CheckpointError(f"{path}: damaged (its checksum differs); {_ADVICE}")


def open_index(folder: str | Path, read: Callable[[StoredIndex], OpenedT]) -> OpenedT:
    """Opens an index, and what `read` opens of it; once more where an update replaces it meanwhile."""
    folder = Path(folder)
    claim = read_claim(folder)
    if not (folder / CURRENT).is_file():
        raise CheckpointError(f"{folder}: the index is not finished; run the same bertsmith index again")
    before: Current | None = None
    while True:
        current = read_json(folder / CURRENT, Current, CheckpointError, _ADVICE)
        try:
            return read(StoredIndex.of_generation(folder, claim, current))
        except FileNotFoundError as error:
            # 同一代里缺文件才是损坏；换了一代，就读新的一代
            if current == before:
                raise CheckpointError(f"{error.filename}: is missing; {_ADVICE}") from None
            before = current
        except (ValueError, OSError, KeyError, TypeError, RuntimeError) as error:
            # 读它们的各个库各有各的错误；嵌套太深是 RuntimeError 的一种
            raise CheckpointError(f"{folder / current.folder}: damaged ({error}); {_ADVICE}") from None


def read_passages(path: Path) -> pa.Table:
    """Returns passages, mapped from their file."""
    # 服务器不搜索时不加载 pyarrow：启动时间大半是导入
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def read_claim(folder: Path) -> Claim:
    """Reads what an index is of."""
    path = folder / CLAIM
    if not path.is_file():
        # 名字指的可能是文本的文件夹：索引不能建在里面
        is_free = not folder.is_dir() or not any(folder.iterdir())
        made = f"FOLDER --model MODEL --out {folder}" if is_free else f"{folder} --model MODEL --out {folder}.index"
        raise CheckpointError(f"{folder}: holds no index; make one with: bertsmith index {made}")
    found: dict[str, Any] = read_json(path, dict, CheckpointError, _ADVICE)
    if found.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder}: an index of format {found.get('format')}, this version reads {FORMAT}; make it again"
        )
    return read_json(path, Claim, CheckpointError, _ADVICE)


def fingerprint_of(model: str | Path) -> str:
    """Returns a digest of everything in a model folder that decides its vectors."""
    folder = model_folder(model)
    try:
        told = Embed.settings_in(folder)
        # 不截短向量的模型没有最后一项：已有的索引仍然认得
        dims = (told.dims,) if told.dims else ()
        parts = (fingerprint_weights(folder), load_tokenizer(folder).fingerprint, told.pooling, told.max_length, *dims)
    except BertsmithError as error:
        raise CheckpointError(str(error)) from None
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def scaled(embed: Embed, similarity: SimilarityFunction) -> bool:
    """Tells whether vectors are scaled to length 1 before they are compared so."""
    return embed.unit_length or similarity == "cosine"


def checksum_of(path: Path) -> int:
    """Returns the CRC-32C of a file."""
    checksum = 0
    for chunk in chunks_of(path):
        checksum = google_crc32c.extend(checksum, chunk)
    return checksum


_ROWS = 8192


def export_passages(index: str | Path, out: str | Path) -> int:
    """Writes an index as Parquet; returns how many passages it has.

    Raises:
        CheckpointError: the folder holds no index, or a damaged one.
        OSError: the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    stored = StoredIndex.open(index)
    claim, documents = stored.claim, stored.current.documents
    files = pa.array([document.name for document in documents])
    paged = pa.array([has_pages(document.name) for document in documents])
    fields = pa.array([json.dumps(document.metadata, ensure_ascii=False) for document in documents])
    told = ("model", "query_prompt", "passage_prompt", "pooling", "similarity")
    model = {name: getattr(claim, name) for name in told}
    width, writer, nowhere = stored.vectors.shape[1], None, pa.scalar(0, pa.int32())
    with atomic_path(Path(out)) as unfinished:
        for first in range(0, len(stored.vectors), _ROWS):
            passages = stored.passages.slice(first, _ROWS)
            vectors = np.ascontiguousarray(stored.vectors[first : first + _ROWS])
            number = passages["document"]
            columns = {
                "id": pa.array(range(first, first + len(vectors)), pa.int64()),
                "file": files.take(number.combine_chunks()),
                **{name: passages[name] for name in ("start", "end")},
                "line": pc.if_else(on_page := paged.take(number.combine_chunks()), nowhere, passages["line"]),
                "page": pc.if_else(on_page, passages["line"], nowhere),
                **{name: passages[name] for name in ("heading", "text")},
                "metadata": fields.take(number.combine_chunks()),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width),
            }
            table = pa.table(columns).replace_schema_metadata({"bertsmith": json.dumps(model, ensure_ascii=False)})
            # 一次一组行：文件再大，内存也不跟着长
            writer = writer or pq.ParquetWriter(unfinished, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
    return len(stored.vectors)
