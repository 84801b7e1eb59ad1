"""Readers of tables, and how they find their columns.

`find_columns` takes the name or number that the user gave, a known name in the header, what is in the columns, or their
order in a file without a header. Where two answers are possible it refuses: nobody would see that it guessed wrong.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

from bertsmith.data.reading.tables import NUMBER, Cell, Row, Table, listed
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import (
    Column,
    ColumnName,
    ExampleT,
    Faults,
    InputForms,
    Layout,
    Reader,
    ReadingOptions,
    texts_in_order,
)

Found = Mapping[str, Sequence[int]]
"""Role → the numbers of its columns: none for an optional one that the file lacks, several for a repeated one."""


def has_any(*groups: Sequence[str]) -> Callable[[Sequence[str], ReadingOptions], bool]:
    """Returns a test for headers: whether the first row holds all names of one of the groups."""
    return lambda first, _: any(all(name in first for name in group) for group in groups)


def table_reader(
    holds: str,
    layout: Layout,
    make: Callable[..., ExampleT],
    *,
    check: Callable[[Table, ReadingOptions, list[ExampleT]], None] | None = None,
    folder: Callable[[Path, ReadingOptions], list[ExampleT]] | None = None,
    options: tuple[str, ...] = (),
    texts_of: Callable[..., tuple[Any, ...]] = texts_in_order,
) -> Reader[ExampleT]:
    """Returns a reader of tables, an example a row: files, by their ending, otherwise TSV; or rows in memory.

    `make` is given the values of a row's columns by role, and its `place`; `options` are those besides the columns'.
    """

    def parse_table(table: Table, options: ReadingOptions) -> list[ExampleT]:
        examples = read_rows(table, layout, find_columns(table, layout, options), make, options)
        if check is not None:
            check(table, options, examples)
        return examples

    known = (*(column.option for column in layout.columns), "header", "sheet", *BESIDE, *options)
    reader = Reader(holds, known, parse_table, InputForms((layout,), texts_of), lambda _table: layout)
    if folder is None:
        return reader
    return replace(reader, is_table=lambda path, _: not path.is_dir(), parse=folder)


def read_rows(
    table: Table, layout: Layout, found: Found, make: Callable[..., ExampleT], options: ReadingOptions
) -> list[ExampleT]:
    """Returns what is made of the values of each row's columns, by role, and of its `place`."""
    values, beside = values_reader(layout.columns, found, options, table.first), columns_beside(table, options)
    examples, faults = list[ExampleT](), Faults(options)
    for row in table.rows:
        with faults.skipped():
            example: Any = make(**values(row), place=row.place)
            examples.append(replace(example, **said) if (said := beside(row)) else example)
    if not examples:
        raise faults.none_left(table.path, (column for column in layout.columns if found[column.role]))
    faults.tell(table.path)
    return examples


def values_reader(
    columns: Iterable[Column], found: Found, options: ReadingOptions, header: Sequence[str] = ()
) -> Callable[[Row], dict[str, Any]]:
    """Returns a reader of a row's values by role, None where a column is not there."""
    read = [(one, found[one.role], one.called or one.role, header if one.flags else ()) for one in columns]
    return lambda row: {
        one.role: one.value(row.cell(numbers, what, names), options) if numbers else None
        for one, numbers, what, names in read
    }


BESIDE = ("group_column", "time_column")
"""Options of columns that no model reads."""


def columns_beside(table: Table, options: ReadingOptions) -> Callable[[Row], dict[str, Any]]:
    """Returns a reader of the group and the time of a row, those whose columns are told."""
    told = (("group", options.group_column, Cell.text), ("time", options.time_column, _time))
    table.add_nested(column for _, column, _ in told)
    found = [(name, _number(table, column), value) for name, column, value in told if column is not None]
    return lambda row: {name: value(row.cell([number], name)) for name, number, value in found}


def _time(cell: Cell) -> float:
    """Reads a number, or a date, typed or as ISO 8601 has it."""
    found = cell.value
    if not isinstance(found, date):
        text = cell.text()
        if NUMBER.fullmatch(text):
            return float(text)
        try:
            found = datetime.fromisoformat(text.removesuffix("Z"))
        except ValueError:
            said = f"the time {text[:40]!r} is no number and no date such as 2024-05-31 or 2024-05-31T09:30:00"
            raise InputError(f"{cell.place}: {said}") from None
    # 只有日子的，当作那天的零点
    moment = found if isinstance(found, datetime) else datetime.combine(found, time())
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def find_columns(table: Table, layout: Layout, options: ReadingOptions) -> Found:
    """Finds the columns of a table, and steps over the header of a TSV or CSV."""
    told = {column.role: _told(column, options) for column in layout.columns}
    # 分组与时间的列不是文本也不是标签：按内容找列时不算它们
    told |= {name: [one] for name in BESIDE if (one := getattr(options, name)) is not None}
    table.add_nested(name for given in told.values() for name in given or ())
    if _step_over_header(table, layout, told, options):
        guessed = _by_name(table, layout, told)
    else:
        guessed = _by_order(table, layout, told)
    guessed = _by_content(table, layout, told, guessed)
    found: dict[str, list[int]] = {}
    for column in layout.columns:
        given = told[column.role]
        if given is not None and len(given) > 1 and not (column.numbered or column.flags):
            raise ConfigError(f"{column.flag} is given {len(given)} times, and there is one such column; name one")
        numbers = guessed.get(column.role, []) if given is None else [_number(table, name) for name in given]
        taken = [number for others in found.values() for number in others]
        # 没有文章时问题就是上下文；有文章时问题写在每个选项前面（RACE、CosmosQA 的通行做法）
        if given is None and not column.required and set(numbers) & set(taken):
            numbers = []
        if column.required and not numbers:
            raise InputError(f"{table.path}: {column.missing(listed(table.first))}")
        found[column.role] = numbers
    used = [number for numbers in found.values() for number in numbers]
    if len(set(used)) < len(used):
        *flags, last = (column.flag for column in layout.columns)
        raise InputError(f"{table.path}: a column has one use; check {', '.join(flags)} and {last}")
    return found


def parts_of(table: Table, layout: Layout, options: ReadingOptions) -> dict[int, str]:
    """Returns what each column is read as, by its number; one that is not read is left out."""
    found = find_columns(table, layout, options)
    parts = {number: column.called or column.role for column in layout.columns for number in found[column.role]}
    beside = {name: getattr(options, name) for name in BESIDE}
    told = {_number(table, given): name.partition("_")[0] for name, given in beside.items() if given is not None}
    return parts | told


def _told(column: Column, options: ReadingOptions) -> Sequence[ColumnName] | None:
    given: ColumnName | tuple[ColumnName, ...] | None = getattr(options, column.option)
    return [given] if isinstance(given, (str, int)) else given


def _step_over_header(
    table: Table, layout: Layout, told: Mapping[str, Sequence[ColumnName] | None], options: ReadingOptions
) -> bool:
    """Finds out whether a table has a header; where it is the first row of a TSV or CSV, steps over it."""
    header = options.header
    if table.has_names:
        if header is not None:
            raise InputError(f"{table.path}: its form names the columns; leave out --header and --no-header")
        return True
    by_name = any(isinstance(name, str) for given in told.values() for name in given or ())
    if by_name and header is False:
        raise InputError(
            f"{table.path}: without a header no column has a name; give its number, or leave out --no-header"
        )
    known = by_name or layout.is_header([name.lower() for name in table.first], options)
    known = known or (header is None and (_names_columns(table, layout) or _looks_like_header(table, layout)))
    # pandas 给没有名字的列编号作表头；当成例子会多出一个类，当成表头会丢一个例子，所以问
    if header is None and not known and table.first == tuple(map(str, range(max(2, len(table.first))))):
        raise InputError(f"{table.path}: line 1 only counts its columns; is it a header? say --header or --no-header")
    has_header = known if header is None else header
    if has_header:
        next(table.rows)
    return has_header


def _by_name(table: Table, layout: Layout, told: Mapping[str, Sequence[ColumnName] | None]) -> dict[str, list[int]]:
    header = [name.lower() for name in table.first]
    taken = {name.lower() if isinstance(name, str) else name for given in told.values() for name in given or ()}
    free = [name for number, name in enumerate(header) if name not in taken and number not in taken]
    known = {column.role: column.names for column in layout.columns}
    if told.get("text") is None and told.get("pair") is None:
        pair = next((pair for pair in layout.pairs if set(pair) <= set(free)), None)
        known |= {} if pair is None else {"text": pair[:1], "pair": pair[1:]}
    found = {}
    for column in layout.columns:
        if told[column.role] is not None:
            continue
        names = [name for name in known[column.role] if name in (free if column.exclusive else header)]
        # 两列都像文本时只读一列，等于悄悄丢掉一半输入
        if column.exclusive and len(names) > 1:
            raise InputError(
                f"{table.path}: columns {listed(names)} may all be {column.role}s; say which with {column.flag}, and"
                " --pair-column if two"
            )
        found[column.role] = [_only(table.path, names[0], header)] if names else numbered_columns(column, header)
    return found


def _is_named(name: str, column: Column) -> bool:
    """Tells whether a word of a name is one of the column's: of `Review Text`, `review_text`, `reviewText` alike."""
    words = re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)).lower().split()
    return not set(words).isdisjoint(column.names)


def _names_columns(table: Table, layout: Layout) -> bool:
    """Tells whether short names in the first row have a word for every column that is needed."""
    short = [name for name in table.first if 1 <= len(name.split()) <= _MOST_WORDS]
    return all(any(_is_named(name, column) for name in short) for column in layout.columns if column.required)


def _looks_like_header(table: Table, layout: Layout) -> bool:
    """Tells whether the first row of a file is names that are not known: it is unlike all rows below it."""
    first, *rest = [row.cells for row in table.look_ahead()] or [()]
    names = [str(cell).strip() for cell in first]
    if not _is_text_and_label(layout) or len(rest) < _LEAST_ROWS or any(len(row) != len(names) for row in rest):
        return False
    short = all(name and len(name) <= 40 and len(name.split()) <= 5 and not NUMBER.fullmatch(name) for name in names)
    columns = [[str(row[number]) for row in rest] for number in range(len(names))]
    new = all(name not in column for name, column in zip(names, columns, strict=True))
    # 表头与下面的行不同：类别的格子只有几种而首行的不在其中，文本的格子比首行的长
    few = any(2 * len(set(column)) <= len(column) for column in columns)
    longer = any(
        sum(len(cell.split()) for cell in column) >= 2 * len(name.split()) * len(column)
        for name, column in zip(names, columns, strict=True)
    )
    return short and new and few and longer


_MOST_WORDS = 3
"""Of the name of a column that is known by one of its words."""

_LEAST_ROWS = 8
"""Of fewer rows, content says too little."""


class ColumnsFound(UserWarning):
    """Says which columns were found by names and content; `note` says it beside a line that names all columns."""

    def __init__(self, path: Path | str, found: str) -> None:
        super().__init__(f"{path}: reads {found}: found by names and content")
        # 内存里的表没有那一行：照样说出列名
        self.note = f"{path}: columns found by names and content" if isinstance(path, Path) else str(self)


def _by_content(
    table: Table, layout: Layout, told: Mapping[str, Sequence[ColumnName] | None], guessed: dict[str, list[int]]
) -> dict[str, list[int]]:
    """Finds texts and labels that no known name found: by words in their names, else by what is in the columns."""
    wanted = [one for one in layout.columns if one.required and told[one.role] is None and not guessed.get(one.role)]
    if not wanted or not _is_text_and_label(layout):
        return guessed
    given = [number for one in told.values() for number in one or ()]
    places = {name: number for number, name in enumerate(table.first)}
    taken = {number if isinstance(number, int) else places.get(number, -1) for number in given}
    taken |= {number for numbers in guessed.values() for number in numbers}
    rows, found = [row.cells for row in table.look_ahead()], dict(guessed)
    said = []
    for column in wanted:
        free = [number for number in range(len(table.first)) if number not in taken]
        named = [number for number in free if _is_named(table.first[number], column)]
        fitting = named if len(named) == 1 else [n for n in named or free if _FITS[column.role](_cells(rows, n))]
        if column.flags and len(fitting) != 1:
            fitting = [number for number in free if set(map(str, _cells(rows, number))) <= {"0", "1"} and rows]
        elif len(fitting) > 1:
            names, what = listed([table.first[n] for n in fitting]), column.called or column.role
            more = ", and --pair-column if two" if column.role == "text" else ""
            raise InputError(f"{table.path}: columns {names} may all be the {what}; say which with {column.flag}{more}")
        if fitting:
            found[column.role] = fitting
            taken |= set(fitting)
            said.append(f"{column.called or column.role} from {listed([table.first[n] for n in fitting])}")
    if said:
        warnings.warn(ColumnsFound(table.path, ", ".join(said)), stacklevel=4)
    return found


def _is_text_and_label(layout: Layout) -> bool:
    return bool(layout.order) and _FITS.keys() >= set(layout.order)


def _cells(rows: Sequence[Sequence[object]], number: int) -> list[object]:
    return [row[number] for row in rows if len(row) > number and row[number] not in (None, "")]


def _are_texts(cells: Sequence[object]) -> bool:
    """Tells whether cells hold running text, most of it different."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    length = sum(max(len(text.split()), len(text) / 8) for text in texts)
    return len(texts) == len(cells) > 0 and length >= 3 * len(texts) and 2 * len(set(texts)) > len(texts)


def _are_classes(cells: Sequence[object]) -> bool:
    """Tells whether cells hold a few short values again and again."""
    values = [str(cell) for cell in cells if isinstance(cell, (str, int, bool))]
    few = len(values) == len(cells) >= _LEAST_ROWS and 2 <= len(set(values)) <= len(values) / 2
    # 日期的列也翻来覆去只有几个值，却不是类别
    return (
        few
        and not all(map(_DATE.fullmatch, set(values)))
        and sum(len(value.split()) for value in values) <= 5 * len(values)
    )


def _are_numbers(cells: Sequence[object]) -> bool:
    texts = [str(cell).strip() for cell in cells]
    if len(cells) < _LEAST_ROWS or not all(map(NUMBER.fullmatch, texts)):
        return False
    # 逐行加一的是行号，不是分数
    return {float(two) - float(one) for one, two in pairwise(texts)} != {1.0}


_DATE = re.compile(r"[0-9]{1,4}([-./])[0-9]{1,2}\1[0-9]{1,4}([ T][0-9:.Z+-]+)?")

_FITS: dict[str, Callable[[Sequence[object]], bool]] = {
    "text": _are_texts,
    "label": _are_classes,
    "labels": _are_classes,
    "score": _are_numbers,
    "relevance": _are_numbers,
}
"""Role → what the cells of its column look like."""


def numbered_columns(column: Column, header: Sequence[str]) -> list[int]:
    """Finds the columns of a repeated one, by the numbers in their names; none for fewer than two."""
    if column.numbered is None:
        return []
    matches = [(match, place) for place, name in enumerate(header) if (match := column.numbered.fullmatch(name))]
    # 按编号排序而不是按列的先后：ending10 在 ending2 之后
    places = [place for _, place in sorted((match[1].zfill(6), place) for match, place in matches)]
    return places if len(places) > 1 else []


def _by_order(table: Table, layout: Layout, told: Mapping[str, Sequence[ColumnName] | None]) -> dict[str, list[int]]:
    width, untold = len(table.first), [role for role in layout.order if told[role] is None]
    left = [number for number in range(width) if not any(number in (given or ()) for given in told.values())]
    missing = [column for column in layout.columns if told[column.role] is None]
    # 列比认得的多而没有表头：哪一列是什么，猜错了也不会报错，所以不猜
    if width > len(layout.order) and any(column.required for column in missing):
        example = _example(table, missing, left)
        raise InputError(
            f"{table.path}: {width} columns and no header; say which is which by number, such as {example}, or --header"
            " where line 1 names them"
        )
    # 只剩一列没有说，它就是剩下的那一样
    if len(untold) == len(left) == 1:
        return {untold[0]: left}
    return {role: [number] for number, role in enumerate(layout.order) if number < width}


def _example(table: Table, columns: Sequence[Column], left: Sequence[int]) -> str:
    """Returns options that name columns by number and fit their cells: a hint must not take the id for the text."""
    rows = [row.cells for row in table.look_ahead()]
    cells = {number: [str(cell) for cell in _cells(rows, number)] for number in left}
    chosen: dict[int, str] = {}
    # 必需的列先选；可有可无的，只举装着文本的列
    for column in sorted(columns, key=lambda column: not column.required):
        fits = _FITS.get(column.role, _are_texts)
        for _ in range(2 if column.numbered else 1):
            free = [number for number in left if number not in chosen]
            # 行太少，内容说明不了什么：文本取最长的一列，其余取值最少的一列
            if fits is _are_texts:
                nearest = sorted(free, key=lambda number: -len("".join(cells[number])))
            else:
                nearest = sorted(free, key=lambda number: (len(set(cells[number])), -number))
            fitting = [number for number in free if fits(cells[number]) and (column.required or fits is _are_texts)]
            chosen |= dict.fromkeys((fitting + nearest * column.required)[:1], column.flag)
    return " ".join(f"{chosen[number]} {number}" for number in sorted(chosen))


def _number(table: Table, name: ColumnName) -> int:
    if isinstance(name, str):
        if name not in table.first:
            raise InputError(f"{table.path}: no column {name!r}; its header has {listed(table.first)}")
        return _only(table.path, name, table.first)
    if not 0 <= name < len(table.first):
        raise InputError(f"{table.path}: no column {name}; it has {len(table.first)}, counted from 0")
    return name


def _only(path: Path | str, name: str, header: Sequence[str]) -> int:
    # 同名的列里悄悄取第一列，等于猜
    if header.count(name) > 1:
        raise InputError(
            f"{path}: {header.count(name)} columns are called {name!r}; choose one by number, counted from 0"
        )
    return header.index(name)
