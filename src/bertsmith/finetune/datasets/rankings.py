"""Reader of rankings: queries, texts, and how relevant each text is to its query.

A row is one pair of query and text; the rows of a query need not stand together. Graded judgements (0 to 3, as in
TREC) are divided by the highest grade first, since a sigmoid is trained towards them.
"""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.data.reading.lines import Placed
from bertsmith.errors import InputError
from bertsmith.finetune.datasets.columns import Column, Layout, has_any, table_reader
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.datasets.tables import NUMBER, Cell

_WORDS = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class RankingExample(Placed):
    """A query, a text, and how relevant the text is to the query: 0 not at all, 1 fully."""

    query: str
    text: str
    relevance: float

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.query, self.text)


def _relevance(cell: Cell, _options: ReadingOptions) -> float:
    text = cell._replace(names=()).text()
    value = float(text) if NUMBER.fullmatch(text) else _WORDS.get(text.lower(), -1.0)
    if not 0.0 <= value <= 1.0:
        raise InputError(
            f"{cell.place}: the relevance {text[:40]!r} is not in [0, 1]; divide grades by the highest one"
        )
    return value


_COLUMNS = (
    Column("query", "text_column", ("query", "question")),
    Column("text", "pair_column", ("text", "passage", "document")),
    Column("relevance", "label_column", ("label", "score", "relevance"), _relevance),
)
# 没有表头的第三列是数字，所以首行里出现已知的列名就是表头
_IS_HEADER = has_any(*((name,) for column in _COLUMNS for name in column.names))

RANKINGS = table_reader(
    "queries and texts", Layout(_COLUMNS, _IS_HEADER, ("query", "text", "relevance")), RankingExample
)
"""Judged pairs of a query and a text, as `RankingExample`."""
