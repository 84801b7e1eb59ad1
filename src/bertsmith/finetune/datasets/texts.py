"""Readers of tables with an example a row: texts or pairs with labels, judged pairs, and questions with choices.

A relevance is in [0, 1], since a sigmoid is trained towards it. Choices come in either spelling of the field: a column
for each (SWAG: `ending0` to `ending3`, where `sent2` begins every ending), or a list of them.
"""

from __future__ import annotations

import ast
import contextlib
import math
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.data.reading.lines import Placed, read_text
from bertsmith.data.reading.sources import walk
from bertsmith.data.reading.tables import NUMBER, Cell, Table, listed, require_unicode
from bertsmith.errors import InputError
from bertsmith.finetune.datasets import Column, Faults, Layout, ReadingOptions, require_used
from bertsmith.finetune.datasets.columns import has_any, table_reader

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
class TextOrPair(Placed):
    """A text, or a pair of texts."""

    text: str
    pair: str | None

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.text,) if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True)
class LabelledText(TextOrPair):
    """A text, or a pair of texts, and its class."""

    label: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Its class alone."""
        return (self.label,)


@dataclass(frozen=True)
class MultiLabelledText(TextOrPair):
    """A text, or a pair of texts, and all the classes it has, possibly none."""

    labels: tuple[str, ...]


@dataclass(frozen=True)
class ScoredText(TextOrPair):
    """A text, or a pair of texts, and a number, such as how alike the two are."""

    score: float


def shown(example: TextOrPair) -> str:
    """Returns a text, or both texts of a pair, for a report."""
    return example.text if example.pair is None else f"{example.text} ⏐ {example.pair}"


def require_known(examples: Iterable[LabelledText | MultiLabelledText], known: Sequence[str]) -> None:
    """Makes sure that examples have no label that the training file lacks."""
    names = set(known)
    for example in examples:
        if not names.issuperset(example.labels):
            strange = next(label for label in example.labels if label not in names)
            raise InputError(
                f"{example.at}label {strange!r} does not occur in the training file ({', '.join(known[:8])})"
            )


def labels_of(examples: Sequence[LabelledText] | Sequence[MultiLabelledText]) -> list[str]:
    """Returns the classes in a stable order: numbers by value, everything else alphabetically."""
    labels = {label for example in examples for label in example.labels}
    if not labels:
        raise InputError("no text of the training file has a label; at least one is needed")
    if len(labels) < 2 and isinstance(examples[0], LabelledText):
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
    if isinstance(value, dict):
        return tuple(name for name, flag in value.items() if _flag(cell._replace(what=f"label {name}", value=flag)))
    if isinstance(value, str) and (written := written_list(cell)) is not None:
        value = written
        if not value:
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


def _flag(cell: Cell) -> bool:
    """Reads a 0 or 1, in any of the spellings of tables."""
    if cell.value in (None, ""):
        return False
    text = cell.text().lower()
    if text not in _YES_AND_NO:
        raise InputError(f"{cell.place}: the {cell.what} is {text[:40]!r}, not 0 or 1")
    return _YES_AND_NO[text]


_YES_AND_NO = {"1": True, "1.0": True, "true": True, "yes": True, "0": False, "0.0": False, "false": False, "no": False}
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")


def written_list(cell: Cell) -> list[str] | None:
    """Returns the items of a list that pandas (`['a', 'b']`) or NumPy (`['a' 'b']`, `[1 0]`) wrote into a cell as text.

    None for a cell that holds no list; what begins and ends like one and is none is refused.
    """
    text = cell.text()
    if len(text) < 2 or (text[0], text[-1]) not in (("[", "]"), ("(", ")"), ("{", "}")):
        return None
    inner = text[1:-1].strip()
    items = inner.replace(",", " ").split()
    if all(NUMBER.fullmatch(item) or item in ("True", "False") for item in items):
        # (1) 和 (other) 这样的标签是人写的；方括号里的数才是列表
        return items if text[0] == "[" else None
    rest = _QUOTED.sub("", inner)
    if _QUOTED.search(inner) and not rest.strip(", \n"):
        return [_unquoted(found[0]) for found in _QUOTED.finditer(inner)]
    if text[0] == "[" and "," in inner:
        raise InputError(f"{cell.place}: the {cell.what} {text[:40]!r} looks like a list and is none; write its items")
    return None


def _unquoted(literal: str) -> str:
    """Returns what Python's quotes stand for; a backslash that begins none of its escapes goes."""
    with contextlib.suppress(SyntaxError, ValueError), warnings.catch_warnings():
        warnings.simplefilter("error")
        return str(ast.literal_eval(literal))
    return re.sub(r"\\(.)", r"\1", literal[1:-1])


def _class(cell: Cell, _options: ReadingOptions) -> str:
    # 每行都要问一遍：先看首尾，是括号才当列表去读
    if isinstance(cell.value, str) and cell.value.strip()[:1] in ("[", "(", "{") and written_list(cell):
        raise InputError(
            f"{cell.place}: the label {cell.text()[:40]!r} is a list; write the class alone, or learn several labels"
            " with multilabel"
        )
    return cell.text()


def _score(cell: Cell, _options: ReadingOptions) -> float:
    return finite_number(cell, _SMALLEST_SCORE)


def finite_number(cell: Cell, smallest: float = 0.0) -> float:
    """Reads a number that fits 32 bits; other than 0, it is at least `smallest`, whatever its sign."""
    text = cell._replace(names=()).text()
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise InputError(f"{cell.place}: the {cell.what} {text[:40]!r} is not a finite number, such as 3.5")
    number = float(text)
    if number and not smallest <= abs(number) <= _LARGEST_SCORE:
        raise InputError(f"{cell.place}: the {cell.what} {text[:40]} does not fit 32 bits; scale the {cell.what}s")
    return number


def _check_classes(table: Table, options: ReadingOptions, examples: list[LabelledText]) -> None:
    _refuse_unseen_header(table, options, examples)
    # SNLI 与 MNLI 用 - 标记标注者没有取得一致的句对：那不是一个类，却会被当成一个类来学
    undecided = [example for example in examples if example.label == "-"]
    if undecided and any(example.label == "entailment" for example in examples):
        raise InputError(
            f"{undecided[0].at}the label '-' means that the annotators did not agree; remove such rows"
            f" ({len(undecided):,} in all)"
        )


def _check_label_sets(table: Table, options: ReadingOptions, examples: list[MultiLabelledText]) -> None:
    _refuse_unseen_header(table, options, examples)
    # 两个标签的 0/1 向量没有重复，看起来像两个标签都有：每一行都如此才认得出来
    if len(examples) > 1 and all(set(example.labels) in _FLAGS for example in examples):
        raise InputError(f"{examples[0].at}{_BY_NAME}")


def _refuse_unseen_header(
    table: Table, options: ReadingOptions, examples: Sequence[LabelledText] | Sequence[MultiLabelledText]
) -> None:
    """A header of unknown names would be an example and a class of its own: a first row like that must be told."""
    if table.has_names or options.header is not None or len(examples) < 3:
        return
    first, rest = examples[0], {label for example in examples[1:] for label in example.labels}
    cells = (first.text, *first.labels)
    # 首行在第 1 行、每格都只有几个词、标签在别处不再出现：多半是认不出的表头
    named = all(len(cell) <= 40 and len(cell.split()) <= 5 and not NUMBER.fullmatch(cell) for cell in cells)
    at_top = first.place in (f"{table.path}: line 1", f"{table.path}: row 1")
    if at_top and named and first.labels and rest.isdisjoint(first.labels):
        raise InputError(
            f"{first.at}is it a header? no other line has the label {first.labels[0][:40]!r}; say --header or"
            " --no-header"
        )


_FLAGS = ({"0", "1"}, {"0.0", "1.0"}, {"0.", "1."}, {"false", "true"}, {"False", "True"})
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


def _read_classes(folder: Path, options: ReadingOptions) -> list[LabelledText]:
    """Reads a folder of text files for each class, as IMDb has them."""
    require_used(options, ("faults",), "a folder for each class")
    examples, faults, others = [], Faults(options), list[str]()
    # 整棵树走一遍：没有权限的文件夹要报错，而不是悄悄少一个类
    for path in sorted(walk(str(folder), ("",))):
        own, *inside = path.relative_to(folder).parts
        is_text = path.suffix.lower() in (".txt", ".text", ".md", "") and os.path.isfile(path)
        # IMDb 的 unsup 没有标签
        if not inside or own == "unsup" or not is_text:
            others.append(str(path.relative_to(folder)))
            continue
        with faults.skipped():
            text = Cell(str(path), "text", read_text(path, options.encoding)).text()
            examples.append(LabelledText(text, None, own, place=str(path)))
    faults.tell(folder, "files")
    if others:
        warnings.warn(
            f"{folder}: left out {len(others):,} files that are no text of a class: {listed(others)}", stacklevel=4
        )
    if len({example.label for example in examples}) < 2:
        raise InputError(f"{folder}: is no file; of a folder, a folder of .txt files for each of two classes is read")
    return examples


LABELLED = table_reader(
    "texts with a label",
    _layout(Column("label", "label_column", LABEL_NAMES, _class)),
    LabelledText,
    check=_check_classes,
    folder=_read_classes,
)

MULTILABELLED = table_reader(
    "texts with labels",
    _layout(Column("labels", "label_column", LABEL_SET_NAMES, _label_set, flags=True, called="label")),
    MultiLabelledText,
    check=_check_label_sets,
    options=("separator",),
)

SCORED = table_reader("texts with a score", _layout(Column("score", "label_column", SCORE_NAMES, _score)), ScoredText)


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


def _choices(cell: Cell, _options: ReadingOptions) -> tuple[list[str], list[str]]:
    """Reads the choices, and what they are called where each has a name of its own (ARC, CommonsenseQA)."""
    value, called = cell.value, []
    if isinstance(value, dict):
        called = [str(name) for name in value.get("label") or value.get("labels") or ()]
        value = value.get("text") or value.get("texts")
        if not isinstance(value, list) or len(called) not in (0, len(value)):
            raise InputError(f'{cell.place}: its choices need a list "text" and a list "label" of the same length')
    elif isinstance(value, list) and value and all(isinstance(one, dict) and "text" in one for one in value):
        called = [str(one["label"]) for one in value if "label" in one]
        value = [one["text"] for one in value]
    elif isinstance(value, str) and value.strip() and (written := written_list(cell)):
        value = written
    values = value if isinstance(value, list) else [value]
    texts = [Cell(cell.place, f"choice {number}", one).text() for number, one in enumerate(values)]
    if len(texts) < 2:
        raise InputError(f"{cell.place} has fewer than two choices")
    return texts, called


def _example(
    context: str, choices: tuple[list[str], list[str]], label: str, stem: str | None, place: str
) -> ChoiceExample:
    (texts, called), number = choices, -1
    if len(called) == len(texts):
        # 选项自己有名字时按名字找：ARC 里有的题用 1 到 4，那不是从 0 数起的编号
        number = called.index(label) if called.count(label) == 1 else -1
    elif _LABEL.fullmatch(label):
        number = int(label) if label.isdigit() else ord(label.upper()) - ord("A")
    elif texts.count(label) == 1:
        number = texts.index(label)
    if not 0 <= number < len(texts):
        known = ", ".join(called[:12]) or "from 0 or A"
        raise InputError(f"{place}: the label {label[:40]!r} is none of its {len(texts)} choices, {known}")
    return ChoiceExample(context, _with_stem(texts, stem), number, place=place)


def _with_stem(texts: Sequence[str], stem: str | None) -> tuple[str, ...]:
    begin = "" if stem is None else f"{stem} "
    return tuple(begin + text for text in texts)


def _is_header(first: Sequence[str], options: ReadingOptions) -> bool:
    """Takes the first row for names, unless the columns are told by number and its label looks like one."""
    column = (options.label_column or ("",))[0]
    if options.choice_columns is None or options.text_column is None or not isinstance(column, int):
        return True
    # 列都按编号说了，首行的标签又像个标签：文件没有表头，首行也是一道题
    return not (0 <= column < len(first) and _LABEL.fullmatch(first[column]))


_CONTEXT_NAMES = ("context", "sent1", "premise", "article", "passage", "ctx", "goal", "question", "question_stem")

CHOICES = table_reader(
    "multiple choice",
    Layout(
        (
            Column("context", "text_column", _CONTEXT_NAMES),
            Column(
                "choices",
                "choice_columns",
                ("choices", "endings", "options"),
                _choices,
                numbered=re.compile("(?:choice|ending|option|answer)[ _-]?([0-9]+|[a-e])"),
            ),
            Column("label", "label_column", ("label", "answer", "answerkey")),
            # 选项之前的开头：多数文件没有
            Column("stem", "pair_column", ("sent2", "stem", "question"), required=False),
        ),
        _is_header,
    ),
    _example,
    texts_of=lambda context, choices, stem: (context, *_with_stem(choices[0], stem)),
)
