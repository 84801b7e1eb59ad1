"""What text is read from: which files names stand for, how their bytes are unpacked, and which encoding they are in.

- a source is a name and a size; a span is a stretch of one source, so that a large file can be shared among workers
- a name with `://` is opened by `fsspec`, everything else by Python itself; every failure to open, read or unpack
  becomes one line that names the file
- a file that is named or matched by a pattern is read whatever it is called; from a folder only files of known endings.
  The order is that of the names, and a file that is reached twice is read once
- the encoding is decided by a first pass over the whole file: the first accent of a book may stand in its last chapter.
  What is neither Unicode nor clearly Western text ends with one line that names the place and the flag to pass, because
  a vocabulary learned from mis-decoded text is worthless
"""

from __future__ import annotations

import codecs
import contextlib
import glob
import gzip
import importlib.util
import itertools
import os
import re
import shutil
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from bertsmith.errors import BertsmithError, InputError

SourceKind = Literal["text", "jsonl", "parquet", "table", "document"]

PACKED = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
_KIND_ENDINGS: dict[str, SourceKind] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    **dict.fromkeys((".csv", ".tsv", ".json", ".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), "table"),
}
DOCUMENT_LIBRARIES = {
    ".md": "markdown_it",
    ".markdown": "markdown_it",
    ".html": "selectolax",
    ".htm": "selectolax",
    ".xhtml": "selectolax",
    ".pdf": "pypdfium2",
    ".docx": "docx",
    ".epub": "selectolax",
    ".eml": "selectolax",
}
"""Ending of a kind of documents → the library that reads it (`documents`)."""
_OTHER_DOCUMENTS = (".xml", ".doc", ".odt", ".rtf", ".tex", ".pptx", ".mobi")
_TEXT_PER_BYTE = {"packed": 3.0, "parquet": 2.0}  # about how many times larger the text is than the file
TEXT_ENDINGS = (".txt", ".txt.gz", ".txt.zst")
_RECORD_ENDINGS = (*(f"{kind}{packed}" for kind in (".jsonl", ".ndjson") for packed in ("", *PACKED)), ".parquet")
CHUNK_SIZE = 1 << 20
"""Bytes that are read at a time."""
_TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.json"}
# UTF-32 要排在 UTF-16 之前：小端 UTF-32 的 BOM 以 UTF-16 的 BOM 开头
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Everything below 0x20 but tab, line ends, form feed and the DOS end-of-file mark; and DEL.
_NOT_CONTROL = bytes(byte for byte in range(256) if byte >= 0x20 and byte != 0x7F) + b"\t\n\v\f\r\x1a"
_NOT_HIGH = bytes(range(0x80))
_NOT_LETTER = bytes(byte for byte in range(0x80) if not chr(byte).isalpha())
# B1–BE 在东欧编码里是小写字母，在 GBK 里是半个汉字；在西文里是 ± ² ¾ 之类，几乎不会夹在字母中间（´ · » 会，不算）
_INSIDE_WORD = re.compile(rb"[\xb1-\xb3\xb5\xb6\xb8-\xba\xbc-\xbe](?<=[A-Za-z\xa1-\xff].)(?=[A-Za-z\xa1-\xff])")
_C1_BYTES = re.compile(rb"[\x80-\x9f]")
_UNDEFINED_IN_CP1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
_VALID_MULTIBYTE = re.compile("[^\x00-\x7f\udc80-\udcff]")
_INVALID_BYTE = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True)
class Source:
    """One file of a corpus: its path or URL, its size in bytes, and when it was last changed in ns (0: unknown)."""

    name: str
    size: int
    modified: int = 0

    @property
    def kind(self) -> SourceKind:
        """What the file holds, by its ending."""
        ending = _ending(self.name)
        return "document" if ending in DOCUMENT_LIBRARIES else _KIND_ENDINGS.get(ending, "text")

    @property
    def packed(self) -> bool:
        """Whether the ending says that the file is compressed, so that it can only be read from its beginning."""
        return self.name.lower().endswith(tuple(PACKED))

    @property
    def text_size(self) -> float:
        """About how many bytes of text the file holds, estimated from its size and ending alone."""
        return self.size * _TEXT_PER_BYTE.get("packed" if self.packed else self.kind, 1.0)


@dataclass(frozen=True)
class Span:
    """A stretch of a source: bytes `start` to `end` (row groups, for Parquet), or to its end where `end` is None.

    `encoding` is as in `read_lines`; `text` numbers the text that the stretch is a part of, None for whole texts.
    """

    name: str
    start: int = 0
    end: int | None = None
    encoding: str = "auto"
    text: int | None = None

    def __str__(self) -> str:
        return self.name


def _ending(name: str) -> str:
    """The ending of a file's name in lower case, under that of how it is packed."""
    name = name.lower()
    for packed in PACKED:
        name = name.removesuffix(packed)
    return "." + name.rpartition(".")[2]


def document_ending(name: str) -> str:
    """Returns the ending of a document of a kind that `documents` reads; empty for other files."""
    return ending if (ending := _ending(name)) in DOCUMENT_LIBRARIES else ""


def is_prose(name: str) -> bool:
    """Tells whether what stands in a file is its text: plain text and Markdown, and no other kind of document."""
    return document_ending(name) in ("", ".md", ".markdown")


def text_endings() -> tuple[str, ...]:
    """Returns the endings of text, and of the documents whose library is installed, in lower case; packed ones too."""
    there = [ending for ending, library in DOCUMENT_LIBRARIES.items() if importlib.util.find_spec(library)]
    return (*TEXT_ENDINGS, *(ending + packed for ending in there for packed in ("", *PACKED)))


def corpus_endings() -> tuple[str, ...]:
    """Returns the endings of the files that a corpus takes from a folder: text, documents and records."""
    return (*text_endings(), *_RECORD_ENDINGS)


def find_sources(paths: Sequence[str | Path]) -> list[Source]:
    """Finds the files of a corpus: as `find_text_files`, and by URLs of any protocol `fsspec` knows."""
    local = [path for path in paths if not is_url(str(path))]
    found = find_text_files(local, corpus_endings()) if local or not paths else []
    sources = [source_of(file) for file in found]
    remote = {source.name: source for path in paths if is_url(str(path)) for source in _find_remote(str(path))}
    return sources + [remote[name] for name in sorted(remote)]


def source_of(file: Path) -> Source:
    """Returns a file as a source."""
    try:
        state = file.stat()
    except OSError:
        # 刚刚还在：读它的人会说清楚
        return Source(str(file), 0)
    return Source(str(file), state.st_size, state.st_mtime_ns)


def find_text_files(paths: Sequence[str | Path], endings: Sequence[str] = TEXT_ENDINGS) -> list[Path]:
    """Finds the text files that files, folders and glob patterns name.

    A folder is searched with all its subfolders for `.txt`, `.txt.gz` and `.txt.zst`; links to folders are followed,
    hidden files and folders passed over (they are the droppings of editors and file managers), and so is the
    `vocab.txt` or `merges.txt` of a tokenizer, known by the files beside it. A file that is named, or matched by a
    pattern, may have any name. `**` in a pattern stands for any number of folders.
    """
    if not paths:
        raise InputError("no text was named; give at least one file, folder or pattern, for example corpus/*.txt")
    found = [file for path in paths for file in _expand(str(path), endings)]
    for file in found:
        # 文档读不了只是少一篇（`documents`），文本读不了则要停下
        if document_ending(str(file)):
            continue
        if not file.is_file():
            raise InputError(f"{file}: is not a regular file; save its text to a file and name that")
        try:
            file.open("rb").close()
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror}); check its rights: ls -l {file}") from None
    # 按真实路径去重，同一文件经链接或两种写法出现时只读一次；按名字排序，结果与文件系统的列举顺序无关
    unique = {file.resolve(): file for file in sorted(found, key=str, reverse=True)}
    return sorted(unique.values(), key=str)


def _find_remote(url: str) -> list[Source]:
    """Finds the files that a URL names: a file, a folder, or a pattern, whose folders are searched, too."""
    with readable(url):
        system, named, inside = _remote_files(url)
        paths = [*named, *(found for found in inside if _ends_in(found, corpus_endings()))]
        if not paths:
            raise InputError(f"{url}: holds or matches no text file; check the address")
        return [Source(system.unstrip_protocol(found), int(system.size(found) or 0)) for found in sorted(paths)]


def _remote_files(url: str) -> tuple[Any, list[str], set[str]]:
    """Returns the file system of a URL, the files that it names or matches, and the others in its folders."""
    with readable(url):
        system, path = file_system(url)
        if any(mark in path for mark in "*?["):
            kinds = {name: found["type"] for name, found in system.glob(path, detail=True).items()}
        else:
            kinds = {path: "directory" if system.isdir(path) else "file"}
        named = [name for name, kind in kinds.items() if kind == "file"]
        inside = {file for name, kind in kinds.items() if kind == "directory" for file in system.find(name)}
        return system, named, inside.difference(named)


def _expand(path: str, endings: Sequence[str]) -> list[Path]:
    matches = _matches(path)
    files = [file for match in matches for file in (walk(match, endings) if os.path.isdir(match) else [Path(match)])]
    if files:
        return files
    if matches == [path]:
        instead = left_out([path], endings) or "name the files, or put text there"
        raise InputError(f"{path}: the folder holds no {_listed(endings)} file; {instead}")
    raise InputError(f"{path}: the pattern matches no text file; check it with: ls {path}")


def _matches(path: str) -> list[str]:
    """Returns the files and folders that a pattern matches, or the one of this name, which goes before."""
    if not os.path.lexists(path) and glob.has_magic(path):
        return sorted(glob.glob(path, recursive=True))
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file or folder; check the name (the current folder is {Path.cwd()})")
    return [path]


def files_of_folder(folder: str | Path, endings: Sequence[str]) -> list[Path]:
    """Returns the files of a folder as `find_text_files` does, also those that are no regular files or unreadable."""
    found = sorted(_expand(str(folder), endings), key=str, reverse=True)
    return sorted({file.resolve(): file for file in found}.values(), key=str)


def _listed(endings: Sequence[str]) -> str:
    # 只列未压缩的写法，一行里放得下
    plain = [ending for ending in endings if ending.count(".") == 1]
    return ".txt or .txt.gz" if plain == [".txt"] else ", ".join(plain)


def left_out(
    paths: Sequence[str | Path],
    endings: Sequence[str],
    faults: Mapping[str, str] | None = None,
    missing: Mapping[str, Mapping[str, int]] | None = None,
) -> str:
    """Says by kind and reason which files of the folders are not read, and what of the others; empty for nothing.

    Args:
        faults: name of a file → why it cannot be read.
        missing: name of a file that is read → what of it is not → how many of these.
    """
    matches = [match for path in paths if not is_url(str(path)) for match in _matches(str(path))]
    named = {Path(match).resolve() for match in matches if not os.path.isdir(match)}
    # 模式匹配到的文件夹也算；点了名的文件不论叫什么都会读
    found = {file.resolve(): file for match in matches if os.path.isdir(match) for file in walk(match, ("",))}
    remote = [Path(file) for path in paths if is_url(str(path)) for file in _remote_files(str(path))[2]]
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for file in [*(file for real, file in found.items() if real not in named), *remote]:
        if not _ends_in(file.name, endings):
            kind = _ending(file.name) if document_ending(file.name) else file.suffix.lower() or "without an ending"
            groups[_why_not(kind, endings)][kind] += 1
    listed = []
    for reason in filter(groups.get, _REASONS):
        kinds = [f"{count:,} {kind}" for kind, count in sorted(groups[reason].items())]
        listed.append(f"{few_names(kinds, 6)} ({reason})")
    broken: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, fault in (faults or {}).items():
        broken[document_ending(name), fault].append(name.rpartition("/")[2])
    listed += [
        f"{len(names):,} {kind} ({fault}: {few_names(names, 2)})"
        for (kind, fault), names in sorted(broken.items(), key=lambda one: (-len(one[1]), one[0]))
    ]
    total = sum(sum(kinds.values()) for kinds in groups.values()) + len(faults or {})
    said = [f"left out {total:,} file(s): {'; '.join(listed[:8])}{'; …' * (len(listed) > 8)}"] if listed else []
    parts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, counts in (missing or {}).items():
        for what, count in counts.items():
            parts[what][name.rpartition("/")[2]] += count
    inside = [f"{names.total():,} {what} ({few_names(list(names), 2)})" for what, names in sorted(parts.items())]
    said += [f"left out of files that are read: {', '.join(inside)}"] if inside else []
    return "; ".join(said)


def few_names(names: Sequence[object], most: int = 12) -> str:
    """Returns names for a line: the first of them, and how many more there are."""
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most:,} more" if len(names) > most else "")


_REASONS = (
    "tables: name them, with the column as --text-field",
    "tables: write their texts to .txt files",
    "pip install 'bertsmith[documents]' reads them",
    "documents: save them as .docx, .pdf or .txt",
    "not known as text",
)


def _why_not(kind: str, endings: Sequence[str]) -> str:
    if kind in _KIND_ENDINGS:
        # 只有读记录的命令才有 --text-field
        return _REASONS[0 if _RECORD_ENDINGS[0] in endings else 1]
    if kind in DOCUMENT_LIBRARIES:
        return _REASONS[2]
    return _REASONS[3 if kind in _OTHER_DOCUMENTS else 4]


def _ends_in(name: str, endings: Sequence[str]) -> bool:
    return name.lower().endswith(tuple(endings))


def walk(folder: str, endings: Sequence[str]) -> list[Path]:
    """The files under a folder and under those that links in it lead to, hidden ones left out."""

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read ({error.strerror}); check its rights") from None

    files = []
    waiting, seen = [folder], set[str]()
    for top in waiting:
        for parent, folders, names in os.walk(top, onerror=fail):
            real = os.path.realpath(parent)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            # os.walk 不进入链接：排到最后再看，同一文件夹以它本来的名字为准；指回上层的链接是环，不跟
            links = [os.path.join(parent, name) for name in folders if os.path.islink(os.path.join(parent, name))]
            waiting += [link for link in links if not Path(real).is_relative_to(os.path.realpath(link))]
            # 分词器文件夹里的词表也叫 .txt：它不是文本
            other = {"vocab.txt", "merges.txt"} if _TOKENIZER_FILES & set(names) else set()
            wanted = (name for name in names if _ends_in(name, endings) and not name.startswith("."))
            files += [Path(parent, name) for name in wanted if name not in other]
    return files


def is_url(name: str) -> bool:
    """Whether a name is for `fsspec` to open."""
    return "://" in name


@contextlib.contextmanager
def open_source(name: str) -> Iterator[BinaryIO]:
    """Opens a file or URL for reading bytes; whatever goes wrong inside is told in one line."""
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
    """Yields the path of a file, or of a copy of a URL that lasts for the block, whose errors name the address."""
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
    """Reads a file or stretch in chunks; from its beginning gzip and zstd are unpacked. `InputError` where damaged."""
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
    """Whether a file is compressed, by its ending or its first bytes: what `read_chunks` unpacks."""
    with open_source(name) as raw:
        return _packing(name, raw.read(4)) is not None


def lines_before(place: Path | Span) -> int:
    """Counts the line ends before a span: for the line number in a message."""
    if not isinstance(place, Span) or place.start == 0:
        return 0
    return sum(chunk.count(b"\n") for chunk in read_chunks(Span(place.name, 0, place.start)))


def _packing(name: str, head: bytes) -> str | None:
    for ending, magic in PACKED.items():
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
    """Turns every failure to reach or read a source in the block into one line that names it."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"{name}: this kind of address needs another package ({error})") from None
    except OSError as error:
        # gzip 与网络文件系统也会抛 OSError，不一定带系统错误号
        raise InputError(f"{name}: cannot be read ({error.strerror or error}); check the file and its rights") from None
    except Exception as error:
        # 网络库的异常不属于 OSError，各家自成一系；网址之外的异常是程序缺陷，照常抛出
        if not is_url(name) or isinstance(error, BertsmithError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{name}: cannot be read ({reason}); check the address and the network") from None


def file_system(url: str) -> tuple[Any, str]:
    """Returns the `fsspec` file system of a URL, and the path in it."""
    # 只有真用到网址时才载入 fsspec
    from fsspec.core import url_to_fs

    system, path = url_to_fs(url)
    return system, str(path)


def check_encoding(encoding: str) -> None:
    """Makes sure that `encoding` is `auto` or a text encoding Python knows."""
    if encoding == "auto":
        return
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        raise InputError(
            f"--encoding {encoding!r}: no such text encoding; use auto, utf-8, utf-16, iso-8859-1 "
            "or another name Python knows, such as gb18030"
        ) from None


def detect_encoding(path: Path | Span) -> str:
    """Finds the encoding of a file by looking at all of it, in bounded memory.

    In this order: a byte order mark decides; UTF-16 without one is accepted when nearly every second byte of an ASCII
    text is NUL; then strict UTF-8, without the escape sequences of ISO-2022; then ISO-8859-1, if no two bytes form a
    UTF-8 character, the accented letters are a minority, as in Western languages, and hardly any sign such as ¹ or ¾
    stands inside a word, where Polish and Czech encodings have letters and GBK has halves of characters. Bytes 0x80 to
    0x9F are control characters in ISO-8859-1 and curly quotes in its Windows superset, so a Western file that has them
    is read as `cp1252`.
    """
    size = controls = 0
    shifts = False
    nuls = [0, 0]  # at even and at odd offsets
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    is_utf8 = True
    for chunk in read_chunks(path):
        if size == 0:
            for mark, name in _BYTE_ORDER_MARKS:
                if chunk.startswith(mark):
                    return name
        if 0 in chunk:
            for offset in (0, 1):
                nuls[(size + offset) % 2] += chunk[offset::2].count(0)
        controls += len(chunk.translate(None, _NOT_CONTROL))
        shifts = shifts or b"\x1b$" in chunk
        size += len(chunk)
        if is_utf8:
            is_utf8 = _accepts(decoder, chunk)
    if is_utf8:
        is_utf8 = _accepts(decoder, b"", final=True)

    if any(nuls):
        # 没有 BOM 的 UTF-16：ASCII 字符的高字节全是 0，只落在同一奇偶位上，这种分布不会误认
        half = size / 2
        for parity, name in ((1, "utf-16-le"), (0, "utf-16-be")):
            if size % 2 == 0 and nuls[parity] > 0.4 * half and nuls[1 - parity] < 0.01 * half:
                return name
        raise nul_error(path, _line_of_first_nul(path))
    # ISO-2022 全是 ASCII 字节，解码成 UTF-8 不会出错，只会是乱码
    if shifts:
        raise InputError(
            f"{path}: changes its character set by escape sequences, as ISO-2022 does; name its encoding, for example "
            "--encoding iso-2022-jp, or re-save the file as UTF-8"
        )
    if controls > 0.05 * size:
        raise InputError(f"{path}: looks binary (control characters everywhere), not text; leave it out")
    return "utf-8" if is_utf8 else _detect_western(path)


def _detect_western(path: Path | Span) -> str:
    """Tells ISO-8859-1 (or its Windows superset) from everything else that is not UTF-8."""
    # surrogateescape 把每个坏字节变成 U+DC80..U+DCFF：一次解码就分清合法的多字节字符与坏字节
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    line = 1
    bad_line = 0  # the line of the first byte that is not UTF-8
    high = letters = inside_words = 0
    valid = invalid = 0  # characters that are UTF-8, and bytes that are not
    has_c1 = has_undefined = False
    for chunk in itertools.chain(read_chunks(path), [b""]):
        text = decoder.decode(chunk, final=not chunk)
        valid += len(_VALID_MULTIBYTE.findall(text))
        invalid += len(_INVALID_BYTE.findall(text))
        if not bad_line:
            bad = _INVALID_BYTE.search(text)
            bad_line = line - 1 + len((text[: bad.start()] + "x").splitlines()) if bad else 0
            line += text.count("\n") or text.count("\r")
        inside_words += len(_INSIDE_WORD.findall(chunk))
        high += len(chunk.translate(None, _NOT_HIGH))
        letters += len(chunk.translate(None, _NOT_LETTER))
        has_c1 = has_c1 or _C1_BYTES.search(chunk) is not None
        has_undefined = has_undefined or _UNDEFINED_IN_CP1252.search(chunk) is not None
    # 西文里带重音的字母是少数；高位字节过半的多是中文、俄文等，按 ISO-8859-1 读只会得到乱码
    is_other = 3 * high > letters or inside_words > max(1, 0.01 * high)
    if valid and not (is_other and invalid > valid):  # GBK pairs are valid UTF-8 now and then, by chance
        raise InputError(
            f"{path}: line {bad_line} is not valid UTF-8, though the file holds other characters that are; pass "
            "--encoding iso-8859-1 (or whatever it was written in), or re-save the file as UTF-8"
        )
    if is_other or has_undefined:
        raise InputError(
            f"{path}: line {bad_line} is not valid UTF-8, and the file does not look like ISO-8859-1; "
            "name its encoding, for example --encoding gb18030, big5, cp1250 or cp1251, or re-save the file as UTF-8"
        )
    return "cp1252" if has_c1 else "iso-8859-1"


def _accepts(decoder: codecs.IncrementalDecoder, chunk: bytes, *, final: bool = False) -> bool:
    try:
        decoder.decode(chunk, final)
    except UnicodeDecodeError:
        return False
    return True


def _line_of_first_nul(path: Path | Span) -> int:
    number = 0
    for chunk in read_chunks(path):
        position = chunk.find(0)
        if position >= 0:
            return number + len((chunk[:position] + b"x").splitlines())
        number += chunk.count(b"\n")
    return number + 1


def nul_error(path: Path | Span, line: int) -> InputError:
    """Returns the error for a file of which a line holds a NUL character, as no text does."""
    return InputError(
        f"{path}: looks binary (line {line} holds a NUL byte), not text; leave it out, "
        "or pass --encoding utf-16-le if it is UTF-16 without a byte order mark"
    )
