"""Tables on disk -> rows of cells: TSV, CSV, JSON, Parquet and spreadsheets behind one shape.

- in a TSV quotes have no meaning, as in the files of GLUE: a tab separates, a line ends; unless its first lines have
  one number of columns only if quotes have, as pandas writes cells with line ends
- a CSV follows RFC 4180: quoted cells may hold commas, line ends and doubled quotes; its separator is the first of
  comma, semicolon, tab and bar that gives its first lines one number of columns
- a JSON file is an object a line, a list of objects, or one object with such a list in it
- a spreadsheet gives the cells of one sheet, written as they would stand in a CSV
- JSON Lines and Parquet name their columns; other tables have a header if they say so or their first row looks like one
- the library `datasets` writes class numbers, and the names of the classes beside them; names are what counts here
"""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bertsmith.data.reading.documents import sheet_of
from bertsmith.data.reading.lines import MAX_LINE_LENGTH, numbered_lines, read_text, require_file
from bertsmith.data.reading.sources import detect_encoding, few_names, read_chunks
from bertsmith.errors import InputError
from bertsmith.files import HALF_CHARACTER, printable

TableKind = Literal["tsv", "csv", "jsonl", "parquet", "workbook"]
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""A decimal number as data files write it: no `nan`, no underscores, no digits of other scripts."""

TABLE_KINDS: dict[str, TableKind] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    **dict.fromkeys((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), "workbook"),
}
"""The endings that tell a form; the files of CLUE are JSON Lines and end in `.json`."""

OBJECT_OF_JSON = re.compile(r"\s*(\{|\[\s*(\{|$))")
"""How a first line begins with an object, or with a list of them."""

_SEPARATORS = ",;\t|"
_LOOKED_AT = 200
"""Rows by whose content columns are found."""

_LOOK_AHEAD = 1000
"""The first records of JSON Lines, whose keys are the columns."""


class Cell(NamedTuple):
    """What stands in a row for one part of an example; `names` are of the classes whose numbers it holds, if any."""

    place: str
    what: str
    value: object
    names: Sequence[str] = ()

    def text(self) -> str:
        """Returns the cell as text without the white space around it; a number as it is written in JSON."""
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
    fault: str = ""

    def cell(self, numbers: Sequence[int], what: str, header: Sequence[str] = ()) -> Cell:
        """Returns one cell, or several as one that holds their list; with a header, by the names of their columns."""
        if self.fault:
            raise InputError(self.fault)
        value: object = self.cells[numbers[0]]
        if len(numbers) > 1:
            value = {header[n]: self.cells[n] for n in numbers} if header else [self.cells[n] for n in numbers]
        return Cell(self.place, what, value, (self.class_names or {}).get(numbers[0], ()))


@dataclass
class Table:
    """Rows that can be read once.

    Attributes:
        first: the column names, or the first row of a file that may be without a header.
        has_names: whether `first` is names by the form of the file; a TSV or CSV must be looked at.
        rows: all rows; where `has_names` is False, `first` is among them.
        form: what the file is, for people, such as `CSV with ';' between its columns, utf-8`.
    """

    path: Path | str
    first: tuple[str, ...]
    has_names: bool
    rows: Iterator[Row]
    form: str = ""

    @property
    def has_header(self) -> bool:
        """Whether `first` is names, once its columns have been found."""
        head = self.look_ahead()[:1]
        return self.has_names or not head or tuple(str(cell).strip() for cell in head[0].cells) != self.first

    def look_ahead(self) -> list[Row]:
        """Returns the first rows, which are still read afterwards."""
        head = list(islice(self.rows, _LOOKED_AT))
        self.rows = chain(head, self.rows)
        return head

    def add_nested(self, names: Iterable[object]) -> None:
        """Adds a column for each name such as `review.body`: that field of the objects in the column `review`."""
        new = [name for name in names if isinstance(name, str) and "." in name and name not in self.first]
        paths = {name: name.split(".") for name in new if name.split(".")[0] in self.first}
        if not paths:
            return
        places, rows = {name: self.first.index(path[0]) for name, path in paths.items()}, self.rows
        self.first = (*self.first, *paths)
        inner = ((row, [inner_value(row.cells[places[name]], paths[name][1:]) for name in paths]) for row in rows)
        self.rows = (row._replace(cells=[*row.cells, *values]) for row, values in inner)


def inner_value(value: object, path: Sequence[str]) -> object:
    """Returns what stands in nested objects under the names of a path; None where one of them is missing."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def described(table: Table, parts: Mapping[int, str], *, has_header: bool) -> tuple[str, dict[str, str]]:
    """Returns what a table is, for people, and name of a column → the part that it is read as; empty where not read.

    `parts` are by the number of the column; `has_header` says whether the first row is names.
    """
    header = "" if table.has_names else ", with a header" if has_header else ", without a header"
    counts = Counter(table.first)
    # 同名的两列要分得开：读了的那一列不能说成没有读
    names = [
        f"column {n}" if not has_header else f"{name} (column {n})" if counts[name] > 1 else name
        for n, name in enumerate(table.first)
    ]
    # 读了其中一个字段的那一列，自己不算没有读
    inner = {name.partition(".")[0] for number, name in enumerate(names) if "." in name and number in parts}
    read = {name: parts.get(number, "") for number, name in enumerate(names)}
    return table.form + header, {name: part for name, part in read.items() if part or name not in inner}


def columns_in_a_line(columns: Mapping[str, str]) -> str:
    """Says which columns are read as what, and which are not read, as `described` has them; empty for none."""
    read = [f"{part} from {name}" for name, part in columns.items() if part]
    rest = [name for name, part in columns.items() if not part]
    said = "; not read: ".join(filter(None, (", ".join(read), few_names(rest))))
    return f"columns: {printable(said)}" if said else ""


def kind_of(path: Path) -> TableKind:
    """Tells the form of a table by its ending; what has no known ending is tab-separated."""
    return TABLE_KINDS.get(ending_of(path), "tsv")


def is_workbook(name: str | Path) -> bool:
    """Tells a spreadsheet by its ending."""
    return kind_of(Path(name)) == "workbook"


def ending_of(path: Path) -> str:
    """Returns the ending of a file in lower case, that of a packed one without `.gz` or `.zst`."""
    return Path(path.name.lower().removesuffix(".gz").removesuffix(".zst")).suffix


def open_table(
    path: Path, kind: TableKind, encoding: str = "auto", sheet: str | None = None, *, ahead: int = _LOOK_AHEAD
) -> Table:
    """Opens a table and reads as far as its first row; of JSON the first `ahead` records, which have the columns."""
    require_file(path)
    if kind == "parquet":
        file = parquet_file(path, path)
        columns = tuple(file.schema_arrow.names)
        return Table(path, columns, True, _parquet_rows(path, file), "Parquet")
    if kind == "workbook":
        form, rows = "spreadsheet", _sheet_rows(path, sheet)
    else:
        # 编码要读完整个文件才知道：只找一次
        encoding = detect_encoding(path) if encoding == "auto" else encoding
        if kind == "jsonl":
            table = table_of_records(path, _json_records(path, encoding), ahead)
            if table is None:
                raise InputError(f"{path}: holds no line; give one JSON object a line")
            return replace(table, form=f"JSON, {encoding}")
        separator = _separator_of(path, encoding) if kind == "csv" else "\t"
        if kind == "tsv" and not _has_quotes(path, encoding):
            # 只有制表符的行不是空行：它缺了内容，要报出来
            lines = ((number, line) for number, line in numbered_lines(path, encoding) if line.strip() or "\t" in line)
            rows = (Row(f"{path}: line {number}", line.split("\t")) for number, line in lines)
        else:
            rows = _csv_rows(path, encoding, separator)
        between = "tabs" if separator == "\t" else repr(separator)
        form = f"{kind.upper()} with {between} between its columns, {encoding}"
    first = next(rows, None)
    if first is None:
        tab = "TAB" if kind == "tsv" else "COMMA"
        raise InputError(f"{path}: holds no line; give one example a line as text {tab} label")
    names = tuple(str(cell).strip() for cell in first.cells)
    return Table(path, names, False, _of_one_width(chain([first], rows), kind), form)


def require_unicode(place: str, text: str) -> None:
    """Makes sure that a text has no half characters, which JSON can write and nothing can encode."""
    if not text.isascii() and HALF_CHARACTER.search(text):
        raise InputError(f"{place} holds half of a surrogate pair (\\ud800 to \\udfff); write the character")


def listed(given: Iterable[object]) -> str:
    """Returns names for a message of one line: the first of them, control characters written out."""
    names = list(map(str, given))
    # 只有回车符的文件会把整个文件读成一行表头：消息仍须是短短的一行
    return few_names([name[:40] if name.isprintable() else repr(name[:40]) for name in names]) or "none"


def _has_quotes(path: Path, encoding: str) -> bool:
    """Tells whether quotes have a meaning in a TSV: only with them do its first lines have one number of columns."""
    lines = _first_lines(path, encoding)
    widths = {line.count("\t") for line in lines if line.strip()}
    return len(widths) > 1 and '\t"' in "\t".join(lines) and _is_even(lines, "\t")


def _separator_of(path: Path, encoding: str) -> str:
    """Returns what separates the columns of a CSV: half of Europe's spreadsheets write semicolons."""
    lines = _first_lines(path, encoding)
    # 哪个都不齐：首行用它能分开的那个，错在哪一行由读的时候说
    likely = (one for one in _SEPARATORS if lines and len(next(csv.reader(lines[:1], delimiter=one))) > 1)
    return next((one for one in _SEPARATORS if _is_even(lines, one)), next(likely, ","))


def _first_lines(path: Path, encoding: str) -> list[str]:
    return [f"{line}\n" for _, line in islice(numbered_lines(path, encoding), 30)]


def _is_even(lines: Sequence[str], separator: str) -> bool:
    """Tells whether a separator cuts rows into one number of cells, more than one."""
    csv.field_size_limit(MAX_LINE_LENGTH)
    reader, widths = csv.reader(lines, delimiter=separator, strict=True), set[int]()
    try:
        for cells in reader:
            widths |= {len(cells)} if any(cells) else set()
    except csv.Error:
        # 引号里的换行可能正好断在最后一行：前面的行已经说明了分隔符
        if reader.line_num < len(lines):
            return False
    return len(widths) == 1 and widths != {1}


def _csv_rows(path: Path, encoding: str, separator: str = ",") -> Iterator[Row]:
    # 解析器自己数行：引号内可以换行，一条记录从它的第一行算起
    # 标准库默认每格至多 131,072 个字符，长文章会被误报成引号没有闭合
    csv.field_size_limit(MAX_LINE_LENGTH)
    reader = csv.reader((f"{line}\n" for _, line in numbered_lines(path, encoding)), delimiter=separator, strict=True)
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


def _sheet_rows(path: Path, sheet: str | None) -> Iterator[Row]:
    """Yields the rows of a sheet, each cell as a CSV has it; says which sheet it took of several."""
    found = sheet_of(path, sheet)
    if sheet is None and len(found["names"]) > 1:
        said = f"reads the sheet {found['name']!r}, the first of {len(found['names'])}; --sheet names another"
        warnings.warn(f"{path}: {said}", stacklevel=4)
    yield from (Row(f"{path}: row {number}", cells) for number, cells in found["rows"])


def _of_one_width(rows: Iterator[Row], kind: TableKind) -> Iterator[Row]:
    width = None
    for row in rows:
        width = width or len(row.cells)
        if len(row.cells) != width:
            check = "tabs" if kind == "tsv" else "separators and quotes"
            reason = f"{row.place} has {len(row.cells)} columns, the first has {width}; check its {check}"
            # 不在这里中断迭代：跳过有毛病的行时，后面的行还要接着读
            row = row._replace(fault=reason)
        yield row


def table_of_records(
    path: Path | str, records: Iterator[tuple[str, Mapping[str, object]]], ahead: int = _LOOK_AHEAD
) -> Table | None:
    """Returns a table of records, each with its place; the columns are the keys of the first `ahead`. None for none."""
    # 第一条记录可能恰好缺一个可省的键（如空的 labels）：列名取自开头的许多条
    head = list(islice(records, ahead))
    if not head:
        return None
    names = tuple(dict.fromkeys(name for _, record in head for name in record))
    # 缺的键记为 None：用不到的列缺了无妨，用到的列读取时会报出行号
    rows = (Row(place, [record.get(name) for name in names]) for place, record in chain(head, records))
    return Table(path, tuple(map(str, names)), True, rows)


def start_of_json(path: Path, encoding: str = "auto") -> str:
    """Returns the first line that is not blank, of a long one its first megabyte; empty where nothing can be read."""
    try:
        start = next(read_chunks(path), b"")
        # 开头几个字节就说明是哪种 Unicode；别的编码里，括号和引号也都是 ASCII
        text = start.decode(json.detect_encoding(start) if encoding == "auto" else encoding, "replace")
    except (InputError, LookupError, ValueError):
        return ""
    return text.removeprefix("\ufeff").lstrip().partition("\n")[0]


def _json_records(path: Path, encoding: str) -> Iterator[tuple[str, dict[str, object]]]:
    # pandas 把整个列表写成一行，那一行可以比一条记录长得多
    if re.match(r"\[\s*(\{|$)|\{\s*$", start_of_json(path, encoding)):
        yield from _records_of_document(path, encoding)
        return

    def place_of(number: int) -> str:
        return f"{path}: line {number}"

    for number, record in objects_in(numbered_lines(path, encoding), place_of):
        yield place_of(number), record


def objects_in(
    lines: Iterable[tuple[int, str]], place_of: Callable[[int], str]
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yields the JSON objects of numbered lines, one a line; `place_of` says where a line stands that holds none."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise InputError(f"{place_of(number)} is not valid JSON ({reason}); repair or remove it") from None
        if not isinstance(record, dict):
            raise InputError(f"{place_of(number)} is no JSON object; write {{...}}, one a line")
        yield number, record


def _records_of_document(path: Path, encoding: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yields the records of a file that is one JSON value."""
    try:
        document = json.loads(read_text(path, encoding))
    except (ValueError, RecursionError) as error:
        at = f"line {error.lineno} " if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise InputError(f"{path}: {at}is not valid JSON ({reason}); repair or remove it") from None
    lists = [document] if isinstance(document, list) else [one for one in document.values() if isinstance(one, list)]
    if len(lists) != 1:
        raise InputError(f"{path}: holds {len(lists)} lists of rows; write one object a line, or one list of objects")
    for number, record in enumerate(lists[0]):
        if not isinstance(record, dict):
            raise InputError(f"{path}: item {number} (from 0) is no JSON object; write {{...}} for each row")
        yield f"{path}: item {number} (from 0)", record


def parquet_file(name: str | Path, source: object) -> pq.ParquetFile:
    """Opens a Parquet file, a path or a stream; messages call it `name`."""
    try:
        return pq.ParquetFile(source)
    except (pa.ArrowException, OSError) as error:
        # Parquet 自己带压缩，外面再包一层就不能跳着读了
        advice = "unpack it first" if str(name).lower().endswith((".gz", ".zst")) else "make it again"
        raise InputError(f"{name}: not a readable Parquet file ({first_line(error)}); {advice}") from None


def class_names_of(columns: Sequence[str], features: Mapping[str, object]) -> ClassNames:
    """Returns the names of the classes in each column that holds their numbers."""
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
    except (ValueError, TypeError, KeyError, RecursionError):
        # 别的程序也可能写这个键：读不懂就当没有
        features = {}
    return features if isinstance(features, Mapping) else {}


def _parquet_rows(path: Path, file: pq.ParquetFile) -> Iterator[Row]:
    class_names = class_names_of(file.schema_arrow.names, _written_features(file))
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
        raise InputError(f"{path}: damaged after row {number} ({first_line(error)}); make it again") from None


def first_line(error: BaseException) -> str:
    """Returns what an error says, in a line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
