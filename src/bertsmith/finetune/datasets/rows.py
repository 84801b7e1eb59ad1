"""Tables in memory -> rows of cells: data frames, data sets of the library `datasets`, lists of dictionaries.

Wherever a labelled file is taken, `Rows` are taken too, and what is wrong with them is said in the same words. Neither
pandas nor `datasets` is imported: an object is known by what it can do, so that both may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.tables import Row, Table, class_names_of, listed, table_of_records


@runtime_checkable
class DataFrame(Protocol):
    """What is used of a data frame of pandas."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""
        ...

    def itertuples(self, index: bool = ..., name: str | None = ...) -> Iterable[tuple[Any, ...]]:
        """Yields the cells of each row."""
        ...


Rows = DataFrame | Iterable[Mapping[str, Any]]
"""A data frame, or whatever yields a dictionary for each row, such as a list or a `datasets.Dataset`."""
DataSource = str | Path | Rows
"""A file, its URL, or rows in memory."""


def name_of(source: DataSource) -> str:
    """Returns what a file, or the kind of a table in memory, is called on a model card."""
    return Path(source).name if isinstance(source, (str, Path)) else f"{type(source).__name__} in memory"


def table_of(rows: Rows, name: str) -> Table:
    """Returns rows in memory as a table.

    Args:
        rows: in memory.
        name: stands for the file in messages, such as `train`.

    Raises:
        InputError: there are no rows, or it is no table. Reading the rows raises it for one that is no dictionary.
    """
    if isinstance(rows, Mapping):
        # DatasetDict 和“列名 → 列”的字典都是 Mapping：猜不出要哪一个
        keys = listed([str(key) for key in rows])
        raise InputError(f"{name}: is a dictionary of {keys}; give one of its splits, or a dictionary for each row")
    if isinstance(rows, DataFrame):
        columns = tuple(str(column) for column in rows.columns)
        read = (Row(_place(name, n), _plain(cells)) for n, cells in enumerate(rows.itertuples(index=False, name=None)))
        return Table(name, columns, True, _some(name, read))
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise InputError(f"{name}: is a {type(rows).__name__}; give a file, a data frame or a list of dictionaries")
    table = table_of_records(name, _records(rows, name))
    features = getattr(rows, "features", None)
    if table is None:
        raise _no_row(name)
    if not features:
        return table
    class_names = class_names_of(table.first, features)
    return Table(name, table.first, True, (row._replace(class_names=class_names) for row in table.rows))


def _records(rows: Iterable[Any], name: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    for number, record in enumerate(rows):
        if not isinstance(record, Mapping):
            raise InputError(f"{_place(name, number)} is a {type(record).__name__}, not a dictionary of its columns")
        yield _place(name, number), _plain(record)


def _place(name: str, number: int) -> str:
    # 内存里的行从 0 数起，和 df.iloc[n]、rows[n] 一样
    return f"{name}: row {number} (from 0)"


def _some(name: str, rows: Iterator[Row]) -> Iterator[Row]:
    first = next(rows, None)
    if first is None:
        raise _no_row(name)
    return chain([first], rows)


def _no_row(name: str) -> InputError:
    return InputError(f"{name}: holds no row; give one for each example")


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: arrays as lists, numbers as Python's own, what is missing as None."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    # numpy 与 torch 的数和数组都有 tolist
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    # pandas 的缺失值：NaN 与自己不等，NA 的比较没有真假
    return None if type(value).__name__ in ("NAType", "NaTType") or value != value else value
