"""Reader of multiple choice: a context and several continuations or answers, one of them right.

Both spellings of the field are read: one column per choice (SWAG: `ending0` to `ending3`, where `sent2` begins every
ending), or one list of choices (JSON Lines and Parquet).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.tables import (
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

CONTEXT_NAMES = ("context", "sent1", "premise", "article", "passage", "question")
STEM_NAMES = ("sent2", "stem", "question")
CHOICES_NAMES = ("choices", "endings", "options")
LABEL_NAMES = ("label", "answer")
_LABEL = re.compile("[0-9]{1,6}|[A-Za-z]")
_CHOICE = re.compile(r"(choice|ending|option|answer)[ _-]?([0-9]+|[a-e])", re.IGNORECASE)


@dataclass(frozen=True)
class ChoiceExample:
    """A context, the choices that may go with it, and the number of the right one, from 0."""

    context: str
    choices: tuple[str, ...]
    label: int


@dataclass(frozen=True)
class ChoiceColumns:
    """Which column holds what: a header name, or a number counted from 0; None finds it by the known names.

    Attributes:
        context: what is asked or continued.
        stem: the beginning of every choice, put before it with a space; most files have none.
        choices: the columns of the choices in order, or the one that holds lists of them.
        label: the right choice, a number from 0 or a letter from A.
        header: whether the first row of a TSV or CSV is names; None takes it for names, unless the columns
            are told by number and its label looks like one.
    """

    context: str | int | None = None
    stem: str | int | None = None
    choices: Sequence[str | int] | None = None
    label: str | int | None = None
    header: bool | None = None


def read_choices(
    path: str | Path, columns: ChoiceColumns | None = None, *, encoding: str = "auto"
) -> list[ChoiceExample]:
    """Reads multiple choice from a CSV or TSV, JSON Lines or Parquet, told by its ending.

    Args:
        path: the file, plain or packed (`.gz`, `.zst`).
        columns: where context, choices and label stand; all of them are numbers in a file without a header.
        encoding: `auto` or a codec's name.

    Raises:
        InputError: the file is missing, empty, damaged or malformed, a column does not exist, a text is empty, there
            are fewer than two choices, or the label is none of them. The message names file and line.
    """
    path = Path(path)
    columns = columns or ChoiceColumns()
    table = open_table(path, kind_of(path), encoding)
    lowered = [name.lower() for name in table.first]
    told = (columns.context, columns.stem, columns.label, *(columns.choices or ()))
    # 列都按编号说了，首行的标签又像个标签：文件没有表头，首行也是一道题
    first_label = table.first[columns.label] if columns.label in range(len(table.first)) else ""  # type: ignore[index]
    is_example = columns.choices is not None and columns.context is not None and _LABEL.fullmatch(first_label)
    if not step_over_header(table, told, columns.header, not is_example):
        if columns.choices is None or columns.context is None or columns.label is None:
            raise InputError(
                f"{path}: has no header; say which column is which by number: --text-column, --choice-column once for"
                " each choice, and --label-column"
            )
        lowered = []
    context = column_number(path, columns.context, table.first, default=first_known(path, lowered, CONTEXT_NAMES))
    stem = column_number(path, columns.stem, table.first, default=first_known(path, lowered, STEM_NAMES))
    if stem == context:
        # 没有文章时问题就是上下文；有文章时问题写在每个选项前面（RACE、CosmosQA 的通行做法）
        stem = None
    label = column_number(path, columns.label, table.first, default=first_known(path, lowered, LABEL_NAMES))
    for name, column in (("context", context), ("label", label)):
        if column is None:
            option = {"context": "--text-column", "label": "--label-column"}[name]
            raise InputError(f"{path}: no {name} column among {listed(table.first)}; name it with {option}")
    assert context is not None
    assert label is not None
    choices = _choice_columns(table, columns.choices)
    used = [column for column in (context, stem, label, *choices) if column is not None]
    if len(set(used)) < len(used):
        raise InputError(f"{path}: a column has one use; check --text-column, --choice-column and --label-column")
    examples = []
    for row in table.rows:
        texts = _choices(path, row, choices)
        begin = "" if stem is None else cell_text(path, row, stem, "stem") + " "
        examples.append(
            ChoiceExample(
                cell_text(path, row, context, "context"),
                tuple(begin + text for text in texts),
                _label(path, row, label, len(texts)),
            )
        )
    if not examples:
        raise InputError(f"{path}: holds a header and no example")
    return examples


def _choice_columns(table: Table, named: Sequence[str | int] | None) -> list[int]:
    if named is not None:
        found = [column_number(table.path, column, table.first, default=None) for column in named]
        return [column for column in found if column is not None]
    lowered = [name.lower() for name in table.first]
    whole = first_known(table.path, lowered, CHOICES_NAMES)
    if whole is not None:
        return [whole]
    # 按编号排序而不是按列的先后：ending10 在 ending2 之后
    numbered = [(match[2].zfill(6), place) for place, name in enumerate(lowered) if (match := _CHOICE.fullmatch(name))]
    if len(numbered) < 2:
        raise InputError(
            f"{table.path}: no choices among {listed(table.first)}; call them choice0, choice1, ... or name each"
            " with --choice-column"
        )
    return [place for _, place in sorted(numbered)]


def _choices(path: Path, row: Row, columns: Sequence[int]) -> list[str]:
    cell = row.cells[columns[0]]
    if len(columns) == 1 and isinstance(cell, list):
        inner = Row(row.place, cell)
        texts = [cell_text(path, inner, place, f"choice {place}") for place in range(len(cell))]
    else:
        texts = [cell_text(path, row, column, f"choice {place}") for place, column in enumerate(columns)]
    if len(texts) < 2:
        raise InputError(f"{path}: {row.place} has fewer than two choices")
    return texts


def _label(path: Path, row: Row, column: int, count: int) -> int:
    text = cell_text(path, row, column, "label")
    number = ord(text.upper()) - ord("A") if re.fullmatch("[A-Za-z]", text) else -1
    number = int(text) if re.fullmatch("[0-9]{1,6}", text) else number
    if not 0 <= number < count:
        raise InputError(f"{path}: {row.place}: the label {text[:40]!r} is none of its {count} choices, from 0 or A")
    return number
