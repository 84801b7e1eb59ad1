"""Which files, and which stretches of large ones, make a unit of work; the documents of a unit, or all text at once.

Notable:
- the plan depends on the input and the settings alone, so every build of the same command has the same units, whatever
  the number of workers
- a large plain file is cut where a document ends anyway, so the documents are the same as of the uncut file: at a blank
  line (not after a heading, which belongs to what follows), at the end of a JSON line, between two Parquet row groups
- what cannot be read from the middle is not cut: gzip and zstd, UTF-16 and the like, a text file that is one document
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.data.reading.decoding import check_encoding, detect_encoding
from bertsmith.data.reading.lines import read_lines
from bertsmith.data.reading.records import read_json_lines, read_parquet, row_group_sizes
from bertsmith.data.reading.sources import (
    CORPUS_ENDINGS,
    Source,
    SourceKind,
    Span,
    find_remote,
    is_packed,
    is_url,
    open_source,
)
from bertsmith.data.reading.text import Document, documents_of, find_text_files, is_heading, split_lines

_SMALLEST_UNIT = 4_000_000
_BYTES_PER_TOKEN = 4.5  # of English text; only the balance of the units hangs on it
_UNITS = 16
_PACKING = {"packed": 3.0, "parquet": 2.0}  # about how many times larger the text is than the file
_LINE_PIECE = 1 << 16
# In these a byte 0x0A is always a line end, and one can begin to read after any of them.
_CUTTABLE = ("ascii", "utf-8", "utf-8-sig", "iso8859", "cp125", "koi8", "gb18030", "gbk", "gb2312", "big5", "euc")


@dataclass(frozen=True)
class WorkUnit:
    """What one worker reads at a time.

    Attributes:
        number: its place in the corpus.
        spans: what it reads, in order.
        size: about how many bytes of text that is.
    """

    number: int
    spans: tuple[Span, ...]
    size: int


def find_sources(paths: Sequence[str | Path]) -> list[Source]:
    """Finds the files of a corpus that paths, folders, patterns and URLs name.

    Args:
        paths: as for `find_text_files`, and URLs of any protocol `fsspec` knows.

    Returns:
        The files in the order of their names, each once.

    Raises:
        InputError: nothing was named, or something is missing, unreadable or holds no text file.
    """
    local = [path for path in paths if not is_url(str(path))]
    found = find_text_files(local, CORPUS_ENDINGS) if local or not paths else []
    states = [(file, file.stat()) for file in found]
    sources = [Source(str(file), state.st_size, state.st_mtime_ns) for file, state in states]
    remote = {source.name: source for path in paths if is_url(str(path)) for source in find_remote(str(path))}
    return sources + [remote[name] for name in sorted(remote)]


def plan_units(sources: Sequence[Source], *, rule: str, encoding: str, field: str, shard_tokens: int) -> list[WorkUnit]:
    """Divides sources into units of about the text that fills a shard, smaller where the corpus is small.

    Args:
        sources: in reading order.
        rule: `blank-line` or `file`.
        encoding: `auto` or a codec.
        field: the Parquet column that holds the text.
        shard_tokens: ids per shard.

    Returns:
        The units in order.

    Raises:
        InputError: a file cannot be read, or its encoding is not known.
    """
    check_encoding(encoding)
    total = sum(text_size(source) for source in sources)
    # 语料小时单元也小：几个进程都有活干；大小只由输入决定，与进程数无关
    unit_size = min(max(_SMALLEST_UNIT, total / _UNITS), max(1.0, shard_tokens * _BYTES_PER_TOKEN))
    units: list[WorkUnit] = []
    waiting: list[Span] = []
    size = 0.0
    for span, weight in (piece for source in sources for piece in _pieces(source, rule, encoding, field, unit_size)):
        if waiting and size + weight > unit_size:
            units.append(WorkUnit(len(units), tuple(waiting), int(size)))
            waiting, size = [], 0.0
        waiting.append(span)
        size += weight
    if waiting:
        units.append(WorkUnit(len(units), tuple(waiting), int(size)))
    return units


def read_unit(unit: WorkUnit, *, rule: str, field: str) -> Iterator[Document]:
    """Reads the documents of a unit, streaming.

    Args:
        unit: of `plan_units`.
        rule: `blank-line` or `file`, for text; a JSON line or Parquet row is always a document.
        field: of JSON lines, or column of Parquet, that holds the text.

    Raises:
        InputError: a file is damaged or malformed; the message names it and the line.
    """
    for span in unit.spans:
        kind = Source(span.name, 0).kind
        if kind == "text":
            yield from documents_of(read_lines(span, span.encoding), span.name, rule)
            continue
        for text in _records(span, kind, field):
            yield from documents_of(split_lines(text), span.name)


def read_all_text(sources: Sequence[Source], *, encoding: str, field: str) -> Iterator[str]:
    """Reads the text of sources from the first to the last, for learning a vocabulary, streaming.

    Args:
        sources: of `find_sources`.
        encoding: `auto` or a codec, of text files.
        field: of JSON lines, or column of Parquet, that holds the text.

    Yields:
        Lines, cut as for a corpus, so that both see the same words.

    Raises:
        InputError: the encoding is not known, or a file is damaged or malformed; the message names it and the line.
    """
    check_encoding(encoding)
    for source in sources:
        span = Span(source.name, encoding=encoding)
        if source.kind == "text":
            yield from read_lines(span, encoding)
            continue
        for text in _records(span, source.kind, field):
            yield from split_lines(text)


def text_size(source: Source) -> float:
    """Returns about how many bytes of text a source holds, from its size and ending alone."""
    return source.size * _PACKING.get("packed" if source.packed else source.kind, 1.0)


def _records(span: Span, kind: SourceKind, field: str) -> Iterator[str]:
    return read_json_lines(span, field) if kind == "jsonl" else read_parquet(span, field)


def _pieces(source: Source, rule: str, encoding: str, field: str, unit_size: float) -> Iterator[tuple[Span, float]]:
    weight = text_size(source)
    whole = Span(source.name, encoding=encoding)
    if source.kind == "parquet":
        sizes = row_group_sizes(source.name, field)
        yield from ((Span(source.name, n, n + 1), size * _PACKING["parquet"]) for n, size in enumerate(sizes))
        return
    # 名字里没有 .gz/.zst 的压缩文件，看头几个字节才知道：切开就再也解不开了
    if (
        weight < 1.5 * unit_size
        or (source.kind == "text" and rule != "blank-line")
        or source.packed
        or is_packed(source.name)
    ):
        yield whole, weight
        return
    if source.kind == "text":
        if encoding == "auto":
            encoding = detect_encoding(whole)
        if not codecs.lookup(encoding).name.startswith(_CUTTABLE):
            yield whole, weight
            return
    start = 0
    while start < source.size:
        end = source.size
        if source.size - start >= 1.5 * unit_size:
            end = _cut(source, encoding, start + int(unit_size))
        yield Span(source.name, start, end, encoding), float(end - start)
        start = end


def _cut(source: Source, encoding: str, place: int) -> int:
    """Finds the first place after `place` where one document ends and another begins."""
    with open_source(source.name) as raw:
        raw.seek(place)
        previous = b""
        complete = False  # the line being read has been seen from its beginning
        while piece := raw.readline(_LINE_PIECE):
            if not piece.endswith(b"\n"):
                previous, complete = b"", False
                continue
            if source.kind == "jsonl":
                return raw.tell()
            if complete and not piece.strip() and _ends_document(previous.decode(encoding, "replace")):
                return raw.tell()
            # 从行中间读起的第一行不完整，不能拿来判断
            previous, complete = (piece if complete else b""), True
    return source.size


def _ends_document(line: str) -> bool:
    last = (line.splitlines() or [""])[-1].strip()
    return bool(last) and not is_heading(last)
