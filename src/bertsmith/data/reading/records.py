"""Text files, JSON Lines and Parquet -> their texts, one after another, streaming."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from bertsmith.data.reading.decoding import check_encoding
from bertsmith.data.reading.lines import read_lines, split_lines
from bertsmith.data.reading.sources import Source, Span, lines_before, open_source, read_chunks
from bertsmith.errors import InputError

_MAX_RECORD_BYTES = 1 << 28
_PARQUET_ROWS = 64


def texts_in(span: Span, field: str) -> Iterator[Iterable[str]]:
    """Reads the texts of a span: a text file is one text, a JSON line or a Parquet row is one.

    Args:
        span: of a file of any kind.
        field: of JSON lines, or column of Parquet, that holds the text.

    Yields:
        The lines of each text.

    Raises:
        InputError: the encoding is not known, or the file is damaged or malformed; the message names it and the line.
    """
    kind = Source(span.name, 0).kind
    if kind == "text":
        yield read_lines(span, span.encoding)
    else:
        records = read_json_lines(span, field) if kind == "jsonl" else read_parquet(span, field)
        yield from map(split_lines, records)


def read_all_lines(sources: Iterable[Source], *, encoding: str, field: str) -> Iterator[str]:
    """Reads the text of sources from the first to the last, for learning a vocabulary.

    Args:
        sources: of `find_sources`.
        encoding: `auto` or a codec, of text files.
        field: as for `texts_in`.

    Yields:
        Lines, cut as for a corpus, so that both see the same words.

    Raises:
        InputError: as for `texts_in`.
    """
    check_encoding(encoding)
    for source in sources:
        for lines in texts_in(Span(source.name, encoding=encoding), field):
            yield from lines


def read_json_lines(span: Span, field: str) -> Iterator[str]:
    """Reads one field of every line of a JSON Lines file, plain, gzip or zstd.

    Args:
        span: begins at the beginning of a line and ends at the end of one.
        field: holds the text; null counts as no text.

    Yields:
        The texts in order.

    Raises:
        InputError: a line is no JSON object or lacks the field; the message names the line.
    """
    for number, line in enumerate(_byte_lines(span), 1):
        if not line.strip():
            continue
        try:
            # 有些编辑器在文件开头写 BOM，json.loads 不认它
            record = json.loads(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise InputError(
                f"{span}: line {lines_before(span) + number} is not valid JSON ({reason}); "
                "repair the line, or remove it"
            ) from None
        if not isinstance(record, dict):
            raise InputError(f'{span}: line {lines_before(span) + number} is no JSON object; write {{"{field}": …}}')
        if field not in record:
            raise InputError(
                f"{span}: line {lines_before(span) + number} has no field {field!r} (it has {_listed(record)}); "
                "name the right one with --text-field"
            )
        text = record[field]
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"{span}: line {lines_before(span) + number}: field {field!r} holds {type(text).__name__}, not text; "
                "name another with --text-field"
            )
        if text:
            yield text


def row_group_sizes(name: str, column: str) -> list[int]:
    """Returns the packed bytes of a column in every row group of a Parquet file.

    Raises:
        InputError: the file cannot be read, or is none.
    """
    with open_source(name) as raw:
        metadata = _parquet(name, raw).metadata
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        return [
            sum(
                group.column(n).total_compressed_size
                for n in range(group.num_columns)
                if group.column(n).path_in_schema == column
            )
            for group in groups
        ]


def read_parquet(span: Span, column: str) -> Iterator[str]:
    """Reads a text column of row groups of a Parquet file; null counts as no text.

    Raises:
        InputError: the file is damaged, has no such column of text, or a row of it is not UTF-8.
    """
    with open_source(span.name) as raw:
        file = _parquet(span.name, raw)
        schema = file.schema_arrow
        if column not in schema.names:
            raise InputError(
                f"{span}: has no column {column!r} (it has {_listed(schema.names)}); "
                "name the right one with --text-field"
            )
        kind = schema.field(column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InputError(f"{span}: column {column!r} holds {kind}, not text; name another with --text-field")
        end = file.metadata.num_row_groups if span.end is None else span.end
        row = sum(file.metadata.row_group(group).num_rows for group in range(span.start))
        try:
            # 逐小批读取、不开线程：一个行组再大，内存里也只有几十行
            for batch in file.iter_batches(
                _PARQUET_ROWS, row_groups=list(range(span.start, end)), columns=[column], use_threads=False
            ):
                for value in batch.column(0):
                    row += 1
                    if text := value.as_py():
                        yield text
        except UnicodeDecodeError as error:
            # Parquet 的字符串列不检查编码：别的程序可以写进任何字节
            raise InputError(
                f"{span}: row {row} of column {column!r} is not UTF-8 ({error.reason}); write the file again from the"
                " right encoding"
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{span}: damaged Parquet file ({_first_line(error)}); make it again") from None


def _parquet(name: str, raw: object) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(raw, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{name}: not a readable Parquet file ({_first_line(error)}); make it again") from None


def _byte_lines(span: Span) -> Iterator[bytes]:
    number, rest = 0, b""
    for chunk in itertools.chain(read_chunks(span), [b""]):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop() if chunk else b""
        if len(rest) > _MAX_RECORD_BYTES:
            raise InputError(
                f"{span}: line {lines_before(span) + number + len(lines) + 1} is longer than {_MAX_RECORD_BYTES >> 20}"
                " MiB; is this JSON Lines, one object a line?"
            )
        number += len(lines)
        yield from lines


def _listed(names: object) -> str:
    found = [str(name) for name in names]  # type: ignore[attr-defined]
    return ", ".join(found[:6]) + (", …" if len(found) > 6 else "") if found else "none"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
