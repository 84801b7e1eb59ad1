"""Text files, JSON Lines, Parquet, and rows in memory -> their texts, one after another, streaming.

Rows in memory are data frames, data sets of the library `datasets`, or lists of dictionaries. Neither pandas nor
`datasets` is imported: an object is known by what it can do, so that both may be missing. What is wrong with a row is
said with its place, `train: row 7 (from 0)`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import pyarrow as pa

from bertsmith.data.reading.documents import lines_of
from bertsmith.data.reading.lines import record_lines, split_lines
from bertsmith.data.reading.sources import (
    Source,
    Span,
    check_encoding,
    few_names,
    lines_before,
    local_copy,
    open_source,
)
from bertsmith.data.reading.tables import (
    first_line,
    inner_value,
    is_workbook,
    kind_of,
    listed,
    objects_in,
    open_table,
    parquet_file,
)
from bertsmith.errors import InputError
from bertsmith.files import atomic_path

_PARQUET_ROWS = 64


def texts_in(
    span: Span, field: str, sheet: str | None = None, empty: Counter[str] | None = None
) -> Iterator[Iterable[str]]:
    """Yields the lines of each text of a span: a file, a document, or the `field` (or column) of a row of records.

    Rows whose text is null, empty or blank are skipped; `empty` counts them by the name of the file.
    """
    kind = Source(span.name, 0).kind
    if sheet is not None and not is_workbook(span.name):
        raise InputError(f"{span}: --sheet is for spreadsheets, and this is none; leave it out")
    if kind in ("text", "document"):
        yield lines_of(span, span.encoding)
        return
    if kind == "table":
        texts = read_table(span, field, sheet)
    else:
        texts = {"jsonl": read_json_lines, "parquet": read_parquet}[kind](span, field)
    for text in texts:
        if text and not text.isspace():
            yield split_lines(text)
        elif empty is not None:
            empty[span.name] += 1


def warn_of_empty(empty: Counter[str]) -> None:
    """Warns once of rows without text, if there are any; `empty` as by `texts_in`."""
    if empty:
        said = f"{few_names(list(empty), 3)}: skipped {empty.total():,} row(s) without text"
        warnings.warn(said, stacklevel=3)


def read_all_lines(sources: Iterable[Source], *, encoding: str, field: str, sheet: str | None = None) -> Iterator[str]:
    """Reads the lines of sources, cut as for a corpus, so that a vocabulary sees the same words."""
    check_encoding(encoding)
    empty = Counter[str]()
    for source in sources:
        for lines in texts_in(Span(source.name, encoding=encoding), field, sheet, empty):
            yield from lines
    warn_of_empty(empty)


def read_json_lines(span: Span, field: str) -> Iterator[str]:
    """Reads one field of every line of a JSON Lines file, plain, gzip or zstd; null is an empty text."""

    def place_of_line(number: int) -> str:
        return f"{span}: line {lines_before(span) + number}"

    outer, *path = field.split(".")
    for number, record in objects_in(enumerate(record_lines(span), 1), place_of_line):
        if field not in record and path and outer in record:
            # 嵌套的对象里的字段：review.body
            record = {field: inner_value(record[outer], path)}
        if field not in record:
            there = f"{place_of_line(number)} has no field {field!r} (it has {listed(record)})"
            raise InputError(f"{there}; name the right one with --text-field")
        text = record[field]
        if text is not None and not isinstance(text, str):
            what = f"{place_of_line(number)}: field {field!r} holds {type(text).__name__}"
            raise InputError(f"{what}, not text; name another with --text-field")
        yield text or ""


def read_table(span: Span, column: str, sheet: str | None = None) -> Iterator[str]:
    """Reads a column of a table with a header: CSV, TSV, JSON or a spreadsheet; null is an empty text."""
    with local_copy(span.name) as path:
        table = open_table(path, kind_of(path), span.encoding, sheet)
        table.add_nested([column])
        if column not in table.first:
            rows = [row.cells for row in table.look_ahead() if not row.fault]
            longest = max(range(len(table.first)), key=lambda at: sum(len(str(cells[at])) for cells in rows))
            hint = f", such as --text-field {table.first[longest]!r}, whose texts are the longest" if rows[1:] else ""
            there = f"{span}: has no column {column!r} (it has {listed(table.first)})"
            raise InputError(f"{there}; name the right one with --text-field{hint}")
        place = table.first.index(column)
        for row in table.rows if table.has_names else itertools.islice(table.rows, 1, None):
            is_empty = not row.fault and row.cells[place] in (None, "")
            yield "" if is_empty else row.cell([place], column).text()


def row_group_sizes(name: str, column: str) -> list[int]:
    """Returns the packed bytes of a column in every row group of a Parquet file."""
    with open_source(name) as raw:
        metadata = parquet_file(name, raw).metadata
        groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
        columns = ([group.column(n) for n in range(group.num_columns)] for group in groups)
        return [sum(one.total_compressed_size for one in group if one.path_in_schema == column) for group in columns]


def read_parquet(span: Span, column: str) -> Iterator[str]:
    """Reads a text column, or a field of structs, of row groups of a Parquet file; null is an empty text."""
    with open_source(span.name) as raw:
        file = parquet_file(span.name, raw)
        schema = file.schema_arrow
        outer, *path = [column] if column in schema.names else column.split(".")
        kind = _inner_type(schema.field(outer).type, path) if outer in schema.names else None
        if kind is None:
            there = f"{span}: has no column {column!r} (it has {listed(schema.names)})"
            raise InputError(f"{there}; name the right one with --text-field")
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
                    yield str(inner_value(value.as_py(), path) or "")
        except UnicodeDecodeError as error:
            # Parquet 的字符串列不检查编码：别的程序可以写进任何字节
            raise InputError(
                f"{span}: row {row} of column {column!r} is not UTF-8 ({error.reason}); write the file again from the"
                " right encoding"
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{span}: damaged Parquet file ({first_line(error)}); make it again") from None


def _inner_type(kind: pa.DataType, path: Sequence[str]) -> pa.DataType | None:
    """Returns the type of what stands in nested structs under the names of a path; None where nothing does."""
    for name in path:
        place = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if place < 0:
            return None
        kind = kind.field(place).type
    return kind


@runtime_checkable
class DataFrame(Protocol):
    """What is used of a data frame of pandas."""

    columns: Any
    itertuples: Callable[..., Iterable[tuple[Any, ...]]]


Rows = DataFrame | Iterable[Mapping[str, Any]]
"""A data frame, or whatever yields a dictionary for each row, such as a list or a `datasets.Dataset`."""
FileNames = str | Path | Sequence[str | Path]
"""A file, folder, pattern or URL, or several."""


def file_names(given: FileNames | Rows) -> list[str | Path] | None:
    """Returns the names of files as a list; None for what is no name, nor a sequence of names alone."""
    if isinstance(given, (str, Path)):
        return [given]
    if isinstance(given, Sequence) and all(isinstance(one, (str, Path)) for one in given):
        return list(given)
    return None


@contextmanager
def files_of(text: FileNames | Rows, folder: Path, column: str) -> Iterator[Sequence[str | Path]]:
    """Yields the files that were named; or one of JSON Lines in `folder`, to which rows are written for the block.

    A file lets several processes read the rows, and a killed call go on.
    """
    names = file_names(text)
    if names is not None:
        yield names
        return
    digest, holds_text = hashlib.sha256(), False
    with atomic_path(folder / ".rows.jsonl") as temporary, temporary.open("wb") as sink:
        # 空的也写下：读这个文件的人一并计数
        for one in _column_texts(cast(Rows, text), column):
            line = json.dumps({column: one}).encode() + b"\n"
            digest.update(line)
            sink.write(line)
            holds_text = holds_text or bool(one)
        if not holds_text:
            raise InputError(f"text: no row holds text in the column {column!r}; name another with text_field")
    # 名字说明内容，时间不说明什么：被杀后再来，同样的行就是同一份请求，别的行一定不是
    file = (folder / ".rows.jsonl").replace(folder / f"rows-{digest.hexdigest()[:16]}.jsonl")
    os.utime(file, (0, 0))
    try:
        yield [file]
    finally:
        file.unlink(missing_ok=True)


def _column_texts(rows: Rows, column: str) -> Iterator[str]:
    for place, record in records_of(rows, "text"):
        if column not in record:
            there = f"{place} has no column {column!r} (it has {listed(record)})"
            raise InputError(f"{there}; name the right one with text_field")
        text = record[column]
        if text is not None and not isinstance(text, str):
            raise InputError(f"{place}: column {column!r} holds {type(text).__name__}, not text; see text_field")
        yield text or ""


def require_file_names(given: FileNames, name: str, instead: str) -> list[str]:
    """Returns the names of files as a list, for work that needs files."""
    names = file_names(given)
    if names is None:
        raise InputError(f"{name}: is a {type(given).__name__}, and files are needed; {instead}")
    return [str(one) for one in names]


def records_of(rows: Rows, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each row as a dictionary with its place; `name` stands for the file in messages, such as `train`."""
    if isinstance(rows, Mapping):
        # DatasetDict 和“列名 → 列”的字典都是 Mapping：猜不出要哪一个
        what = f"{name}: is a dictionary of {listed(rows)}"
        raise InputError(f"{what}; give one of its splits, or a dictionary for each row")
    if isinstance(rows, DataFrame):
        columns = [str(column) for column in rows.columns]
        cells_of = rows.itertuples(index=False, name=None)
        records: Iterable[Any] = (dict(zip(columns, cells, strict=True)) for cells in cells_of)
    elif isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise InputError(f"{name}: is a {type(rows).__name__}; give a file, a data frame or a list of dictionaries")
    else:
        records = rows
    for number, record in enumerate(records):
        place = place_of(name, number)
        if not isinstance(record, Mapping):
            raise InputError(f"{place} is a {type(record).__name__}, not a dictionary of its columns")
        yield place, plain(record)


def place_of(name: str, number: int) -> str:
    """Returns what a row is called; counted from 0, as in `df.iloc[n]` and `rows[n]`."""
    return f"{name}: row {number} (from 0)"


def plain(value: Any) -> Any:
    """Returns a value as JSON has it: arrays as lists, numbers as Python's own, what is missing as None."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    # numpy 与 torch 的数和数组都有 tolist
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    # pandas 的缺失值：NaN 与自己不等，NA 的比较没有真假
    return None if type(value).__name__ in ("NAType", "NaTType") or value != value else value
