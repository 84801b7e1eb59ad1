"""Readers of labelled tables: from TSV, CSV, JSON Lines or Parquet to examples, with the place in every complaint.

What a label is decides the reader: a class (`read_labelled`), a set of classes (`read_multilabelled`) or a number
(`read_scored`). Words with tags are read in `tagged`, questions in `questions`, multiple choice in `choices`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.data.reading.lines import Placed
from bertsmith.errors import InputError
from bertsmith.finetune.datasets.tables import (
    NUMBER,
    Row,
    TableKind,
    cell_text,
    column_number,
    first_known,
    kind_of,
    listed,
    open_table,
    require_unicode,
    step_over_header,
)

TEXT_NAMES = ("text", "text_a", "sentence", "sentence1", "review", "question")
PAIRS = (
    ("text_a", "text_b"),
    ("text", "pair"),
    ("text", "text_b"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("premise", "hypo"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "answer"),
)
LABEL_NAMES = ("label", "class", "sentiment")
LABEL_SET_NAMES = ("labels", *LABEL_NAMES)
SCORE_NAMES = ("score", "similarity", *LABEL_NAMES)
"""Header names that are understood without being told."""

_ALL_TEXTS = tuple(dict.fromkeys((*TEXT_NAMES, *(name for pair in PAIRS for name in pair))))


@dataclass(frozen=True)
class LabelledText(Placed):
    """A text, or a pair of texts, and its class."""

    text: str
    pair: str | None
    label: str


@dataclass(frozen=True)
class MultiLabelledText(Placed):
    """A text, or a pair of texts, and all the classes it has, possibly none."""

    text: str
    pair: str | None
    labels: tuple[str, ...]


@dataclass(frozen=True)
class ScoredText(Placed):
    """A text, or a pair of texts, and a number, such as how alike the two are."""

    text: str
    pair: str | None
    score: float


@dataclass(frozen=True)
class Columns:
    """Which column holds what: a header name, or a number counted from 0; None finds it by the known names.

    Attributes:
        text: the text, or the first of two.
        pair: the second text.
        label: the class, the classes or the number.
        header: whether the first row of a TSV or CSV is names; None takes it for names if it holds a known one.
    """

    text: str | int | None = None
    pair: str | int | None = None
    label: str | int | None = None
    header: bool | None = None


def read_labelled(path: str | Path, columns: Columns | None = None, *, encoding: str = "auto") -> list[LabelledText]:
    """Reads texts with one class each, in the form its ending tells: `.csv`, `.jsonl`, `.parquet`, otherwise TSV.

    Args:
        path: the file, plain or packed (`.gz`, `.zst`); empty lines are skipped.
        columns: where text, second text and label stand; a file without a header holds text and label, or is told by
            number.
        encoding: `auto` or a codec's name.

    Raises:
        InputError: the file is missing, empty, damaged, binary or in another encoding; a column does not exist; a line
            is ragged or malformed; a text or label is empty. The message names file and line.
    """
    path = Path(path)
    kind = kind_of(path)
    examples = [
        LabelledText(text, pair, cell_text(path, row, label, "label"), place=f"{path}: {row.place}")
        for text, pair, row, label in _texts(path, kind, columns, encoding, LABEL_NAMES)
    ]
    _refuse_unseen_header(path, kind, columns, examples, [(example.label,) for example in examples])
    _refuse_disagreement(examples)
    return examples


def read_multilabelled(
    path: str | Path, columns: Columns | None = None, *, separator: str = ",", encoding: str = "auto"
) -> list[MultiLabelledText]:
    """Reads texts with any number of classes each; see `read_labelled` for the forms and errors.

    Args:
        path: the file.
        columns: where text, second text and labels stand.
        separator: stands between two labels of a cell; JSON Lines and Parquet may hold lists instead. An empty cell is
            a text without labels.
        encoding: `auto` or a codec's name.

    Raises:
        InputError: as `read_labelled`, though a text may be without labels; the separator is empty, a list has a label
            twice, or the lists hold a 0 or 1 for each label instead of its name.
    """
    path = Path(path)
    if not separator:
        raise InputError("the separator between labels cannot be empty; pass ',' or '|'")
    kind = kind_of(path)
    examples = [
        MultiLabelledText(text, pair, _label_set(path, row, label, separator), place=f"{path}: {row.place}")
        for text, pair, row, label in _texts(path, kind, columns, encoding, LABEL_SET_NAMES)
    ]
    _refuse_unseen_header(path, kind, columns, examples, [example.labels for example in examples])
    # 两个标签的 0/1 向量没有重复，看起来像两个标签都有：每一行都如此才认得出来
    if len(examples) > 1 and all(set(example.labels) in _FLAGS for example in examples):
        raise InputError(f"{examples[0].at}{_BY_NAME}")
    return examples


_SMALLEST_SCORE, _LARGEST_SCORE = 1e-30, 1e30
# Far within the range of float32, so that squares of differences in units of the spread are, too.


def read_scored(path: str | Path, columns: Columns | None = None, *, encoding: str = "auto") -> list[ScoredText]:
    """Reads texts or pairs with a number each, for regression; see `read_labelled` for the forms and errors."""
    path = Path(path)
    return [
        ScoredText(text, pair, _score(path, row, label), place=f"{path}: {row.place}")
        for text, pair, row, label in _texts(path, kind_of(path), columns, encoding, SCORE_NAMES)
    ]


def labels_of(examples: Sequence[LabelledText] | Sequence[MultiLabelledText]) -> list[str]:
    """Returns the classes in a stable order: numbers by value, everything else alphabetically.

    Raises:
        InputError: there is only one class (none, where a text may have several).
    """
    labels: set[str] = set()
    least = 2
    for example in examples:
        if isinstance(example, LabelledText):
            labels.add(example.label)
        else:
            labels.update(example.labels)
            least = 1
    if len(labels) < least:
        if least == 1:
            raise InputError("no text of the training file has a label; at least one is needed")
        raise InputError(f"the training file has one class only ({listed(sorted(labels))}); at least two are needed")
    if all(re.fullmatch(r"-?[0-9]+", label) for label in labels):
        # 数值相同的写法（1 与 01）再按文本排，否则顺序取决于集合的散列
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def _refuse_unseen_header(
    path: Path,
    kind: TableKind,
    columns: Columns | None,
    examples: Sequence[LabelledText] | Sequence[MultiLabelledText],
    labels: Sequence[Sequence[str]],
) -> None:
    """A header of unknown names would be an example and a class of its own: a first row like that must be told.

    Raises:
        InputError: the cells of line 1 look like names, and no other line has its label.
    """
    if kind not in ("tsv", "csv") or (columns is not None and columns.header is not None) or len(examples) < 3:
        return
    first, rest = examples[0], {label for row in labels[1:] for label in row}
    cells = (first.text, *labels[0])
    # 首行在第 1 行、每格都只有几个词、标签在别处不再出现：多半是认不出的表头
    named = all(len(cell) <= 40 and len(cell.split()) <= 5 and not NUMBER.fullmatch(cell) for cell in cells)
    if first.place == f"{path}: line 1" and named and labels[0] and rest.isdisjoint(labels[0]):
        raise InputError(
            f"{first.at}is it a header? no other line has the label {labels[0][0][:40]!r}; say --header or --no-header"
        )


def _refuse_disagreement(examples: Sequence[LabelledText]) -> None:
    """SNLI and MNLI label a pair `-` where the annotators did not agree: no class, but it would be learned as one.

    Raises:
        InputError: there is one, beside pairs of entailment.
    """
    undecided = [example for example in examples if example.label == "-"]
    if undecided and any(example.label == "entailment" for example in examples):
        raise InputError(
            f"{undecided[0].at}the label '-' means that the annotators did not agree; remove such rows"
            f" ({len(undecided):,} in all)"
        )


def _texts(
    path: Path, kind: TableKind, columns: Columns | None, encoding: str, label_names: Sequence[str]
) -> Iterator[tuple[str, str | None, Row, int]]:
    """Yields text, second text, row and the number of the label column for every example."""
    columns = columns or Columns()
    table = open_table(path, kind, encoding)
    lowered = [name.lower() for name in table.first]
    known = any(name in lowered for name in (*label_names, *TEXT_NAMES[:3])) or _known_pair(lowered) is not None
    if step_over_header(table, (columns.text, columns.pair, columns.label), columns.header, known):
        first, second = _known_texts(path, lowered, columns)
        defaults = (first, second, first_known(path, lowered, label_names))
    else:
        defaults = _unnamed(path, len(lowered), columns)
    text, pair, label = (
        column_number(path, column, table.first, default=default)
        for column, default in zip((columns.text, columns.pair, columns.label), defaults, strict=True)
    )
    if text is None:
        raise InputError(f"{path}: no text column among {listed(table.first)}; name it with --text-column")
    if label is None:
        raise InputError(f"{path}: no label column among {listed(table.first)}; name it with --label-column")
    if label in (text, pair) or text == pair:
        raise InputError(f"{path}: a column has one use; check --text-column, --pair-column and --label-column")
    row = None
    for row in table.rows:
        second_text = None if pair is None else cell_text(path, row, pair, "text")
        yield cell_text(path, row, text, "text"), second_text, row, label
    if row is None:
        raise InputError(f"{path}: holds a header and no example")


def _known_pair(header: Sequence[str]) -> tuple[str, str] | None:
    return next((pair for pair in PAIRS if pair[0] in header and pair[1] in header), None)


def _known_texts(path: Path, header: Sequence[str], columns: Columns) -> tuple[int | None, int | None]:
    """Returns the numbers of the text and the second text that a header names; what is told needs no guess.

    Raises:
        InputError: the header has several texts that are no known pair.
    """
    if columns.text is not None:
        return None, None
    told = {column.lower() if isinstance(column, str) else column for column in (columns.pair, columns.label)}
    free = [name for number, name in enumerate(header) if name not in told and number not in told]
    if columns.pair is None and (pair := _known_pair(free)) is not None:
        return first_known(path, header, pair[:1]), first_known(path, header, pair[1:])
    found = [name for name in _ALL_TEXTS if name in free]
    # 两列都像文本时只读一列，等于悄悄丢掉一半输入
    if len(found) > 1:
        raise InputError(
            f"{path}: columns {listed(found)} may all be texts; say which with --text-column, and --pair-column if two"
        )
    return first_known(path, header, found), None


def _unnamed(path: Path, width: int, columns: Columns) -> tuple[int | None, int | None, int | None]:
    """Returns the numbers of text, second text and label in a file without a header.

    Raises:
        InputError: there are more than two columns, and not all is told.
    """
    if width > 2 and (columns.text is None or columns.label is None):
        # 三列以上而没有表头：哪一列是什么，猜错了也不会报错，所以不猜
        raise InputError(
            f"{path}: {width} columns and no header; say which is which by number, such as --text-column 0"
            " --pair-column 1 --label-column 2"
        )
    if width != 2:
        return 0, None, None
    # 两列里说了一列，另一列就是另一样
    other: dict[str | int | None, int] = {0: 1, 1: 0}
    return other.get(columns.label, 0), None, other.get(columns.text, 1)


_FLAGS = ({"0", "1"}, {"0.0", "1.0"}, {"false", "true"})
_BY_NAME = 'labels are given by name, such as ["sport", "news"], not as a 0 or 1 for each'


def _label_set(path: Path, row: Row, column: int, separator: str) -> tuple[str, ...]:
    cell = row.cells[column]
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return ()
    if isinstance(cell, list):
        inner = Row(row.place, cell)
        labels = [cell_text(path, inner, place, "label") for place in range(len(cell))]
    else:
        labels = [label.strip() for label in cell_text(path, row, column, "label").split(separator)]
    for label in labels:
        if not label:
            raise InputError(f"{path}: {row.place} has an empty label among {listed(labels)}; check its separators")
        require_unicode(f"{path}: {row.place}", label)
    different = tuple(dict.fromkeys(labels))
    # 0/1 向量 [0, 1, 1] 若当作标签名读，去重后每条文本都有同样的两个“标签”，得分还会极好
    if len(different) < len(labels) and (isinstance(cell, list) or any(set(labels) <= flags for flags in _FLAGS)):
        raise InputError(f"{path}: {row.place}: the same label twice; {_BY_NAME}")
    return different


def _score(path: Path, row: Row, column: int) -> float:
    text = cell_text(path, row, column, "score")
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise InputError(f"{path}: {row.place}: the score {text[:40]!r} is not a finite number, such as 3.5")
    score = float(text)
    if score and not _SMALLEST_SCORE <= abs(score) <= _LARGEST_SCORE:
        raise InputError(f"{path}: {row.place}: the score {text[:40]} does not fit 32 bits; scale the scores")
    return score
