"""Tables in memory -> rows of cells: data frames, data sets of the library `datasets`, lists of dictionaries.

Wherever a labelled file is taken, `Rows` are taken too, and what is wrong with them is said in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from bertsmith.data.reading.rows import DataFrame, Rows, place_of, plain, records_of
from bertsmith.errors import InputError
from bertsmith.finetune.datasets.tables import Row, Table, class_names_of, table_of_records

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
    if isinstance(rows, DataFrame):
        columns = tuple(str(column) for column in rows.columns)
        read = (Row(place_of(name, n), plain(cells)) for n, cells in enumerate(rows.itertuples(index=False, name=None)))
        return Table(name, columns, True, _some(name, read))
    table = table_of_records(name, records_of(rows, name))
    features = getattr(rows, "features", None)
    if table is None:
        raise _no_row(name)
    if not features:
        return table
    class_names = class_names_of(table.first, features)
    return Table(name, table.first, True, (row._replace(class_names=class_names) for row in table.rows))


def _some(name: str, rows: Iterator[Row]) -> Iterator[Row]:
    first = next(rows, None)
    if first is None:
        raise _no_row(name)
    return chain([first], rows)


def _no_row(name: str) -> InputError:
    return InputError(f"{name}: holds no row; give one for each example")
