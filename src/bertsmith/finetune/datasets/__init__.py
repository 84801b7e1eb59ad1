"""Labelled files: what a reader of them is, and all that a user can say about how they are read.

An option of `ReadingOptions` that a reader has no use for is refused, not ignored. Wherever a file is taken, `Rows` in
memory are taken too: data frames, data sets of the library `datasets`, lists of dictionaries.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from bertsmith.data.reading.lines import Placed
from bertsmith.data.reading.records import DataFrame, Rows, place_of, plain, records_of
from bertsmith.data.reading.sources import local_copy
from bertsmith.data.reading.tables import (
    Cell,
    Row,
    Table,
    class_names_of,
    is_workbook,
    kind_of,
    open_table,
    table_of_records,
)
from bertsmith.errors import ConfigError, InputError
from bertsmith.files import printable
from bertsmith.settings import Checked, option

ExampleT = TypeVar("ExampleT")
ColumnName = str | int
"""A header name, or a number counted from 0."""


def column_name(typed: str) -> ColumnName:
    """Returns what was typed for a column; a whole number is its number."""
    return int(typed) if re.fullmatch(r"-?[0-9]+", typed) else typed


@dataclass(frozen=True)
class InputOptions(Checked):
    """How the texts of a file are found; None means that the reader finds out, or takes the usual."""

    panel: ClassVar[str] = "How the files are read"

    text_column: ColumnName | None = option(
        None, help="Name or number (from 0) of the column with the text, query or context.", parse=column_name
    )
    pair_column: ColumnName | None = option(
        None, help="Column of the second text; choose: of the question before the choices.", parse=column_name
    )
    choice_columns: tuple[ColumnName, ...] | None = option(
        None, name="choice_column", help="choose: column of a choice; once for each.", parse_each=column_name
    )
    word_column: ColumnName | None = option(
        None,
        help="tag: column of the words: a number, or a name in JSON Lines and Parquet.",
        parse=column_name,
    )
    header: bool | None = option(None, help="Whether the first row is a header; default: if it has known names.")
    sheet: str | None = option(None, help="Name of the sheet of a spreadsheet; default: the first.")
    encoding: str = option("auto", help="Encoding of the files: auto, or a codec such as gb18030.")


@dataclass(frozen=True)
class ReadingOptions(InputOptions):
    """How a labelled file is read; None means that the reader finds out, or takes the usual."""

    label_column: tuple[ColumnName, ...] | None = option(
        None, help="Column of the label; multilabel: once for each column of 0 and 1.", parse_each=column_name
    )
    negative_column: ColumnName | None = option(
        None, help="embed: column of texts that do not answer the query.", parse=column_name
    )
    separator: str | None = option(None, help="multilabel: separator of the labels in a cell; default: a comma.")
    tag_column: ColumnName | None = option(
        None,
        help="tag: column of the tags, as above; in CoNLL-U upos, xpos or feats.",
        parse=column_name,
    )
    alternatives: str | None = option(None, help="tag: separator of alternative tags; the first one counts.")
    faults: Literal["refuse", "skip"] | None = option(
        None, help="Rows with a fault, such as an empty text: refuse the file, or skip, count and list them."
    )
    group_column: ColumnName | None = option(
        None, help="Group column, such as a customer id; rows of a group stay in one part.", parse=column_name
    )
    time_column: ColumnName | None = option(
        None, help="Column of a date or number: the latest rows are held out.", parse=column_name
    )
    offsets: Literal["characters", "utf16", "utf8", "crlf"] | None = option(
        None, help="answer: what answer_start counts: characters, units of UTF-16, bytes, or line ends twice."
    )

    def _check_together(self) -> None:
        # 空串切不开标签，而 str.split 到读文件时才会报错
        if self.separator == "":
            raise ConfigError("the separator between labels cannot be empty; pass ',' or '|'")


class Faults:
    """What is wrong with the rows of a file: refused at the first, or skipped, counted and listed."""

    def __init__(self, options: ReadingOptions) -> None:
        self.skips, self.found = options.faults == "skip", list[str]()
        # 明说要拒绝的，不必再提略去；预测没有这个选项（`read_inputs`）
        self._way = "" if options.faults == "refuse" else f"; or leave such rows out with {_WAY_OUT}"

    @contextmanager
    def skipped(self) -> Iterator[None]:
        """Ends the block at a fault; continues after it where faults are skipped."""
        try:
            yield
        except InputError as error:
            if not self.skips:
                raise InputError(f"{error}{'' if _WAY_OUT in str(error) else self._way}") from None
            self.found.append(str(error))

    def none_left(self, path: Path | str, read: Iterable[Column]) -> InputError:
        """Returns why a file without an example is refused; `read` are the columns that were read."""
        if not self.found:
            return InputError(f"{path}: holds a header and no example")
        first = f"no row is left of {len(self.found):,}; the first: {self.found[0]}"
        flags = " or ".join(column.flag for column in read)
        return InputError(f"{path}: {first}; name another column with {flags}")

    def tell(self, path: Path | str, what: str = "rows") -> None:
        """Warns of what was left out, with the first of the faults."""
        if self.found:
            shown = " · ".join(fault.removeprefix(f"{path}: ") for fault in self.found[:_LISTED])
            more = f" · and {len(self.found) - _LISTED:,} more" if len(self.found) > _LISTED else ""
            warnings.warn(f"{path}: left out {len(self.found):,} {what}: {shown}{more}", stacklevel=4)


_WAY_OUT = "--faults skip"
_LISTED = 10
"""Faults that a warning lists."""


def texts_in_order(**values: Any) -> tuple[Any, ...]:
    """Returns the texts of a row as its columns stand in the layout."""
    return tuple(value for value in values.values() if value is not None)


@dataclass(frozen=True)
class Column:
    """A column that a reader looks for.

    Attributes:
        option: the field of `ReadingOptions` by which the user names it, such as `text_column`.
        names: header names that are understood, in lower case, the preferred one first.
        value: reads a cell; of a repeated column, one that holds the list of all its cells.
        exclusive: whether two of its names in one header are refused, because either could be meant.
        numbered: header names of a repeated column, with the number that orders them as group 1; None for a single one.
        flags: whether several columns of 0 and 1 can stand for it, see `Row.cell`.
        called: the word for it in messages; empty for the role.
    """

    role: str
    option: str
    names: tuple[str, ...] = ()
    value: Callable[[Cell, ReadingOptions], Any] = lambda cell, _: cell.text()
    required: bool = True
    exclusive: bool = False
    numbered: re.Pattern[str] | None = None
    flags: bool = False
    called: str = ""

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return flag_of(self.option)

    def missing(self, there: str) -> str:
        """Says that it is not among the columns that are there, and what to do."""
        if self.numbered:
            one = self.role.removesuffix("s")
            return f"no {self.role} among {there}; call them {one}0, {one}1, ... or name each with {self.flag}"
        what = f"{self.called or self.role} column"
        return f"no {what} among {there}; call it {self.names[0]}, or name it with {self.flag}"


@dataclass(frozen=True)
class Layout:
    """The columns of a kind of table.

    Attributes:
        is_header: whether a first row, in lower case, is names, where the user did not say and gave numbers only.
        order: the roles of the columns of a file without a header; empty where all must be told.
        pairs: known names of two texts that belong together, for the roles `text` and `pair`.
    """

    columns: tuple[Column, ...]
    is_header: Callable[[Sequence[str], ReadingOptions], bool]
    order: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class InputForms:
    """The forms of files whose rows hold what a task's model reads; labels need not be there.

    Of the `layouts` of tables, the first is taken whose columns are all told or named in the header, else the last.
    `other` reads forms that are no tables, and gives None for other files; `other_form` says what those are.
    """

    layouts: tuple[Layout, ...]
    texts_of: Callable[..., tuple[Any, ...]] = texts_in_order
    other: Callable[[Path, ReadingOptions], Iterator[Any] | None] = lambda _path, _options: None
    other_form: str = "a form of its own"


@dataclass(frozen=True)
class Reader(Generic[ExampleT]):
    """Reads the labelled files of a task; besides the encoding, it knows the `options`, fields of `ReadingOptions`.

    `layout` gives the columns of a table with labels, None for a table in which they are not looked for. `parse` reads
    what `is_table` tells to be none, of the form that `inputs` names.
    """

    holds: str
    options: tuple[str, ...]
    parse_table: Callable[[Table, ReadingOptions], list[ExampleT]]
    inputs: InputForms
    layout: Callable[[Table], Layout | None]
    is_table: Callable[[Path, ReadingOptions], bool] = lambda _path, _options: True
    parse: Callable[[Path, ReadingOptions], list[ExampleT]] = lambda _path, _options: []

    def read(
        self, source: DataSource, options: ReadingOptions | None = None, *, task: str = "", name: str = "rows"
    ) -> list[ExampleT]:
        """Reads a labelled file or its URL, plain or packed (`.gz`, `.zst`), rows in memory, or a list of examples."""
        options = options or ReadingOptions()
        require_used(options, (*self.options, "faults"), task or self.holds)
        require_sheet(options.sheet, source)
        if isinstance(source, (str, Path)):
            with local_copy(source) as file:
                if not self.is_table(file, options):
                    return self.parse(file, options)
                return self.parse_table(open_table(file, kind_of(file), options.encoding, options.sheet), options)
        if isinstance(source, list) and source and all(isinstance(row, Placed) for row in source):
            return cast("list[ExampleT]", source)
        if options.encoding != "auto":
            raise ConfigError(f"--encoding is for files, and {name} is a table in memory; leave it out")
        return self.parse_table(table_of(source, name), options)


def require_used(options: ReadingOptions, known: Sequence[str], task: str) -> None:
    """Refuses options that the files of a task have no use for."""
    # 用不上的选项要拒绝而不是忽略：写它的人以为它起了作用
    for one in fields(options):
        if one.name not in (*known, "encoding") and getattr(options, one.name) is not None:
            raise ConfigError(f"{flag_of(one.name)} is not for the files of {task}; leave it out")


def require_sheet(sheet: str | None, source: DataSource) -> None:
    """Refuses the name of a sheet for what has none."""
    if sheet is not None and not (isinstance(source, (str, Path)) and is_workbook(source)):
        raise ConfigError(f"--sheet is for spreadsheets, and {name_of(source)} is none; leave it out")


def flag_of(name: str) -> str:
    """Returns how a field of `ReadingOptions` is called on the command line."""
    return "--choice-column" if name == "choice_columns" else "--" + name.replace("_", "-")


ENOUGH_DOCUMENTS = 20
"""Of so many documents in a file, what is of one is not divided between training and test."""

DataSource = str | Path | Rows
"""A file, its URL, or rows in memory."""


@contextmanager
def local_sources(sources: Mapping[str, DataSource]) -> Iterator[dict[str, DataSource]]:
    """Yields sources for one reading after another: each URL is downloaded once, to a copy that lasts for the block."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(local_copy(one)) if isinstance(one, (str, Path)) else one
            for name, one in sources.items()
        }


def shown_path(path: str | Path) -> str:
    """Returns a path for people; what is not UTF-8 in it becomes U+FFFD, which every page can hold."""
    return os.fsencode(path).decode("utf-8", "replace")


def name_of(source: DataSource) -> str:
    """Returns what a file, or the kind of a table in memory, is called on a model card."""
    return shown_path(Path(source).name) if isinstance(source, (str, Path)) else f"{type(source).__name__} in memory"


def by_name(said: str, sources: Iterable[DataSource]) -> str:
    """Returns what is said of sources without the folders above them, which only this machine has; fit for any page."""
    paths = [Path(one) for one in sources if isinstance(one, (str, Path))]
    above = {f"{one}/" for path in paths for one in (*path.parents, *path.absolute().parents) if one.name}
    # 长的在前：短的先去掉，会剩下半截
    folders = "|".join(map(re.escape, sorted(above, key=len, reverse=True)))
    return printable(re.sub(rf"(?<![\w./-])({folders})", "", said))


def table_of(rows: Rows, name: str) -> Table:
    """Returns rows in memory as a table; `name` stands for the file in messages."""
    if isinstance(rows, DataFrame):
        columns = tuple(str(column) for column in rows.columns)
        read = (Row(place_of(name, n), plain(cells)) for n, cells in enumerate(rows.itertuples(index=False, name=None)))
        table = Table(name, columns, True, chain([first], read)) if (first := next(read, None)) else None
    else:
        table = table_of_records(name, records_of(rows, name))
    if table is None:
        raise InputError(f"{name}: holds no row; give one for each example")
    # 数据框里叫 features 的是一列，不是各列的说明
    features = None if isinstance(rows, DataFrame) else getattr(rows, "features", None)
    if not features:
        return table
    class_names = class_names_of(table.first, features)
    return Table(name, table.first, True, (row._replace(class_names=class_names) for row in table.rows))
