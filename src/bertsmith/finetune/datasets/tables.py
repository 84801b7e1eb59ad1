"""Tables on disk -> rows of cells: TSV, CSV, JSON Lines and Parquet behind one shape.

Notable:
- in a TSV quotes have no meaning, as in the files of GLUE: a tab separates, a line ends
- a CSV follows RFC 4180: quoted cells may hold commas, line ends and doubled quotes
- JSON Lines and Parquet name their columns; a TSV or CSV has a header if it says so or its first row looks like one
- rows are read one after another and carry their place, so that every complaint can name it
- the library `datasets` writes class numbers, and the names of the classes beside them; names are what counts here
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bertsmith.data.reading.lines import MAX_LINE_LENGTH, numbered_lines, require_file
from bertsmith.errors import InputError

TableKind = Literal["tsv", "csv", "jsonl", "parquet"]
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""A decimal number as data files write it: no `nan`, no underscores, no digits of other scripts."""

TABLE_KINDS: dict[str, TableKind] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
"""The endings that tell a form; the files of CLUE are JSON Lines and end in `.json`."""

_LOOK_AHEAD = 1000
"""The first records of JSON Lines, whose keys are the columns."""


class Cell(NamedTuple):
    """What stands in a row for one part of an example.

    Attributes:
        place: the file and the row.
        what: names the cell in messages.
        value: as the form of the table holds it.
        names: of the classes that a whole number in the cell stands for; empty where it is a number.
    """

    place: str
    what: str
    value: object
    names: Sequence[str] = ()

    def text(self) -> str:
        """Returns the cell as text without the white space around it; a number as it is written in JSON.

        Raises:
            InputError: the cell is empty, or holds something that is neither text nor a number, or a class without a
                name.
        """
        value = self.value
        if self.names and isinstance(value, int):
            # Hub 上没有公开标签的测试集用 -1 表示“没有标签”
            if not 0 <= value < len(self.names):
                raise InputError(f"{self.place}: the {self.what} {value} is none of the {len(self.names)} classes")
            value = self.names[value]
        if isinstance(value, Decimal):
            value = format(value, "f")
        if isinstance(value, (bool, int, float)):
            # NaN 是 pandas 写下的空格子
            value = None if value != value else json.dumps(value)
        if value is not None and not isinstance(value, str):
            raise InputError(f"{self.place}: the {self.what} is a {type(value).__name__}, not text")
        text = (value or "").strip()
        if not text:
            raise InputError(f"{self.place} has an empty {self.what}")
        require_unicode(self.place, text)
        return text


ClassNames = Mapping[int, Sequence[str]]
"""Number of a column → the names of the classes whose numbers it holds."""


class Row(NamedTuple):
    """The cells of one example and where they stand: `a.tsv: line 7`, or `a.parquet: row 7`."""

    place: str
    cells: Sequence[object]
    class_names: ClassNames | None = None

    def cell(self, numbers: Sequence[int], what: str) -> Cell:
        """Returns one cell, or several as one that holds their list."""
        value = self.cells[numbers[0]] if len(numbers) == 1 else [self.cells[number] for number in numbers]
        return Cell(self.place, what, value, (self.class_names or {}).get(numbers[0], ()))


@dataclass(frozen=True)
class Table:
    """Rows that can be read once.

    Attributes:
        path: the file, or the name of a table in memory.
        first: the column names, or the first row of a file that may be without a header.
        has_names: whether `first` is names by the form of the file; a TSV or CSV must be looked at.
        rows: all rows; where `has_names` is False, `first` is among them.
    """

    path: Path | str
    first: tuple[str, ...]
    has_names: bool
    rows: Iterator[Row]


def kind_of(path: Path) -> TableKind:
    """Tells the form of a table by its ending; what has no known ending is tab-separated."""
    return TABLE_KINDS.get(ending_of(path), "tsv")


def ending_of(path: Path) -> str:
    """Returns the ending of a file in lower case, that of a packed one without `.gz` or `.zst`."""
    return Path(path.name.lower().removesuffix(".gz").removesuffix(".zst")).suffix


def open_table(path: Path, kind: TableKind, encoding: str = "auto") -> Table:
    """Opens a table and reads as far as its first row; of JSON Lines as far as the first 1,000.

    Args:
        path: the file; all but Parquet may be packed (`.gz`, `.zst`).
        kind: its form.
        encoding: `auto` or a codec's name; Parquet has its own.

    Raises:
        InputError: the file is missing, empty, damaged, binary or in another encoding. Reading the rows raises it for
            ragged or malformed ones; the message names file and line.
    """
    require_file(path)
    if kind == "parquet":
        return _open_parquet(path)
    if kind == "jsonl":
        return _open_json_lines(path, encoding)
    rows = _csv_rows(path, encoding) if kind == "csv" else _tsv_rows(path, encoding)
    first = next(rows, None)
    if first is None:
        tab = "TAB" if kind == "tsv" else "COMMA"
        raise InputError(f"{path}: holds no line; give one example a line as text {tab} label")
    names = tuple(str(cell).strip() for cell in first.cells)
    other = next((separator for separator in ";\t" if separator in names[0]), None)
    # 欧洲的表格软件用分号存 CSV：整行成了一格，说“缺标签列”只会把人引偏
    if kind == "csv" and len(names) == 1 and other is not None:
        raise InputError(f"{path}: its columns are separated by {other!r}; write commas, or tabs and call it .tsv")
    return Table(path, names, False, _of_one_width(chain([first], rows), kind))


def require_unicode(place: str, text: str) -> None:
    """Makes sure that a text has no half characters, which JSON can write and nothing can encode.

    Raises:
        InputError: it has one.
    """
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{place} holds half of a surrogate pair (\\ud800 to \\udfff); write the character")


def listed(names: Sequence[str]) -> str:
    """Returns names for a message of one line: the first of them, control characters written out."""
    # 只有回车符的文件会把整个文件读成一行表头：消息仍须是短短的一行
    shown = [name[:40] if name.isprintable() else repr(name[:40]) for name in names[:12]]
    return ", ".join(shown) + (", ..." if len(names) > 12 else "")


def _tsv_rows(path: Path, encoding: str) -> Iterator[Row]:
    for number, line in numbered_lines(path, encoding):
        # 只有制表符的行不是空行：它缺了内容，要报出来
        if line.strip() or "\t" in line:
            yield Row(f"{path}: line {number}", line.split("\t"))


def _csv_rows(path: Path, encoding: str) -> Iterator[Row]:
    # 解析器自己数行：引号内可以换行，一条记录从它的第一行算起
    # 标准库默认每格至多 131,072 个字符，长文章会被误报成引号没有闭合
    csv.field_size_limit(MAX_LINE_LENGTH)
    reader = csv.reader((f"{line}\n" for _, line in numbered_lines(path, encoding)), strict=True)
    start = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # 标准库对单独的回车符建议换一种打开方式，而这里没有什么可以换
            reason = (
                "a carriage return in a cell without quotes); quote the cell or remove it"
                if "new-line character" in str(error)
                else f"{error}); look for a quote that is not closed or not doubled"
            )
            raise InputError(f"{path}: line {start} is not valid CSV ({reason}") from None
        if len(cells) > 1 or any(cell.strip() for cell in cells):
            yield Row(f"{path}: line {start}", cells)
        start = reader.line_num + 1


def _of_one_width(rows: Iterator[Row], kind: TableKind) -> Iterator[Row]:
    width = None
    for row in rows:
        width = width or len(row.cells)
        if len(row.cells) != width:
            check = "tabs" if kind == "tsv" else "commas and quotes"
            raise InputError(f"{row.place} has {len(row.cells)} columns, the first has {width}; check its {check}")
        yield row


def _open_json_lines(path: Path, encoding: str) -> Table:
    records = ((f"{path}: line {number}", record) for number, record in _json_records(path, encoding))
    table = table_of_records(path, records)
    if table is None:
        raise InputError(f"{path}: holds no line; give one JSON object a line")
    return table


def table_of_records(path: Path | str, records: Iterator[tuple[str, Mapping[str, object]]]) -> Table | None:
    """Returns a table of records, each with its place; the columns are the keys of the first 1,000. None for none."""
    # 第一条记录可能恰好缺一个可省的键（如空的 labels）：列名取自开头的许多条
    head = list(islice(records, _LOOK_AHEAD))
    if not head:
        return None
    names = tuple(dict.fromkeys(name for _, record in head for name in record))
    # 缺的键记为 None：用不到的列缺了无妨，用到的列读取时会报出行号
    rows = (Row(place, [record.get(name) for name in names]) for place, record in chain(head, records))
    return Table(path, tuple(map(str, names)), True, rows)


def _json_records(path: Path, encoding: str) -> Iterator[tuple[int, dict[str, object]]]:
    for number, line in numbered_lines(path, encoding):
        if not line.strip():
            continue
        if re.match(r"\s*\[\s*(\{|$)", line):
            raise InputError(f"{path}: line {number} begins a JSON array; write one object a line")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise InputError(f"{path}: line {number} is not valid JSON ({reason}); repair or remove it") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}: line {number} is no JSON object; write {{...}}, one a line")
        yield number, record


def _open_parquet(path: Path) -> Table:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        # Parquet 自己带压缩，外面再包一层就不能跳着读了
        packed = path.suffix.lower() in (".gz", ".zst")
        advice = "unpack it first" if packed else "make it again"
        raise InputError(f"{path}: not a readable Parquet file ({_first_line(error)}); {advice}") from None
    names = tuple(file.schema_arrow.names)
    return Table(path, names, True, _parquet_rows(path, file, class_names_of(names, _written_features(file))))


def class_names_of(columns: Sequence[str], features: Mapping[str, object]) -> ClassNames:
    """Returns the names of the classes in each column that holds their numbers.

    Args:
        columns: of the table.
        features: of `datasets`, by column: its objects, or what it writes of them as JSON.
    """
    found = {number: _names_in(features.get(name)) for number, name in enumerate(columns)}
    return {number: names for number, names in found.items() if names}


def _names_in(feature: object) -> tuple[str, ...]:
    """Returns the names of a class label, or of the class labels in a list; none for anything else."""

    def part(name: str) -> object:
        return feature.get(name) if isinstance(feature, Mapping) else getattr(feature, name, None)

    names, inner = part("names"), part("feature")
    if isinstance(names, (list, tuple)):
        return tuple(map(str, names))
    return () if inner is None else _names_in(inner)


def _written_features(file: pq.ParquetFile) -> Mapping[str, object]:
    """Returns what `datasets` wrote of the columns into a file; nothing for a file from elsewhere."""
    written = (file.schema_arrow.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(written)["info"]["features"] if written else {}
    except (ValueError, TypeError, KeyError):
        # 别的程序也可能写这个键：读不懂就当没有
        features = {}
    return features if isinstance(features, Mapping) else {}


def _parquet_rows(path: Path, file: pq.ParquetFile, class_names: ClassNames) -> Iterator[Row]:
    number = 0
    try:
        for batch in file.iter_batches(batch_size=1024, use_threads=False):
            for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number += 1
                yield Row(f"{path}: row {number}", cells, class_names)
    except UnicodeDecodeError as error:
        # 一批的列先整个转换：坏字节在这一批的哪一行，这里不知道
        raise InputError(
            f"{path}: text after row {number} is not UTF-8 ({error.reason}); write the column with another encoder"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: damaged after row {number} ({_first_line(error)}); make it again") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
