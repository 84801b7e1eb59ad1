"""Making an index of a folder, and bringing it up to date.

- a file counts as changed when its bytes do; passages of the others are taken over with their vectors
- vectors are kept under a digest of what the model read: text that moved, or that stands in two files, is embedded once
- vectors are written in blocks as they are made, so that a kill costs the last block; everything else is made anew in a
  folder of its own, which replaces the old one in one step (`stored`)
"""

from __future__ import annotations

import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.data.reading.documents import PASSING, without_unreadable
from bertsmith.data.reading.sources import left_out, text_endings
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.files import atomic_path, claim_folder, make_folder, require_utf8_names, working_in, write_json
from bertsmith.hub import noted_start
from bertsmith.inference.embed import Embed, Pooling, write_npy
from bertsmith.inference.engine import PART, Precision
from bertsmith.inference.task_file import TaskFile, read_settings
from bertsmith.kernels.layers import on_device
from bertsmith.retrieval.dense import EXACT_ROWS, PRODUCTS, USUAL_WEIGHT, write_codes
from bertsmith.retrieval.lexical import LexicalSearch, folded, simplified
from bertsmith.retrieval.passages import Document, PassageCutter, digests_of, read_document
from bertsmith.retrieval.stored import (
    CLAIM,
    CODES,
    CURRENT,
    FORMAT,
    LEXICAL,
    PASSAGES,
    READING,
    VECTORS,
    Current,
    IndexedDocument,
    StoredIndex,
    checksum_of,
    fingerprint_of,
    read_passages,
    scaled,
)
from bertsmith.settings import Checked, Result, built, divided, option

if TYPE_CHECKING:
    import pyarrow as pa

Progress = Callable[[int, int], None]
_BLOCKS = ".vectors"
_LONGEST_PASSAGE = 256


@dataclass(frozen=True)
class IndexSettings(Checked):
    """How documents become passages and vectors; `bertsmith index` has an option for each setting.

    Pooling, precision and `batch_tokens` are as in `Embed` and `InferenceConfig`.
    """

    passage_tokens: int = option(
        0, min=0, shown_default="what the model reads, at most 256", help="Maximum tokens of a passage."
    )
    overlap: int | None = option(
        None, min=0, shown_default="an eighth of a passage", help="Tokens that neighbouring passages share."
    )
    pooling: Pooling | None = option(None, help="Pooling of the token states; default: that of the folder, or mean.")
    query_prompt: str | None = option(
        None, shown_default="as its folder says", help="Prompt before a query, such as 'query: '."
    )
    passage_prompt: str | None = option(
        None, shown_default="as its folder says", help="Prompt before a passage, such as 'passage: '."
    )
    encoding: str = option("auto", help="Encoding: auto, or a codec such as gb18030.")
    simplified: bool = option(
        False, help="Search by words finds traditional Chinese by simplified characters, and the other way round."
    )
    weight: float | None = option(
        None,
        min=0.0,
        max=1.0,
        shown_default=f"that of the index; at first what solve chose for the model, or {USUAL_WEIGHT}",
        help="Weight of the vectors in hybrid searches.",
    )
    precision: Precision | None = option(
        None, help="auto: measure, take the fastest accurate one; default: bf16 where native."
    )
    batch_tokens: int = option(0, min=0, help="Tokens per forward pass; 0: chosen for the device.")


@dataclass(frozen=True)
class Indexed:
    """What an update did."""

    documents: int
    passages: int
    embedded: int
    added: int
    changed: int
    deleted: int


@dataclass(frozen=True)
class _SolvedFile(TaskFile):
    """What `bertsmith solve` wrote of searches into a model's `task.json`: the weight of its vectors beside words."""

    weight: float = option(USUAL_WEIGHT, min=0.0, max=1.0)


def build_index(
    folder: str | Path,
    model: str | Path,
    out: str | Path,
    settings: IndexSettings | None = None,
    *,
    on_progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Indexed:
    """Makes an index of a folder, or brings it up to date; resumes where an earlier call was broken off."""
    settings, out = settings or IndexSettings(), Path(out)
    require_utf8_names(folder, out)
    digests = dict(digests_of(folder))
    noted = noted_start(folder=model, claim=out / CLAIM)
    fingerprint = fingerprint_of(model)
    embed = Embed.load(model, precision=settings.precision, batch_tokens=settings.batch_tokens)
    query_prompt, passage_prompt = settings.query_prompt, settings.passage_prompt
    before_query = embed.prompt_text(embed.prompt_for("query")) if query_prompt is None else query_prompt
    before_passage = embed.prompt_text(embed.prompt_for("passage")) if passage_prompt is None else passage_prompt
    settings = replace(settings, query_prompt=before_query, passage_prompt=before_passage)
    size = settings.passage_tokens or min(embed.max_length, _LONGEST_PASSAGE)
    if size > embed.max_length:
        raise ConfigError(f"--passage-tokens {size}: the model reads {embed.max_length} tokens; take fewer")
    overlap = size // 8 if settings.overlap is None else settings.overlap
    cutter = PassageCutter(embed.tokenizer, size, overlap, before_passage)
    # 精度、批的大小与权重不改变向量的含义：换一台机器、换一个权重也能接着更新
    free = ("precision", "batch_tokens", "weight", "simplified")
    decisive = {name: value for name, value in asdict(settings).items() if name not in free}
    # 随包带来的模型和 Hub 上的一样，只有名字
    place = str(Path(model).resolve()) if Path(model).exists() else str(model)
    about: dict[str, Any] = {
        "format": FORMAT,
        "folder": str(Path(folder).resolve()),
        "model": place,
        "fingerprint": fingerprint,
    }
    # 余弦与原字不写明：0.2 的索引里没有这两项
    if embed.similarity != "cosine":
        about["similarity"] = embed.similarity
    if settings.simplified:
        # 缺库要在算向量之前说
        simplified("")
        about["simplified"] = True
    with working_in(out, _BLOCKS):
        claim_folder(out, CLAIM, {**about, **decisive, **noted})
        old = StoredIndex.open(out) if (out / CURRENT).is_file() else None
        before = {document.name: document.digest for document in old.current.documents} if old else {}
        known = before if old and old.current.reading == READING else {}
        new = {Path(folder) / name: name for name, digest in digests.items() if known.get(name) != digest}
        beside_others = len(new) < len(digests)
        _, faults, missing = without_unreadable(list(new), settings.encoding, beside_others=beside_others)
        if on_note is not None:
            # 读表的库很大，服务器只要打开索引，用不着
            from bertsmith.data.reading.opening import opening_lines

            files = [path for path in map(Path(folder).joinpath, digests) if str(path) not in faults]
            for line in opening_lines([folder], files, settings.encoding, "file"):
                on_note(line)
        if new and (note := left_out([folder], text_endings(), faults, missing)):
            warnings.warn(note, stacklevel=2)
        for path, fault in faults.items():
            # 缺库、超时、内存不够：不记下这个文件，下一次再试，而不是当作没有变
            if fault.startswith(PASSING):
                del digests[new[Path(path)]]
        report = Indexed(
            added=len(digests.keys() - before.keys()),
            changed=sum(before.get(name, digest) != digest for name, digest in digests.items()),
            deleted=len(before.keys() - digests.keys()),
            documents=_with_text(old.current) if old else 0,
            passages=old.current.passages if old else 0,
            embedded=0,
        )
        usual = old.current.weight if old else read_settings(model, _SolvedFile, "embed").weight
        weight = usual if settings.weight is None else settings.weight
        if old and old.current.reading == READING and not report.added + report.changed + report.deleted:
            if weight != old.current.weight:
                write_json(out / CURRENT, replace(old.current, weight=weight), checked=True)
            _tidy(out, old.current.folder)
            return report
        update = _Update(Path(folder), out, settings, embed, cutter, old, frozenset(faults))
        current, embedded = update.run(digests, on_progress)
        # 申请文件里的提示词决定查询的向量：它和这一代的文件一样要对得上
        checksums = {**current.checksums, f"../{CLAIM}": checksum_of(out / CLAIM)}
        write_json(out / CURRENT, replace(current, checksums=checksums, weight=weight), checked=True)
        # 新的一代已经生效，旧的和用过的向量才能删
        _tidy(out, current.folder)
    # 读不了的文件不算新添的
    added = sum(document.passages > 0 and document.name not in before for document in current.documents)
    return replace(report, added=added, documents=_with_text(current), passages=current.passages, embedded=embedded)


def _with_text(current: Current) -> int:
    return sum(document.passages > 0 for document in current.documents)


def _tidy(out: Path, generation: str) -> None:
    """Removes what no longer counts: other generations, and blocks of vectors."""
    for path in out.iterdir():
        if path.is_dir() and path.name != generation and (path.name.startswith("generation-") or path.name == _BLOCKS):
            shutil.rmtree(path)


@dataclass(frozen=True)
class _Update:
    folder: Path
    out: Path
    settings: IndexSettings
    embed: Embed
    cutter: PassageCutter
    old: StoredIndex | None
    unreadable: frozenset[str]

    def run(self, digests: dict[str, str], on_progress: Progress | None) -> tuple[Current, int]:
        """Writes the next generation; returns what it holds and how many passages were embedded."""
        number = self.old.current.generation + 1 if self.old else 1
        target = self.out / Current(number, 0, "", (), {}).folder
        if target.exists():
            # 改名之后、生效之前被杀：那一代没有人在读
            shutil.rmtree(target)
        with atomic_path(target) as new:
            new.mkdir()
            documents = self._write_passages(new / PASSAGES, digests)
            table = read_passages(new / PASSAGES)
            if not table.num_rows:
                raise InputError(f"{self.folder}: its files hold no word; there is nothing to index")
            width, embedded = self._write_vectors(new / VECTORS, table, on_progress)
            fold = simplified if self.settings.simplified else folded
            LexicalSearch.build(_searched_texts(table), fold).save(new / LEXICAL)
            if table.num_rows > EXACT_ROWS and self.embed.similarity in PRODUCTS:
                write_codes(np.load(new / VECTORS, mmap_mode="r"), new / CODES)
            files = sorted(path for path in new.rglob("*") if path.is_file())
            checksums = {path.relative_to(new).as_posix(): checksum_of(path) for path in files}
        precision = str(getattr(self.embed.engine, "precision", ""))
        return Current(number, width, precision, tuple(documents), checksums, reading=READING), embedded

    def _write_passages(self, path: Path, digests: dict[str, str]) -> list[IndexedDocument]:
        """Writes the passages of all documents; those of unchanged ones are copied."""
        import pyarrow as pa

        text = {"heading": pa.string(), "text": pa.string()}
        # 列名 line 是 0.2 定的：PDF 的这一列是页
        columns = {"start": pa.int64(), "end": pa.int64(), "line": pa.int32(), **text}
        schema = pa.schema({"document": pa.int32(), **columns, "digest": pa.binary(16)})
        old = self.old if self.old and self.old.current.reading == READING else None
        before = enumerate(old.current.documents if old else ())
        kept = {one.name: number for number, one in before if digests.get(one.name) == one.digest}
        documents = []
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for number, (name, digest) in enumerate(digests.items()):
                if old and name in kept:
                    first, last = old.first_rows[kept[name] : kept[name] + 2].tolist()
                    found = old.passages.slice(first, last - first)
                    column = pa.array([number] * found.num_rows, pa.int32())
                    writer.write_table(found.set_column(0, "document", column))
                    documents.append(old.current.documents[kept[name]])
                    continue
                try:
                    document = read_document(self.folder, name, self.settings.encoding)
                except InputError as error:
                    if not (self.folder / name).exists():
                        raise
                    # 一个二进制文件不该叫停全部：记作没有段落的文档，下次不变就不再提它
                    if str(self.folder / name) not in self.unreadable:
                        warnings.warn(f"left out: {error}", stacklevel=2)
                    document = Document(name, "", (), None, {})
                fields = {"line": "place"}
                rows = [
                    {"document": number, "digest": passage.digest}
                    | {column: getattr(passage, fields.get(column, column)) for column in columns}
                    for passage in self.cutter.cut(document)
                ]
                writer.write_table(pa.Table.from_pylist(rows, schema))
                documents.append(IndexedDocument(name, digest, len(rows), document.metadata))
        return documents

    def _write_vectors(self, path: Path, table: pa.Table, on_progress: Progress | None) -> tuple[int, int]:
        """Writes a vector for every passage; returns their width, and how many had to be computed."""
        digests = table["digest"].to_pylist()
        # 块按申请分开放：没做完的目录被另一个申请接手时，两个模型的向量不会混在一起
        known = _KnownVectors(self.old, self.out / _BLOCKS / f"{checksum_of(self.out / CLAIM):08x}")
        missing: dict[bytes, int] = {}
        for row, digest in enumerate(digests):
            # 按摘要去重：同一段文字出现多少次，模型都只读一次
            if digest not in known.rows:
                missing.setdefault(digest, row)
        # 只数这一次要算的：原先就有的不算进度
        done = 0
        if on_progress and missing:
            on_progress(done, len(missing))
        rows = iter(missing.values())
        while block := list(islice(rows, PART)):
            some = table.take(block)
            texts = map(self.cutter.read, some["heading"].to_pylist(), some["text"].to_pylist())
            normalize = scaled(self.embed, self.embed.similarity)
            vectors = self.embed(list(texts), pooling=self.settings.pooling, prompt="", normalize=normalize)
            if not np.isfinite(vectors).all():
                raise CheckpointError("the model gives vectors that are no numbers (NaN); it is damaged or untrained")
            known.add([digests[row] for row in block], vectors)
            done += len(block)
            if on_progress:
                on_progress(done, len(missing))
        width = self.embed.width(self.settings.pooling)
        with path.open("wb") as handle:
            found = (digests[start : start + PART] for start in range(0, len(digests), PART))
            blocks = (np.stack([known.rows[digest] for digest in some]) for some in found)
            write_npy(handle, blocks, len(digests), width)
        return width, len(missing)


class _KnownVectors:
    """Vectors of an index and of blocks of an update: `rows`, by the digest of what the model read."""

    def __init__(self, old: StoredIndex | None, folder: Path) -> None:
        self._folder, self._blocks = make_folder(folder), 0
        self.rows: dict[bytes, NDArray[np.float32]] = {}
        if old:
            self.rows.update(zip(old.passages["digest"].to_pylist(), np.asarray(old.vectors), strict=True))
        for path in sorted(folder.glob("*.npz")):
            try:
                with np.load(path, allow_pickle=False) as block:
                    self.rows.update(zip(map(bytes, block["digests"]), block["vectors"], strict=True))
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
                raise CheckpointError(f"{path}: damaged ({error}); remove it and run the same command again") from None
            self._blocks = int(path.stem) + 1

    def add(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        path = self._folder / f"{self._blocks:07d}.npz"
        with atomic_path(path) as temporary, temporary.open("wb") as handle:
            rows = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), -1)
            np.savez(handle, digests=rows, vectors=vectors)
        self._blocks += 1
        self.rows.update(zip(digests, vectors, strict=True))


def _searched_texts(table: pa.Table) -> Iterator[str]:
    """Yields what a passage is found by: its headings and its text."""
    for batch in table.select(["heading", "text"]).to_batches():
        yield from map("{}\n{}".format, batch["heading"].to_pylist(), batch["text"].to_pylist())


def index(
    folder: str | Path,
    model: str | Path,
    out: str | Path,
    *,
    device: torch.device | str | None = None,
    on_progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
    **settings: Any,
) -> Result[Indexed]:
    """Makes a folder of text searchable, or brings its index up to date: what is unchanged is not embedded again.

    Examples:
        >>> import bertsmith
        >>> bertsmith.index("texts", "run/model", "texts.index").metrics["documents"] > 0
        True
        >>> hits = bertsmith.load_index("texts.index").search("who sang?", k=1)
        >>> len(hits)
        1

    Args:
        folder: holds text files and documents, such as `.txt`, `.md`, `.html` and `.pdf`, in any subfolders.
        model: a model folder, or `org/name` of the Hub.
        device: None takes the GPU where there is one.
        on_progress: told how many passages were embedded, and how many there are to embed.
        on_note: told what was understood of the folder: kinds of files, size and encodings.
        **settings: the options of `bertsmith index`, with underscores, such as `passage_tokens`.

    Returns:
        `metrics`: documents and passages there are now, passages that had to be embedded, and files that were added,
        changed and deleted; `details`: the same as an object.

    Raises:
        ConfigError: a setting is unknown or impossible, or a library is not installed.
        InputError: the folder is missing or holds no text, or a file is unreadable or vanished meanwhile.
        CheckpointError: the model folder is unusable, or the index is damaged.
        RunFolderError: `out` belongs to another folder, model or setting, is in use, or cannot be written.
    """
    (chosen,) = divided(settings, IndexSettings, command="index")
    # 检索的结果要指出文件和行：内存里的行没有这样的地方
    if not isinstance(folder, (str, Path)):
        kind = type(folder).__name__
        raise InputError(f"folder: is a {kind}; hits name file and line, so write each text to a .txt file of a folder")
    with on_device(device):
        found = build_index(folder, model, out, built(IndexSettings, chosen), on_progress=on_progress, on_note=on_note)
    return Result(Path(out), asdict(found), None, None, found)
