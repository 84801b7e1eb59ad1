"""What a corpus is made of: the options, and which files and stretches of large ones are read together as a chunk.

- the plan depends on the input and the options alone, so every build has the same chunks, whatever the number of
  workers
- a large plain file is cut where a document ends anyway, so the documents are the same as of the uncut file: at a blank
  line (not after a heading, which belongs to what follows), at the end of a line that is a document or JSON, between
  two Parquet row groups
- a large document (a file that is one, or what stands between two blank lines that are far apart) is cut at a blank
  line, or at any line where none is near; the stretches carry the number of the text, so that they stay together where
  the corpus is split
- what cannot be read from the middle is one chunk however large it is: gzip and zstd, UTF-16 and the like
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bertsmith.data.corpus.duplicates import NearDuplicates
from bertsmith.data.corpus.words import word_cutter
from bertsmith.data.reading.records import row_group_sizes, texts_in, warn_of_empty
from bertsmith.data.reading.sources import Source, Span, check_encoding, detect_encoding, is_packed, open_source
from bertsmith.data.reading.text import Document, DocumentRule, documents_of, is_heading, text_number
from bertsmith.settings import Checked, option

SHARD_TOKENS = 16_000_000
"""Ids per shard: 64 MB, small enough to make and check quickly, large enough that their number stays small."""
MOST_SHARD_TOKENS = 2**30
"""Offsets in a shard are 32-bit numbers."""
_SMALLEST_CHUNK = 4_000_000  # bytes of text
_CHUNKS = 16
_BYTES_PER_TOKEN = 4.5  # of English text; only the balance of the chunks hangs on it
_LINE_PIECE = 1 << 16
_BLANK_LINE_WITHIN = 1 << 20  # bytes; a document that goes on for longer is cut between two of its lines
# In these a byte 0x0A is always a line end, and one can begin to read after any of them.
_CUTTABLE = ("ascii", "utf-8", "utf-8-sig", "iso8859", "cp125", "koi8", "gb18030", "gbk", "gb2312", "big5", "euc")


@dataclass(frozen=True)
class CorpusOptions(Checked):
    """What decides the content of the shards, besides the text and the tokenizer."""

    documents: DocumentRule = option(
        "auto", help="Document: a file, a block between blank lines, or a line; auto: file if several."
    )
    encoding: str = option("auto", help="Encoding of text files: auto, or a codec such as iso-8859-1.")
    text_field: str = option("text", help="Field or column that holds the text: of JSON, Parquet and tables.")
    sheet: str | None = option(None, help="Name of the sheet of a spreadsheet; default: the first.")
    heldout_share: float = option(0.02, name="heldout", min=0.0001, max=0.5, help="Share of documents held out.")
    shard_tokens: int = option(SHARD_TOKENS, min=1, max=MOST_SHARD_TOKENS, help="Token ids per shard.")
    keep_duplicates: bool = option(False, help="Keep duplicate documents.")
    near_duplicates: float | None = option(
        None, above=0, max=1, help="Drop documents this similar to an earlier one, such as 0.8."
    )
    drop_repeated_lines: int | None = option(
        None, min=2, help="Drop lines that stand in at least this many documents, such as 10; the first copy stays."
    )
    words: Literal["jieba"] | None = option(None, help="Segment Chinese text into words, for whole-word masking.")

    def _check_together(self) -> None:
        # 缺的库开工之前就说；词典在派生进程之前载入一次，各进程共用
        if self.near_duplicates is not None:
            NearDuplicates(self.near_duplicates)
        if self.words:
            word_cutter()


@dataclass(frozen=True)
class InputChunk:
    """The input that one worker turns into partial shards: stretches of files of about `size` bytes of text."""

    number: int
    spans: tuple[Span, ...]
    size: int


def plan_chunks(sources: Sequence[Source], options: CorpusOptions) -> list[InputChunk]:
    """Divides sources into chunks of about the text that fills a shard, smaller where the corpus is small."""
    check_encoding(options.encoding)
    total = sum(source.text_size for source in sources)
    # 语料小时块也小：几个进程都有活干；大小只由输入决定，与进程数无关
    most = min(max(_SMALLEST_CHUNK, total / _CHUNKS), max(1.0, options.shard_tokens * _BYTES_PER_TOKEN))
    filled: list[list[tuple[Span, float]]] = []
    size = 0.0
    for span, weight in (piece for source in sources for piece in _pieces(source, options, most)):
        if not filled or size + weight > most:
            filled.append([])
            size = 0.0
        filled[-1].append((span, weight))
        size += weight
    return [
        InputChunk(number, tuple(span for span, _ in pieces), int(sum(weight for _, weight in pieces)))
        for number, pieces in enumerate(filled)
    ]


def read_chunk(chunk: InputChunk, options: CorpusOptions, *, empty: Counter[str] | None = None) -> Iterator[Document]:
    """Reads the documents of a chunk, streaming; a JSON line or Parquet row is one. `InputError` for a damaged file.

    Rows without text are counted in `empty` as by `texts_in`; where that is None, one warning counts them.
    """
    counted = Counter[str]() if empty is None else empty
    for span in chunk.spans:
        rule = options.documents if Source(span.name, 0).kind in ("text", "document") else "file"
        for lines in texts_in(span, options.text_field, options.sheet, counted):
            yield from documents_of(lines, span.name, rule, text=span.text)
    if empty is None:
        warn_of_empty(counted)


def _pieces(source: Source, options: CorpusOptions, size: float) -> Iterator[tuple[Span, float]]:
    """Cuts a source into pieces of about `size` bytes of text, where it can be cut; gives the bytes of each as well."""
    if source.kind == "parquet":
        for group, packed in enumerate(row_group_sizes(source.name, options.text_field)):
            yield Span(source.name, group, group + 1), Source(source.name, packed).text_size
        return
    encoding = _encoding_to_cut(source, options, size)
    if encoding is None:
        yield Span(source.name, encoding=options.encoding), source.text_size
        return
    if source.kind == "text" and options.documents == "file":
        spans = _parts_of_document(source, encoding, 0, source.size, size)
    else:
        by_line = source.kind == "jsonl" or options.documents == "line"
        spans = _between_documents(source, encoding, size, by_line=by_line)
    for span in spans:
        yield span, float((span.end or 0) - span.start)


def _between_documents(source: Source, encoding: str, size: float, *, by_line: bool) -> Iterator[Span]:
    """Cuts a file where one document ends and another begins, and a large document inside."""
    start, end = 0, source.size
    while end - start >= 1.5 * size:
        place = start + int(size)
        cut = next(_document_ends(source, encoding, place, end, by_line=by_line), end)
        if source.kind == "text" and cut - place > _BLANK_LINE_WITHIN:
            # 这里是一篇很长的文档：它之前的文档照常成段，它自己按行切开
            first = max(_document_ends(source, encoding, start, place, by_line=by_line), default=start)
            if first > start:
                yield Span(source.name, start, first, encoding)
            yield from _parts_of_document(source, encoding, first, cut, size)
        else:
            yield Span(source.name, start, cut, encoding)
        start = cut
    if start < end:
        yield Span(source.name, start, end, encoding)


def _parts_of_document(source: Source, encoding: str, begin: int, end: int, size: float) -> Iterator[Span]:
    """Cuts a stretch that is one document at a blank line, or at any line where none is near."""
    with open_source(source.name) as raw:
        raw.seek(begin)
        number = text_number(raw.read(_LINE_PIECE))
    start = begin
    while end - start >= 1.5 * size:
        place = start + int(size)
        far = place + _BLANK_LINE_WITHIN
        any_line = _document_ends(source, encoding, far, source.size, by_line=True)
        cut = next(_document_ends(source, encoding, place, far), 0) or next(any_line, end)
        if cut >= end:
            break
        yield Span(source.name, start, cut, encoding, number)
        start = cut
    # 切不开的（只有一行）仍是完整的一篇，号码由读它的人去定
    yield Span(source.name, start, end, encoding, number if start > begin else None)


def _encoding_to_cut(source: Source, options: CorpusOptions, size: float) -> str | None:
    """Returns the encoding of a source that is to be cut, or None for one that is read as a whole."""
    # 单元格里可以换行：CSV 从中间读起，就分不清哪里是一行；文档要先整个读出来
    if source.text_size < 1.5 * size or source.kind in ("table", "document"):
        return None
    # 名字里没有 .gz/.zst 的压缩文件，看头几个字节才知道：切开就再也解不开了
    if source.packed or is_packed(source.name):
        return None
    if source.kind != "text":
        return options.encoding
    encoding = detect_encoding(Span(source.name)) if options.encoding == "auto" else options.encoding
    return encoding if codecs.lookup(encoding).name.startswith(_CUTTABLE) else None


def _document_ends(source: Source, encoding: str, place: int, until: int, *, by_line: bool = False) -> Iterator[int]:
    """Yields the places after `place`, and not far behind `until`, where one document ends and another begins."""
    with open_source(source.name) as raw:
        # 从前一个字节读起：若 `place` 正是行首，它的第一行就是完整的
        position = max(0, place - 1)
        raw.seek(position)
        previous = b""
        complete = place == 0  # the line being read has been seen from its beginning
        while position < until and (piece := raw.readline(_LINE_PIECE)):
            position += len(piece)
            if not piece.endswith(b"\n"):
                previous, complete = b"", False
                continue
            is_end = complete and not piece.strip() and _ends_document(previous.decode(encoding, "replace"))
            if position > place and (is_end or by_line):
                yield position
            # 从行中间读起的第一行不完整，不能拿来判断
            previous, complete = (piece if complete else b""), True


def _ends_document(line: str) -> bool:
    last = (line.splitlines() or [""])[-1].strip()
    return bool(last) and not is_heading(last)
