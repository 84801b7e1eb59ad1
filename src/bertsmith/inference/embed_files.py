"""Files of any size as one file of vectors: a row for every line, in bounded memory, resumable at any moment.

- the work is cut into parts of some thousand lines; each is in `OUT.parts` whole or not at all, so the same command
  resumes where an earlier one was killed
- a part depends on its lines and the request alone: the result is the same to the byte after any number of kills
- row = line, always: a blank line gives a row of zeros, which is like nothing
"""

from __future__ import annotations

import functools
import hashlib
import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.data.reading.lines import numbered_lines
from bertsmith.data.reading.opening import opening_lines
from bertsmith.data.reading.sources import Span, check_encoding, detect_encoding
from bertsmith.data.reading.text import require_plain_text
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.files import atomic_path, read_json, require_utf8_names, working_in, write_json
from bertsmith.hub import model_folder, noted_start
from bertsmith.inference.embed import Embed, Pooling, write_npy
from bertsmith.inference.engine import PART, Engine, InferenceConfig, Precision
from bertsmith.inference.graph_cache import TOLD, EngineKind
from bertsmith.parallel import Engine as ParallelEngine
from bertsmith.parallel import available_cores, parallel_map
from bertsmith.settings import Checked, option

ENDINGS = (".npy", ".parquet")
_REQUEST = "request.json"
_CHECKSUM_BYTES = 16

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class EmbedSettings(Checked):
    """What the vectors are; as in `Embed` and `InferenceConfig`, but that `auto` is chosen once for the whole work."""

    pooling: Pooling | None = option(None, help="Pooling of the token states; default: that of the folder, or mean.")
    normalize: bool = True
    dims: int | None = option(None, min=1, help="Keep only the first N numbers of each vector.")
    prompt: str | None = option(None, help="Name of a prompt in the folder to put before every line, such as query.")
    precision: Precision | None = option(
        None, help="auto: measure, take the fastest accurate one; default: bf16 where native."
    )
    engine: EngineKind = "torch"
    batch_tokens: int = option(0, min=0, help="Tokens per forward pass; 0: chosen for the device.")
    encoding: str = option("auto", help="Encoding: auto, or a codec such as iso-8859-1.")


@dataclass(frozen=True)
class Embedded:
    """What was written: rows, one a line of the files, of which `blank` are zeros; their width; the precision."""

    rows: int
    blank: int
    width: int
    precision: str


@dataclass(frozen=True)
class _File:
    """An input file: its number, what it was when the work began, and how many lines it has."""

    number: int
    path: str
    size: int
    modified: int
    encoding: str
    lines: int


@dataclass(frozen=True)
class _Plan:
    """What was asked for, as it is written down before the first part; `start` is as `hub.noted_start` notes it."""

    request: dict[str, Any]
    files: tuple[_File, ...]
    precision: str
    width: int
    start: dict[str, str] | None = None


def embed_files(
    files: Sequence[str | Path],
    folder: str | Path,
    out: str | Path,
    settings: EmbedSettings | None = None,
    *,
    engine: ParallelEngine = "local",
    workers: int | None = 1,
    on_progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Embedded:
    """Embeds every line of files; resumes where an earlier call with the same request was broken off.

    Args:
        files: text files, plain, gzip or zstd; the rows come in their order.
        out: `.npy` for an array [lines, width] float32, or `.parquet` for a column `vector` of fixed-size lists. What
            stands there is replaced at the end.
        engine: `local` or `ray`, see `parallel_map`.
        workers: processes, each with its share of the cores; one file is the work of one of them. None for all cores.
        on_progress: told how many lines are done and how many there are; at first of what an earlier call left.
        on_note: told what was understood of the files, as by `opening_lines`.
    """
    settings, out = settings or EmbedSettings(), Path(out)
    if out.suffix not in ENDINGS:
        raise ConfigError(f"--out {out}: the name must end in {' or '.join(ENDINGS)}")
    if out.is_dir():
        raise RunFolderError(f"--out {out}: is a folder; choose another name")
    require_utf8_names(*files, out)
    if not files:
        raise InputError("no file to embed")
    check_encoding(settings.encoding)
    for file in files:
        if not Path(file).is_file():
            raise InputError(f"{file}: no such file")
    require_plain_text([Path(file) for file in files], "a line each")
    InferenceConfig(precision=settings.precision, batch_tokens=settings.batch_tokens, engine=settings.engine)
    parts = out.with_name(out.name + ".parts")
    noted = noted_start(folder, parts / _REQUEST)
    folder = model_folder(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such model folder")
    # 这个文件夹有什么要警告的，在这里说一次
    Embed.settings_in(folder)
    count = workers
    if engine == "local":
        # 一个文件归一个进程：多出来的进程分走了核，却没有活
        count = min(available_cores() if workers is None else workers, len(files))
    threads = 0 if engine == "ray" or count == 1 else max(1, available_cores() // (count or 1))
    work = _FileWork(str(folder), _state(folder), parts, settings, threads, PART)
    spread = functools.partial(parallel_map, engine=engine, workers=count, computes=True)
    # 计划没有成形：不留下空的部分文件夹，免得看上去像有未完成的工作
    with working_in(parts, _REQUEST):
        if on_note is not None:
            for line in opening_lines(files, list(map(Path, files)), settings.encoding):
                on_note(line)
        plan = _planned(work, files, noted, lambda: next(spread(work.probed, [0])))
        work = replace(work, settings=replace(settings, precision=cast("Any", plan.precision)))
        finished = [part for file in plan.files for part in work.parts_of(file)]
        lines = sum(file.lines for file in plan.files)
        # 先报上次留下的：速度与剩余时间只按这一次做的算
        done = sum(part.lines for part in finished if part.path.is_file())
        # 单进程时逐部分报告进度；多进程时一个文件做完才有消息
        alone = engine == "local" and count == 1
        steps = (made for file in plan.files for made in work.steps(file)) if alone else spread(work, plan.files)
        for made in chain([0], steps):
            done += made
            if on_progress is not None:
                on_progress(done, lines)
        blank = _put_together(out, finished, lines, plan.width)
        shutil.rmtree(parts)
    return Embedded(lines, blank, plan.width, plan.precision)


@dataclass(frozen=True)
class _FileWork:
    """Makes the parts of a file, of `part` lines each; travels to the workers."""

    folder: str
    state: str
    parts: Path
    settings: EmbedSettings
    threads: int
    part: int

    def probed(self, _unit: int) -> tuple[str, int]:
        """Finds the precision and the width of the vectors, and what `auto` takes for all workers."""
        embed = self._loaded()
        assert isinstance(embed.engine, Engine)
        # 不认得的提示名在开工之前就报
        embed.prompt_text(self.settings.prompt)
        return embed.engine.precision, embed.width(self.settings.pooling, self.settings.dims)

    def __call__(self, file: _File) -> int:
        return sum(self.steps(file))

    def steps(self, file: _File) -> Iterator[int]:
        """Makes what is missing of a file; yields how many lines each part has that it made."""
        _require_unchanged(file)
        lines = (line for _, line in numbered_lines(Path(file.path), file.encoding))
        for part in self.parts_of(file):
            texts = list(islice(lines, part.lines))
            if len(texts) < part.lines:
                raise InputError(f"{file.path}: was changed while it was embedded; run again when it stays as it is")
            if not part.path.is_file():
                part.write(self._embed(texts))
                yield part.lines

    def parts_of(self, file: _File) -> list[_Part]:
        """Returns the parts of a file in order; the cut depends on its number of lines alone."""
        return [
            _Part(self.parts / f"{file.number:05d}-{start // self.part:07d}.npy", min(self.part, file.lines - start))
            for start in range(0, file.lines, self.part)
        ]

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        embed, settings = self._loaded(), self.settings
        spoken = [text.strip() for text in texts]
        rows = [number for number, text in enumerate(spoken) if text]
        # 空行也占一行（全零）：向量的行号就是文件的行号
        vectors = np.zeros((len(texts), embed.width(settings.pooling, settings.dims)), dtype=np.float32)
        if rows:
            chosen = [spoken[row] for row in rows]
            vectors[rows] = embed(
                chosen,
                pooling=settings.pooling,
                normalize=settings.normalize,
                dims=settings.dims,
                prompt=settings.prompt,
            )
        return vectors

    def _loaded(self) -> Embed:
        # 探查时用与干活的进程一样多的线程：结果留在缓存里，各进程就不会各量各的、选得不一样
        if self.threads:
            torch.set_num_threads(self.threads)
        return _loaded(self.folder, self.state, self.settings)


@dataclass(frozen=True)
class _Part:
    """Where the vectors of consecutive lines lie, with a checksum behind them, and how many lines that are."""

    path: Path
    lines: int

    def write(self, vectors: NDArray[np.float32]) -> None:
        """Writes [lines, width], whole or not at all."""
        buffer = io.BytesIO()
        np.save(buffer, vectors, allow_pickle=False)
        with atomic_path(self.path) as temporary:
            temporary.write_bytes(buffer.getvalue() + _checksum(buffer.getvalue()))

    def read(self, width: int) -> NDArray[np.float32]:
        """Returns [lines, width]; CheckpointError where the file is damaged or cut off."""
        try:
            stored = self.path.read_bytes()
            data, checksum = stored[:-_CHECKSUM_BYTES], stored[-_CHECKSUM_BYTES:]
            # 磁盘上翻了一位的数仍是一个数：只有校验和看得出来
            if _checksum(data) != checksum:
                raise ValueError("the checksum differs")
            vectors: NDArray[np.float32] = np.load(io.BytesIO(data), allow_pickle=False)
            if vectors.shape != (self.lines, width) or vectors.dtype != np.float32:
                raise ValueError(f"holds {vectors.shape} {vectors.dtype}, not {(self.lines, width)} float32")
        except (OSError, ValueError, EOFError) as error:
            raise CheckpointError(f"{self.path}: damaged ({error}); remove it and run the same command again") from None
        return vectors


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()


def _planned(
    work: _FileWork, files: Sequence[str | Path], noted: dict[str, Any], probed: Callable[[], tuple[str, int]]
) -> _Plan:
    """Returns the plan of the work that was broken off here, or makes one and writes it down."""
    settings, path = work.settings, work.parts / _REQUEST
    request = {"model": str(Path(work.folder).resolve()), "model files": work.state, **asdict(settings)}
    request["files"] = [str(Path(file).resolve()) for file in files]
    if path.is_file():
        plan = read_json(path, _Plan, CheckpointError, f"remove {work.parts} to begin anew")
        if different := sorted(key for key in request if plan.request.get(key) != request[key]):
            raise RunFolderError(
                f"{work.parts}: holds unfinished vectors of another request ({', '.join(different)}); choose another"
                " --out, or remove it to begin anew"
            )
        for file in plan.files:
            _require_unchanged(file)
        if settings.engine == "auto":
            # 这一次的进程数可能不同：先量一次，各进程才选得一样
            probed()
        return plan
    # 没有请求却有部分：来历不明，不能当成这一次的结果
    for stale in work.parts.glob("*.npy"):
        stale.unlink()
    todo = tuple(_counted(number, Path(file), settings.encoding) for number, file in enumerate(files))
    if not any(file.lines for file in todo):
        raise InputError(f"{', '.join(map(str, files))}: no line to embed")
    # 多进程时在子进程里量：模型不必在父进程里也占一份内存
    plan = _Plan(request, todo, *probed(), **noted)
    write_json(path, plan, checked=True)
    return plan


def _put_together(out: Path, parts: Sequence[_Part], lines: int, width: int) -> int:
    """Writes all parts as one file; returns the number of blank rows."""
    blank = 0

    def blocks() -> Iterator[NDArray[np.float32]]:
        nonlocal blank
        for part in parts:
            vectors = part.read(width)
            blank += int((~vectors.any(axis=1)).sum())
            yield vectors

    with atomic_path(out) as temporary, temporary.open("wb") as handle:
        (write_npy if out.suffix == ".npy" else _write_parquet)(handle, blocks(), lines, width)
    return blank


def _write_parquet(handle: BinaryIO, blocks: Iterable[NDArray[np.float32]], _lines: int, width: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("vector", pa.list_(pa.float32(), width))])
    with pq.ParquetWriter(handle, schema) as writer:
        for vectors in blocks:
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width)
            writer.write_table(pa.table([column], schema=schema))


@functools.lru_cache(maxsize=1)
def _loaded(folder: str, _folder_state: str, settings: EmbedSettings) -> Embed:
    # 要警告的父进程已经说过：工作进程不重复
    TOLD.setdefault(Path(folder), "")
    return Embed.load(folder, precision=settings.precision, batch_tokens=settings.batch_tokens, engine=settings.engine)


def _state(folder: str | Path) -> str:
    """Returns a digest of what the files that decide the vectors are: weights, configuration, vocabulary, pooling."""
    found = [path for name in ("*.safetensors", "*.json", "*.txt", "*/config.json") for path in Path(folder).glob(name)]
    states = [(str(path.relative_to(folder)), path.stat()) for path in sorted(found)]
    described = [(name, state.st_size, state.st_mtime_ns) for name, state in states]
    return hashlib.blake2b(repr(described).encode(), digest_size=16).hexdigest()


def _counted(number: int, path: Path, encoding: str) -> _File:
    state = path.stat()
    found = detect_encoding(Span(str(path))) if encoding == "auto" else encoding
    lines = sum(1 for _ in numbered_lines(path, found))
    return _File(number, str(path.resolve()), state.st_size, state.st_mtime_ns, found, lines)


def _require_unchanged(file: _File) -> None:
    path = Path(file.path)
    state = path.stat() if path.is_file() else None
    if state is None or (state.st_size, state.st_mtime_ns) != (file.size, file.modified):
        raise InputError(
            f"{file.path}: was changed since its vectors were begun; restore it, or remove the folder of parts to"
            " begin anew"
        )
