"""What a model reads, in the files that it could have learned from: the same forms and columns, labels or none.

CSV, Parquet, spreadsheets and objects of JSON are tables. So is a file whose first line names the columns, one whose
columns are told, and a `.tsv` with more or fewer cells in its first line than the model reads. Other files hold an
input a line, and are not read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bertsmith.data.reading.lines import numbered_lines
from bertsmith.data.reading.opening import encodings_of
from bertsmith.data.reading.records import plain
from bertsmith.data.reading.tables import (
    NUMBER,
    OBJECT_OF_JSON,
    Row,
    Table,
    columns_in_a_line,
    described,
    ending_of,
    kind_of,
    listed,
    open_table,
    start_of_json,
)
from bertsmith.errors import InputError
from bertsmith.finetune.datasets import (
    Column,
    InputForms,
    InputOptions,
    Layout,
    ReadingOptions,
    name_of,
    require_sheet,
    require_used,
)
from bertsmith.finetune.datasets.columns import Found, find_columns, numbered_columns, values_reader


class Input(NamedTuple):
    """What a model reads of a row, and in `others` what else is in it; or in `fault` why it cannot be read.

    The `texts` are in the order of the task's pipeline; of a tagger, one text or one tuple of words.
    """

    place: str
    texts: tuple[Any, ...]
    others: Mapping[str, Any] = MappingProxyType({})
    fault: str = ""

    @classmethod
    def of(cls, place: str, others: Mapping[str, Any], texts: Callable[[], tuple[Any, ...]]) -> Input:
        """Returns a row with its texts, or with the reason why it has none."""
        try:
            return cls(place, texts(), others)
        except InputError as error:
            return cls(place, (), others, str(error))


def read_inputs(
    forms: InputForms,
    path: Path,
    options: ReadingOptions,
    *,
    task: str,
    counts: range,
    on_note: Callable[[str], None] | None = None,
) -> Iterator[Input] | None:
    """Reads a file, in bounded memory where it is a table; None for a file with an input a line.

    `counts` says how many texts the model reads together; `on_note` is told how the file was understood, line by line.
    """

    def tell(form: str) -> None:
        # 编码要读完整个文件才知道：没有人听，就不去认
        if on_note is not None:
            on_note(f"{name_of(path)}: {form}, {encodings_of([str(path)], options.encoding)}")

    columns = [column for layout in forms.layouts for column in layout.columns]
    used = {"header", "sheet", *(column.option for column in columns if _is_read(column))}
    require_used(options, tuple(used), task)
    require_sheet(options.sheet, path)
    found = forms.other(path, replace(options, faults="refuse"))
    if found is not None:
        tell(forms.other_form)
        return found
    layouts = [_unlabelled(layout) for layout in forms.layouts]
    is_told = any(getattr(options, name) is not None for name in used)
    if not (is_told or _is_table(path, layouts, options, counts)):
        tell("an input a line")
        return None
    table = open_table(path, kind_of(path), options.encoding, options.sheet)
    layout = next((one for one in layouts if names_all(one, table.first, options)), layouts[-1])
    found_columns = find_columns(table, layout, options)
    read = [one for one in layout.columns if _is_read(one)]
    if on_note is not None:
        parts = {number: one.called or one.role for one in read for number in found_columns[one.role]}
        form, names = described(table, parts, has_header=table.has_header)
        on_note(f"{name_of(path)}: {form}")
        on_note(columns_in_a_line(names))
    return _rows(table, read, found_columns, forms, options)


def _is_read(column: Column) -> bool:
    return any(column.option == one.name for one in fields(InputOptions))


def _unlabelled(layout: Layout) -> Layout:
    columns = (one if _is_read(one) else replace(one, required=False) for one in layout.columns)
    return replace(layout, columns=tuple(columns))


def _is_table(path: Path, layouts: Sequence[Layout], options: ReadingOptions, counts: range) -> bool:
    kind = kind_of(path)
    if kind in ("csv", "parquet", "workbook"):
        return True
    if kind == "jsonl":
        return OBJECT_OF_JSON.match(start_of_json(path, options.encoding)) is not None
    first = next((line for _, line in numbered_lines(path, options.encoding) if line.strip()), "")
    cells, is_tsv = first.split("\t"), ending_of(path) == ".tsv"
    # 只有一格的首行可能恰好是一条文本，例如 text：那样的文件要叫 .tsv 才算有表头
    is_named = any(names_all(layout, cells, options) for layout in layouts) and (is_tsv or len(cells) > 1)
    return is_named or (is_tsv and len(cells) not in counts)


def names_all(layout: Layout, first: Sequence[str], options: ReadingOptions) -> bool:
    """Tells whether all columns that a layout needs are told, or have known names in the first row."""
    header = [name.strip().lower() for name in first]
    return all(
        getattr(options, one.option) is not None
        or not set(one.names).isdisjoint(header)
        or bool(numbered_columns(one, header))
        for one in layout.columns
        if one.required
    )


def _rows(
    table: Table, columns: Sequence[Column], found: Found, forms: InputForms, options: ReadingOptions
) -> Iterator[Input]:
    head = [[str(cell).strip() for cell in row.cells] for row in table.look_ahead()]
    # 没有表头的文件，首行本身就是一个例子：列没有名字，只有编号
    has_header = table.has_header
    read = {number for one in columns for number in found[one.role]}
    if not has_header and options.header is None and len(table.first) > len(read):
        _refuse_unseen_header(table.path, head)
    names = {n: name if has_header else str(n) for n, name in enumerate(table.first) if n not in read}
    values = values_reader(columns, found, options)

    def texts(row: Row) -> tuple[Any, ...]:
        return forms.texts_of(**values(row))

    for row in table.rows:
        others = {name: plain(row.cells[n]) for n, name in names.items() if n < len(row.cells)}
        yield Input.of(row.place, others, partial(texts, row))


def _refuse_unseen_header(path: Path | str, head: Sequence[Sequence[str]]) -> None:
    """A header of unknown names would be an input of its own, and its first column the text: that must be told."""
    first, *rest = head
    is_short = all(cell and len(cell.split()) <= 5 and not NUMBER.fullmatch(cell) for cell in first)
    # 标签会再次出现，表头里的名字不会
    if rest and is_short and not any(cell == row[n] for row in rest for n, cell in enumerate(first) if n < len(row)):
        raise InputError(
            f"{path}: is its first line, {listed(first)}, a header? say --header or --no-header, and name the column"
            " with --text-column"
        )
