"""From a reader's declaration of columns to the columns of a file, and from rows to examples.

A reader of tables declares what it looks for: the part a column plays in an example, the header names that are
understood, whether a file may do without it, and how its cell is read. `find_columns` finds the columns by the name or
number that the user gave, by a known name in the header, or by their order in a file without one. Where two answers
are possible it refuses: a wrong guess would train on the wrong column without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.reader import ColumnName, ExampleT, Reader, ReadingOptions, flag_of
from bertsmith.finetune.datasets.tables import Cell, Table, kind_of, listed, open_table

Found = Mapping[str, Sequence[int]]
"""Role → the numbers of its columns: none for an optional one that the file lacks, several for a repeated one."""


@dataclass(frozen=True)
class Column:
    """A column that a reader looks for.

    Attributes:
        role: the field of the example that it fills.
        option: the field of `ReadingOptions` by which the user names it, such as `text_column`.
        names: header names that are understood, in lower case, the preferred one first.
        value: reads a cell; of a repeated column, one that holds the list of all its cells.
        required: whether a table without it is refused.
        exclusive: whether two of its names in one header are refused, because either could be meant.
        numbered: the header names of a repeated column, with the number that orders them as group 1; None for a
            column that occurs once.
        called: the word for it in messages; empty for the role.
    """

    role: str
    option: str
    names: tuple[str, ...] = ()
    value: Callable[[Cell, ReadingOptions], Any] = lambda cell, _: cell.text()
    required: bool = True
    exclusive: bool = False
    numbered: re.Pattern[str] | None = None
    called: str = ""

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return flag_of(self.option)

    @property
    def wanted(self) -> str:
        """What is missing where it is not found."""
        return self.role if self.numbered else f"{self.called or self.role} column"

    @property
    def advice(self) -> str:
        """What to do where it is missing."""
        if self.numbered:
            one = self.role.removesuffix("s")
            return f"call them {one}0, {one}1, ... or name each with {self.flag}"
        return f"call it {self.names[0]}, or name it with {self.flag}"


@dataclass(frozen=True)
class Layout:
    """The columns of a kind of table.

    Attributes:
        columns: all of them.
        is_header: whether a first row, in lower case, is names, where the user did not say and gave numbers only.
        order: the roles of the columns of a file without a header; empty where all must be told.
        pairs: known names of two texts that belong together, for the roles `text` and `pair`.
    """

    columns: tuple[Column, ...]
    is_header: Callable[[Sequence[str], ReadingOptions], bool]
    order: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()


def has_any(*groups: Sequence[str]) -> Callable[[Sequence[str], ReadingOptions], bool]:
    """Returns a test for headers: whether the first row holds all names of one of the groups."""
    return lambda first, _: any(all(name in first for name in group) for group in groups)


def table_reader(
    holds: str,
    layout: Layout,
    make: Callable[..., ExampleT],
    *,
    check: Callable[[Table, ReadingOptions, list[ExampleT]], None] | None = None,
    options: tuple[str, ...] = (),
) -> Reader[ExampleT]:
    """Returns a reader of tables, an example a row: `.csv`, `.jsonl`, `.parquet`, otherwise TSV; or rows in memory.

    Args:
        holds: what the table holds, for messages.
        layout: its columns.
        make: makes an example of the values of its columns, by role, and `place`, the file and line.
        check: refuses files that could be read but must not be.
        options: fields of `ReadingOptions` that it knows besides those of its columns.
    """

    def parse_table(table: Table, options: ReadingOptions) -> list[ExampleT]:
        found = find_columns(table, layout, options)
        columns = [(column, found[column.role], column.called or column.role) for column in layout.columns]
        examples = []
        for row in table.rows:
            values = {
                column.role: column.value(row.cell(numbers, what), options) if numbers else None
                for column, numbers, what in columns
            }
            examples.append(make(**values, place=row.place))
        if not examples:
            raise InputError(f"{table.path}: holds a header and no example")
        if check is not None:
            check(table, options, examples)
        return examples

    def parse(path: Path, options: ReadingOptions) -> list[ExampleT]:
        return parse_table(open_table(path, kind_of(path), options.encoding), options)

    return Reader(holds, (*(column.option for column in layout.columns), "header", *options), parse, parse_table)


def find_columns(table: Table, layout: Layout, options: ReadingOptions) -> Found:
    """Finds the columns of a table, and steps over the header of a TSV or CSV.

    Raises:
        InputError: what the user said does not fit the file, a required column is missing, several may be meant, or
            one would be used twice.
    """
    told = {column.role: _told(column, options) for column in layout.columns}
    if _step_over_header(table, layout, told, options):
        guessed = _by_name(table, layout, told)
    else:
        guessed = _by_order(table, layout, told)
    found: dict[str, list[int]] = {}
    for column in layout.columns:
        given = told[column.role]
        numbers = guessed.get(column.role, []) if given is None else [_number(table, name) for name in given]
        taken = [number for others in found.values() for number in others]
        # 没有文章时问题就是上下文；有文章时问题写在每个选项前面（RACE、CosmosQA 的通行做法）
        if given is None and not column.required and set(numbers) & set(taken):
            numbers = []
        if column.required and not numbers:
            raise InputError(f"{table.path}: no {column.wanted} among {listed(table.first)}; {column.advice}")
        found[column.role] = numbers
    used = [number for numbers in found.values() for number in numbers]
    if len(set(used)) < len(used):
        *flags, last = (column.flag for column in layout.columns)
        raise InputError(f"{table.path}: a column has one use; check {', '.join(flags)} and {last}")
    return found


def _told(column: Column, options: ReadingOptions) -> Sequence[ColumnName] | None:
    given = getattr(options, column.option)
    return [given] if isinstance(given, (str, int)) else given


def _step_over_header(
    table: Table, layout: Layout, told: Mapping[str, Sequence[ColumnName] | None], options: ReadingOptions
) -> bool:
    """Finds out whether a table has a header; where it is the first row of a TSV or CSV, steps over it.

    Raises:
        InputError: what the user said cannot be, or must be said.
    """
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
    # pandas 给没有名字的列编号作表头；当成例子会多出一个类，当成表头会丢一个例子，所以问
    if header is None and not known and table.first == tuple(map(str, range(max(2, len(table.first))))):
        raise InputError(f"{table.path}: line 1 only counts its columns; is it a header? say --header or --no-header")
    has_header = known if header is None else header
    if has_header:
        next(table.rows)
    return has_header


def _by_name(table: Table, layout: Layout, told: Mapping[str, Sequence[ColumnName] | None]) -> dict[str, list[int]]:
    """Finds the columns that the user did not tell by the known names in the header."""
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
        found[column.role] = [_only(table.path, names[0], header)] if names else _numbered(column, header)
    return found


def _numbered(column: Column, header: Sequence[str]) -> list[int]:
    """Finds the columns of a repeated one, by the numbers in their names; none for fewer than two."""
    if column.numbered is None:
        return []
    matches = [(match, place) for place, name in enumerate(header) if (match := column.numbered.fullmatch(name))]
    # 按编号排序而不是按列的先后：ending10 在 ending2 之后
    places = [place for _, place in sorted((match[1].zfill(6), place) for match, place in matches)]
    return places if len(places) > 1 else []


def _by_order(table: Table, layout: Layout, told: Mapping[str, Sequence[ColumnName] | None]) -> dict[str, list[int]]:
    """Finds the columns of a file without a header by their order."""
    width, untold = len(table.first), [role for role in layout.order if told[role] is None]
    missing = [column for column in layout.columns if column.required and told[column.role] is None]
    # 列比认得的多而没有表头：哪一列是什么，猜错了也不会报错，所以不猜
    if width > len(layout.order) and missing:
        flags = [column.flag for column in layout.columns for _ in range(2 if column.numbered else 1)]
        example = " ".join(f"{flag} {number}" for number, flag in enumerate(flags))
        raise InputError(
            f"{table.path}: {width} columns and no header; say which is which by number, such as {example}"
        )
    left = [number for number in range(width) if not any(number in (given or ()) for given in told.values())]
    # 只剩一列没有说，它就是剩下的那一样
    if len(untold) == len(left) == 1:
        return {untold[0]: left}
    return {role: [number] for number, role in enumerate(layout.order) if number < width}


def _number(table: Table, name: ColumnName) -> int:
    """Returns the number of a column that the user named or counted."""
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
        raise InputError(f"{path}: {header.count(name)} columns are called {name!r}; tell one by number, from 0")
    return header.index(name)
