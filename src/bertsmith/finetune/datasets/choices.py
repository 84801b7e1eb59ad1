"""Reader of multiple choice: a context and several continuations or answers, one of them right.

Both spellings of the field are read: one column per choice (SWAG: `ending0` to `ending3`, where `sent2` begins every
ending), or one list of choices (JSON Lines and Parquet).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith.data.reading.lines import Placed
from bertsmith.errors import InputError
from bertsmith.finetune.datasets.columns import Column, Layout, table_reader
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.datasets.tables import Cell

_LABEL = re.compile("[0-9]{1,6}|[A-Za-z]")


@dataclass(frozen=True)
class ChoiceExample(Placed):
    """A context, the choices that may go with it, and the number of the right one, from 0."""

    context: str
    choices: tuple[str, ...]
    label: int

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.context, *self.choices)


def _choices(cell: Cell, _options: ReadingOptions) -> list[str]:
    values = cell.value if isinstance(cell.value, list) else [cell.value]
    texts = [Cell(cell.place, f"choice {number}", value).text() for number, value in enumerate(values)]
    if len(texts) < 2:
        raise InputError(f"{cell.place} has fewer than two choices")
    return texts


def _example(context: str, choices: list[str], label: str, stem: str | None, place: str) -> ChoiceExample:
    number = -1
    if _LABEL.fullmatch(label):
        number = int(label) if label.isdigit() else ord(label.upper()) - ord("A")
    if not 0 <= number < len(choices):
        raise InputError(f"{place}: the label {label[:40]!r} is none of its {len(choices)} choices, from 0 or A")
    begin = "" if stem is None else f"{stem} "
    return ChoiceExample(context, tuple(begin + text for text in choices), number, place=place)


def _is_header(first: Sequence[str], options: ReadingOptions) -> bool:
    """Takes the first row for names, unless the columns are told by number and its label looks like one."""
    if options.choice_columns is None or options.text_column is None or not isinstance(options.label_column, int):
        return True
    # 列都按编号说了，首行的标签又像个标签：文件没有表头，首行也是一道题
    column = options.label_column
    return not (0 <= column < len(first) and _LABEL.fullmatch(first[column]))


CHOICES = table_reader(
    "multiple choice",
    Layout(
        (
            Column("context", "text_column", ("context", "sent1", "premise", "article", "passage", "question")),
            Column(
                "choices",
                "choice_columns",
                ("choices", "endings", "options"),
                _choices,
                numbered=re.compile("(?:choice|ending|option|answer)[ _-]?([0-9]+|[a-e])"),
            ),
            Column("label", "label_column", ("label", "answer")),
            # 选项之前的开头：多数文件没有
            Column("stem", "pair_column", ("sent2", "stem", "question"), required=False),
        ),
        _is_header,
    ),
    _example,
)
"""Questions with several choices, as `ChoiceExample`."""
