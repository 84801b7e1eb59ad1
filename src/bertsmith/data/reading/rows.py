"""Rows in memory: data frames, data sets of the library `datasets`, lists of dictionaries.

Neither pandas nor `datasets` is imported: an object is known by what it can do, so that both may be missing. What is
wrong with a row is said with its place, `train: row 7 (from 0)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bertsmith.errors import InputError


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
FileNames = str | Path | Sequence[str | Path]
"""A file, folder, pattern or URL, or several."""


def file_names(given: FileNames | Rows) -> list[str | Path] | None:
    """Returns the names of files as a list; None for what is no name, nor a sequence of names alone."""
    if isinstance(given, (str, Path)):
        return [given]
    if isinstance(given, Sequence) and all(isinstance(one, (str, Path)) for one in given):
        return list(given)
    return None


def require_file_names(given: FileNames, name: str, instead: str) -> list[str]:
    """Returns the names of files as a list, for work that needs files.

    Args:
        given: the files.
        name: of the argument, for messages.
        instead: what to give instead of rows.

    Raises:
        InputError: it is something else, such as rows in memory.
    """
    names = file_names(given)
    if names is None:
        raise InputError(f"{name}: is a {type(given).__name__}, and files are needed; {instead}")
    return [str(one) for one in names]


def records_of(rows: Rows, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each row as a dictionary with its place.

    Args:
        rows: in memory.
        name: stands for the file in messages, such as `train`.

    Raises:
        InputError: it is no table, or a row is no dictionary (while iterating).
    """
    if isinstance(rows, Mapping):
        # DatasetDict 和“列名 → 列”的字典都是 Mapping：猜不出要哪一个
        keys = ", ".join(str(key)[:40] for key in list(rows)[:12])
        raise InputError(f"{name}: is a dictionary of {keys}; give one of its splits, or a dictionary for each row")
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


def texts_in(rows: Rows, column: str, name: str) -> Iterator[str]:
    """Yields the texts of a column of rows; as in files, a row may lack its text.

    Raises:
        InputError: as `records_of`, or there is no such column, or a cell holds no text (while iterating).
    """
    for place, record in records_of(rows, name):
        if column not in record:
            there = ", ".join(str(key)[:40] for key in list(record)[:12])
            raise InputError(f"{place} has no column {column!r} (it has {there}); name the right one with text_field")
        text = record[column]
        if text is not None and not isinstance(text, str):
            raise InputError(f"{place}: column {column!r} holds {type(text).__name__}, not text; see text_field")
        if text:
            yield text


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
