"""What a corpus is read from: files, globs and URLs; text, JSON Lines and Parquet; plain, gzip or zstd.

Notable:
- a source is a name and a size; a span is a stretch of one source, so that a large file can be shared among workers
- a name with `://` is opened by `fsspec`, everything else by Python itself: local files need no library
- what a file holds is told by its ending, how it is packed also by its first bytes
- every failure to open, read or unpack becomes one line that names the file
"""

from __future__ import annotations

import contextlib
import gzip
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from bertsmith.errors import BertsmithError, InputError

SourceKind = Literal["text", "jsonl", "parquet"]

_PACKED_ENDINGS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
_KIND_ENDINGS: dict[str, SourceKind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_TEXT_PER_BYTE = {"packed": 3.0, "parquet": 2.0}  # about how many times larger the text is than the file
TEXT_ENDINGS = (".txt", ".txt.gz", ".txt.zst")
CORPUS_ENDINGS = (
    *TEXT_ENDINGS,
    *(f"{kind}{packed}" for kind in (".jsonl", ".ndjson") for packed in ("", ".gz", ".zst")),
    ".parquet",
)
"""Endings of the files that are taken from a folder, in lower case."""
CHUNK_SIZE = 1 << 20
"""Bytes that are read at a time."""


@dataclass(frozen=True)
class Source:
    """One file of a corpus.

    Attributes:
        name: path or URL.
        size: bytes, as stored.
        modified: when it was last changed, in ns; 0 where that cannot be told.
    """

    name: str
    size: int
    modified: int = 0

    @property
    def kind(self) -> SourceKind:
        """What the file holds, by its ending."""
        name = self.name.lower()
        for ending in _PACKED_ENDINGS:
            name = name.removesuffix(ending)
        return _KIND_ENDINGS.get("." + name.rpartition(".")[2], "text")

    @property
    def packed(self) -> bool:
        """Whether the ending says that the file is compressed, so that it can only be read from its beginning."""
        return self.name.lower().endswith(tuple(_PACKED_ENDINGS))

    @property
    def text_size(self) -> float:
        """About how many bytes of text the file holds, told from its size and ending alone."""
        return self.size * _TEXT_PER_BYTE.get("packed" if self.packed else self.kind, 1.0)


@dataclass(frozen=True)
class Span:
    """A stretch of a source.

    Attributes:
        name: path or URL.
        start: first byte (first row group, for Parquet).
        end: one past the last; None for all that follows.
        encoding: of text, as `read_lines` takes it.
        text: the number of the text that the stretch is a part of; None where it holds whole texts.
    """

    name: str
    start: int = 0
    end: int | None = None
    encoding: str = "auto"
    text: int | None = None

    def __str__(self) -> str:
        return self.name


def is_url(name: str) -> bool:
    """Whether a name is for `fsspec` to open."""
    return "://" in name


@contextlib.contextmanager
def open_source(name: str) -> Iterator[BinaryIO]:
    """Opens a file or URL for reading bytes; whatever goes wrong inside is told in one line.

    Raises:
        InputError: it cannot be opened or read.
    """
    with readable(name):
        if is_url(name):
            system, path = file_system(name)
            with system.open(path, "rb") as stream:
                yield stream
        else:
            with Path(name).open("rb") as stream:
                yield stream


@contextlib.contextmanager
def local_copy(name: str | Path) -> Iterator[Path]:
    """Yields the path of a file: its own, or for a URL that of a copy that lasts as long as the block.

    Raises:
        InputError: the address cannot be read. Errors of the block that name the copy name the address instead.
    """
    if not is_url(str(name)):
        yield Path(name)
        return
    url = str(name)
    with tempfile.TemporaryDirectory(prefix="bertsmith-") as folder:
        # 保留文件名：表格的种类与是否压缩都看它的结尾
        copy = Path(folder) / url.rpartition("/")[2]
        with open_source(url) as stream, copy.open("wb") as target:
            shutil.copyfileobj(stream, target, CHUNK_SIZE)
        try:
            yield copy
        except BertsmithError as error:
            raise type(error)(str(error).replace(str(copy), url)) from None


def read_chunks(place: Path | Span) -> Iterator[bytes]:
    """Reads the bytes of a file or of a stretch of it in chunks, unpacking gzip and zstd.

    Args:
        place: a file is packed by its ending or its first bytes; a span that begins later is taken as it is.

    Raises:
        InputError: the file cannot be read, or is damaged or cut off.
    """
    span = place if isinstance(place, Span) else Span(str(place))
    with open_source(span.name) as raw:
        raw.seek(span.start)
        if span.start == 0:
            ending = _packing(span.name, raw.read(4))
            raw.seek(0)
            if ending is not None:
                yield from _unpacked(span.name, raw, ending)
                return
        left = None if span.end is None else span.end - span.start
        while chunk := raw.read(CHUNK_SIZE if left is None else min(CHUNK_SIZE, left)):
            left = None if left is None else left - len(chunk)
            yield chunk


def is_packed(name: str) -> bool:
    """Whether a file is compressed, by its ending or its first bytes: what `read_chunks` unpacks.

    Raises:
        InputError: it cannot be read.
    """
    with open_source(name) as raw:
        return _packing(name, raw.read(4)) is not None


def lines_before(place: Path | Span) -> int:
    """Counts the line ends before a span: for the line number in a message."""
    if not isinstance(place, Span) or place.start == 0:
        return 0
    return sum(chunk.count(b"\n") for chunk in read_chunks(Span(place.name, 0, place.start)))


def _packing(name: str, head: bytes) -> str | None:
    """Returns the ending that stands for how a file is packed, or None."""
    for ending, magic in _PACKED_ENDINGS.items():
        if name.lower().endswith(ending) or head.startswith(magic):
            return ending
    return None


def _unpacked(name: str, raw: BinaryIO, ending: str) -> Iterator[bytes]:
    tool = "gzip" if ending == ".gz" else "zstd"
    try:
        # Python 3.14 以前标准库没有 zstd；pyarrow 自带，不必为此增加依赖
        if ending == ".gz":
            stream: Any = gzip.GzipFile(fileobj=raw)
        elif raw.read(1):
            raw.seek(0)
            # 只有 zstd 用得着它；服务器启动不必等它导入
            import pyarrow as pa

            stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
        else:
            raise EOFError("the file is empty")
        while chunk := stream.read(CHUNK_SIZE):
            yield chunk
    except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(
            f"{name}: damaged or truncated {tool} file ({error}); check it with: {tool} -t {name}"
        ) from None


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Turns every failure to reach or read a source in the block into one line that names it.

    Raises:
        InputError: the block failed.
    """
    try:
        yield
    except ImportError as error:
        raise InputError(f"{name}: this kind of address needs another package ({error})") from None
    except OSError as error:
        # gzip 与网络文件系统也会抛 OSError，不一定带系统错误号
        raise InputError(f"{name}: cannot be read ({error.strerror or error}); check the file and its rights") from None
    except ValueError as error:
        if not is_url(name):
            raise
        raise InputError(f"{name}: cannot be read ({error}); check the address") from None
    except Exception as error:
        # 网络库的断线异常不属于 OSError，各家自成一系；网址之外的异常是程序缺陷，照常抛出
        if not is_url(name) or isinstance(error, BertsmithError):
            raise
        raise InputError(f"{name}: cannot be read ({type(error).__name__}: {error}); check the network") from None


def file_system(url: str) -> tuple[Any, str]:
    """Returns the `fsspec` file system of a URL, and the path in it."""
    # 只有真用到网址时才载入 fsspec
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, str(path)
