"""Reader of rankings: queries, texts, and how relevant each text is to its query.

A row is one pair of query and text; the rows of a query need not stand together. Graded judgements (0 to 3, as in
TREC) are divided by the highest grade first, since a sigmoid is trained towards them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertsmith.data.reading.lines import Placed
from bertsmith.errors import InputError
from bertsmith.finetune.datasets.tables import (
    NUMBER,
    Row,
    Table,
    cell_text,
    column_number,
    first_known,
    kind_of,
    listed,
    open_table,
    step_over_header,
)

QUERY_NAMES = ("query", "question")
TEXT_NAMES = ("text", "passage", "document")
RELEVANCE_NAMES = ("label", "score", "relevance")
"""Header names that are understood without being told."""

_KNOWN_NAMES = frozenset((*QUERY_NAMES, *TEXT_NAMES, *RELEVANCE_NAMES))
_WORDS = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class RankingExample(Placed):
    """A query, a text, and how relevant the text is to the query: 0 not at all, 1 fully."""

    query: str
    text: str
    relevance: float


@dataclass(frozen=True)
class RankingColumns:
    """Which column holds what: a header name, or a number counted from 0; None finds it by the known names.

    Attributes:
        query: what is asked for.
        text: a candidate.
        relevance: a number in [0, 1], or `true` and `false`.
        header: whether the first row of a TSV or CSV is names; None takes it for names if it holds a known one.
    """

    query: str | int | None = None
    text: str | int | None = None
    relevance: str | int | None = None
    header: bool | None = None


def read_rankings(
    path: str | Path, columns: RankingColumns | None = None, *, encoding: str = "auto"
) -> list[RankingExample]:
    """Reads judged pairs, in the form the ending tells: `.csv`, `.jsonl`, `.parquet`, otherwise TSV.

    Args:
        path: the file, plain or packed (`.gz`, `.zst`); empty lines are skipped.
        columns: where query, text and relevance stand; without a header they are the first three columns.
        encoding: `auto` or a codec's name.

    Raises:
        InputError: the file is missing, empty, damaged or in another encoding, a column does not exist, a line is
            ragged, a query or text is empty, or a relevance is no number in [0, 1]. The message names file and line.
    """
    path = Path(path)
    columns = columns or RankingColumns()
    table = open_table(path, kind_of(path), encoding)
    query, text, relevance = _places(table, columns)
    examples = [
        RankingExample(
            cell_text(path, row, query, "query"),
            cell_text(path, row, text, "text"),
            _relevance(path, row, relevance),
            place=f"{path}: {row.place}",
        )
        for row in table.rows
    ]
    if not examples:
        raise InputError(f"{path}: holds a header and no example")
    return examples


def _places(table: Table, columns: RankingColumns) -> list[int]:
    """Finds the columns of query, text and relevance; steps over the header of a TSV or CSV."""
    named = {"query": columns.query, "text": columns.text, "relevance": columns.relevance}
    lowered = [name.lower() for name in table.first]
    # 没有表头的第三列是数字，所以首行里出现已知的列名就是表头
    known = not _KNOWN_NAMES.isdisjoint(lowered)
    has_header = step_over_header(table, list(named.values()), columns.header, known)
    # 多于三列而没有表头：哪一列是什么，猜错了也不会报错，所以不猜
    if not has_header and len(lowered) > len(named) and None in named.values():
        raise InputError(
            f"{table.path}: {len(lowered)} columns and no header; say which is which by number, such as --text-column 0"
            " --pair-column 1 --label-column 2 for query, text and relevance"
        )
    known_names = (QUERY_NAMES, TEXT_NAMES, RELEVANCE_NAMES)
    found = []
    for place, ((what, column), names) in enumerate(zip(named.items(), known_names, strict=True)):
        default = first_known(table.path, lowered, names) if has_header else (place if place < len(lowered) else None)
        number = column_number(table.path, column, table.first, default=default)
        if number is None:
            option = {"query": "--text-column", "text": "--pair-column", "relevance": "--label-column"}[what]
            raise InputError(
                f"{table.path}: no {what} column among {listed(table.first)}; call it {names[0]}, or name it with"
                f" {option}"
            )
        found.append(number)
    if len(set(found)) < len(found):
        raise InputError(f"{table.path}: a column has one use; check --text-column, --pair-column and --label-column")
    return found


def _relevance(path: Path, row: Row, column: int) -> float:
    text = cell_text(path, row, column, "relevance")
    value = float(text) if NUMBER.fullmatch(text) else _WORDS.get(text.lower(), -1.0)
    if not 0.0 <= value <= 1.0:
        raise InputError(
            f"{path}: {row.place}: the relevance {text[:40]!r} is not in [0, 1]; divide grades by the highest one"
        )
    return value
