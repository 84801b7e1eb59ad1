"""Readers of texts with labels, and of pairs of texts: TSV, CSV, JSON Lines or Parquet.

What a label is decides the reader: a class (`LABELLED`), a set of classes (`MULTILABELLED`) or a number (`SCORED`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith.data.reading.lines import Placed
from bertsmith.errors import InputError
from bertsmith.finetune.datasets.columns import Column, Layout, has_any, table_reader
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.datasets.tables import NUMBER, Cell, Table, listed, require_unicode

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


@dataclass(frozen=True)
class LabelledText(Placed):
    """A text, or a pair of texts, and its class."""

    text: str
    pair: str | None
    label: str

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True)
class MultiLabelledText(Placed):
    """A text, or a pair of texts, and all the classes it has, possibly none."""

    text: str
    pair: str | None
    labels: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True)
class ScoredText(Placed):
    """A text, or a pair of texts, and a number, such as how alike the two are."""

    text: str
    pair: str | None
    score: float

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


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


def _label_set(cell: Cell, options: ReadingOptions) -> tuple[str, ...]:
    """Reads the labels of a text: a list, or a cell with a separator between them; an empty cell holds none."""
    value = cell.value
    if value is None or (isinstance(value, str) and not value.strip()):
        return ()
    if isinstance(value, list):
        labels = [cell._replace(value=label).text() for label in value]
    else:
        separator = "," if options.separator is None else options.separator
        labels = [label.strip() for label in cell.text().split(separator)]
    for label in labels:
        if not label:
            raise InputError(f"{cell.place} has an empty label among {listed(labels)}; check its separators")
        require_unicode(cell.place, label)
    different = tuple(dict.fromkeys(labels))
    # 0/1 向量 [0, 1, 1] 若当作标签名读，去重后每条文本都有同样的两个“标签”，得分还会极好
    if len(different) < len(labels) and (isinstance(value, list) or any(set(labels) <= flags for flags in _FLAGS)):
        raise InputError(f"{cell.place}: the same label twice; {_BY_NAME}")
    return different


def _score(cell: Cell, _options: ReadingOptions) -> float:
    text = cell._replace(names=()).text()
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise InputError(f"{cell.place}: the score {text[:40]!r} is not a finite number, such as 3.5")
    score = float(text)
    if score and not _SMALLEST_SCORE <= abs(score) <= _LARGEST_SCORE:
        raise InputError(f"{cell.place}: the score {text[:40]} does not fit 32 bits; scale the scores")
    return score


def _check_classes(table: Table, options: ReadingOptions, examples: list[LabelledText]) -> None:
    _refuse_unseen_header(table, options, examples, [(example.label,) for example in examples])
    # SNLI 与 MNLI 用 - 标记标注者没有取得一致的句对：那不是一个类，却会被当成一个类来学
    undecided = [example for example in examples if example.label == "-"]
    if undecided and any(example.label == "entailment" for example in examples):
        raise InputError(
            f"{undecided[0].at}the label '-' means that the annotators did not agree; remove such rows"
            f" ({len(undecided):,} in all)"
        )


def _check_label_sets(table: Table, options: ReadingOptions, examples: list[MultiLabelledText]) -> None:
    _refuse_unseen_header(table, options, examples, [example.labels for example in examples])
    # 两个标签的 0/1 向量没有重复，看起来像两个标签都有：每一行都如此才认得出来
    if len(examples) > 1 and all(set(example.labels) in _FLAGS for example in examples):
        raise InputError(f"{examples[0].at}{_BY_NAME}")


def _refuse_unseen_header(
    table: Table,
    options: ReadingOptions,
    examples: Sequence[LabelledText] | Sequence[MultiLabelledText],
    labels: Sequence[Sequence[str]],
) -> None:
    """A header of unknown names would be an example and a class of its own: a first row like that must be told.

    Raises:
        InputError: the cells of line 1 look like names, and no other line has its label.
    """
    if table.has_names or options.header is not None or len(examples) < 3:
        return
    first, rest = examples[0], {label for row in labels[1:] for label in row}
    cells = (first.text, *labels[0])
    # 首行在第 1 行、每格都只有几个词、标签在别处不再出现：多半是认不出的表头
    named = all(len(cell) <= 40 and len(cell.split()) <= 5 and not NUMBER.fullmatch(cell) for cell in cells)
    if first.place == f"{table.path}: line 1" and named and labels[0] and rest.isdisjoint(labels[0]):
        raise InputError(
            f"{first.at}is it a header? no other line has the label {labels[0][0][:40]!r}; say --header or --no-header"
        )


_FLAGS = ({"0", "1"}, {"0.0", "1.0"}, {"false", "true"})
_BY_NAME = 'labels are given by name, such as ["sport", "news"], not as a 0 or 1 for each'
_SMALLEST_SCORE, _LARGEST_SCORE = 1e-30, 1e30
"""Far within the range of float32, so that squares of differences in units of the spread are, too."""

_TEXTS = (
    Column(
        "text",
        "text_column",
        tuple(dict.fromkeys((*TEXT_NAMES, *(name for pair in PAIRS for name in pair)))),
        exclusive=True,
    ),
    Column("pair", "pair_column", required=False, called="text"),
)


def _layout(label: Column) -> Layout:
    # 单独一个 review 或 question 也可能是一条文本；这些名字才说明首行是表头
    is_header = has_any(*((name,) for name in (*label.names, *TEXT_NAMES[:3])), *PAIRS)
    return Layout((*_TEXTS, label), is_header, ("text", label.role), PAIRS)


LABELLED = table_reader(
    "texts with a label",
    _layout(Column("label", "label_column", LABEL_NAMES)),
    LabelledText,
    check=_check_classes,
)
"""Texts or pairs with one class each, as `LabelledText`."""

MULTILABELLED = table_reader(
    "texts with labels",
    _layout(Column("labels", "label_column", LABEL_SET_NAMES, _label_set, called="label")),
    MultiLabelledText,
    check=_check_label_sets,
    options=("separator",),
)
"""Texts or pairs with any number of classes each, as `MultiLabelledText`."""

SCORED = table_reader("texts with a score", _layout(Column("score", "label_column", SCORE_NAMES, _score)), ScoredText)
"""Texts or pairs with a number each, as `ScoredText`."""
