"""Reader of what sentence vectors are learned from and scored on; the columns of a file say which kind it is.

- pairs: a query and a text that answers it, with texts that do not (hard negatives) where there are any, and a
  teacher's scores of these; also SQuAD files, where a question and its passage are a pair
- scored: two texts and how alike they are (STS-B), or 0 and 1
- classes: a text and its class; texts of one class belong together
- retrieval: a folder in the form of BEIR (Thakur et al. 2021): `corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv`
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.data.reading.lines import Placed, numbered_lines, require_file
from bertsmith.errors import InputError
from bertsmith.finetune.datasets.columns import Column, Found, Layout, find_columns, has_any
from bertsmith.finetune.datasets.questions import QUESTIONS
from bertsmith.finetune.datasets.reader import Reader, ReadingOptions
from bertsmith.finetune.datasets.tables import NUMBER, Cell, Row, Table, ending_of, kind_of, open_table
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText


@dataclass(frozen=True)
class RelatedTexts(Placed):
    """A query, a text that answers it, and texts that do not.

    Attributes:
        query: what is asked.
        positive: what answers it.
        negatives: what does not.
        scores: how a teacher scores the positive and each negative; empty where none did.
    """

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.query, self.positive, *self.negatives)


@dataclass(frozen=True)
class CorpusPassage(Placed):
    """A text that queries are to find."""

    id: str
    text: str

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.text,)


@dataclass(frozen=True)
class JudgedQuery(Placed):
    """A query, and the passages judged for it: their ids and grades, 0 for a wrong one."""

    id: str
    text: str
    grades: tuple[tuple[str, float], ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.text,)


VectorExample = RelatedTexts | ScoredText | LabelledText | CorpusPassage | JudgedQuery


def _all_of(cell: Cell) -> list[Cell]:
    """Returns a cell for each item of one that holds a list, or nothing, or one item."""
    values = cell.value if isinstance(cell.value, list) else [] if cell.value is None else [cell.value]
    return [cell._replace(value=value) for value in values]


def _number(cell: Cell) -> float:
    text = cell._replace(names=()).text()
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)) or abs(float(text)) > _LARGEST_SCORE:
        raise InputError(f"{cell.place}: the {cell.what} {text[:40]!r} is not a finite number, such as 3.5")
    return float(text)


_LARGEST_SCORE = 1e30
_PAIRS = (
    *(("query", name) for name in ("positive", "passage", "document", "text", "answer")),
    *(("anchor", name) for name in ("positive", "text")),
    *(("question", name) for name in ("passage", "answer", "context", "sentence", "positive")),
    *(("sentence1", "sentence2"), ("text_a", "text_b"), ("text", "pair"), ("text", "positive"), ("text", "text_b")),
    *(("premise", "hypothesis"), ("question1", "question2")),
)
_QUERY_NAMES = ("query", "anchor", "question", "text", "sentence", "sentence1", "text_a", "premise", "question1")
_TEXT_NAMES = ("positive", "passage", "document", "answer", "context", "sentence2", "pair", "text_b", "hypothesis")
_SCORE_NAMES, _LABEL_NAMES = ("score", "scores", "similarity"), ("label", "class")
_COLUMNS = (
    Column("text", "text_column", _QUERY_NAMES, called="query or text"),
    Column("label", "label_column", (*_SCORE_NAMES, *_LABEL_NAMES), required=False, called="label or score"),
    Column("pair", "pair_column", _TEXT_NAMES, required=False, called="text"),
    Column(
        "negatives",
        "negative_column",
        ("negatives", "negative"),
        required=False,
        numbered=re.compile(r"negative_?(\d+)"),
    ),
)
_IS_HEADER = has_any(*_PAIRS, *((name, label) for name in _QUERY_NAMES for label in (*_LABEL_NAMES, *_SCORE_NAMES)))


def _read(path: Path, options: ReadingOptions) -> list[Any]:
    if path.is_dir() or path.parent.name == "qrels":
        return _read_beir(path, options.encoding)
    if ending_of(path) == ".json" and _is_one_document(path, options.encoding):
        return [
            RelatedTexts(question.question, question.context, place=question.place)
            for question in QUESTIONS.read(path, ReadingOptions(faults=options.faults, encoding=options.encoding))
            if not question.is_impossible
        ]
    return _read_table(open_table(path, kind_of(path), options.encoding), options)


def _is_one_document(path: Path, encoding: str) -> bool:
    """Tells SQuAD's one JSON object from JSON Lines, whose first line is whole and has no `data`."""
    first = next((line for _, line in numbered_lines(path, encoding) if line.strip()), "")
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return isinstance(record, dict) and "data" in record


def _read_table(table: Table, options: ReadingOptions) -> list[Any]:
    # 没有表头的第三列：是数就是分数，否则是反例
    third = table.first[2] if len(table.first) == 3 else ""
    last = "label" if NUMBER.fullmatch(third.strip()) else "negatives"
    layout = Layout(_COLUMNS, _IS_HEADER, ("text", "pair", last), _PAIRS)
    found = find_columns(table, layout, options)
    if not found["pair"] and not found["label"]:
        raise InputError(
            f"{table.path}: one column of texts and nothing beside it; name the second text with --pair-column, the"
            " class with --label-column, or learn from documents with --unlabelled"
        )
    examples = [_example(row, found) for row in table.rows]
    # 没有表头的第二列若翻来覆去只有几个值，多半是类别：当成句子来学，什么也学不到
    seconds = {example.positive for example in examples if isinstance(example, RelatedTexts)}
    unsaid = options.pair_column is None and options.label_column is None and not table.has_names
    if unsaid and seconds and 10 * len(seconds) <= len(examples) and options.header is None:
        raise InputError(
            f"{table.path}: column {found['pair'][0]} has {len(seconds)} different values only; if they are classes,"
            f" say --label-column {found['pair'][0]}, if they are texts, --pair-column {found['pair'][0]}"
        )
    if not examples:
        raise InputError(f"{table.path}: holds a header and no example")
    return examples


def _example(row: Row, found: Found) -> VectorExample:
    cells = {
        column.role: row.cell(found[column.role], column.called or column.role)
        for column in _COLUMNS
        if found[column.role]
    }
    text = cells["text"].text()
    if "pair" not in cells:
        return LabelledText(text, None, cells["label"].text(), place=row.place)
    pair, label = cells["pair"].text(), cells.get("label")
    negatives = tuple(each.text() for each in _all_of(cells["negatives"])) if "negatives" in cells else ()
    # 单独一个数且没有反例，是这一对有多像；否则是老师给正例和各个反例打的分
    if label is not None and not negatives and not isinstance(label.value, list):
        return ScoredText(text, pair, _number(label._replace(what="score")), place=row.place)
    scores = () if label is None else tuple(_number(each._replace(what="score")) for each in _all_of(label))
    if scores and len(scores) != 1 + len(negatives):
        raise InputError(
            f"{row.place}: {len(scores)} scores for a positive and {len(negatives)} negatives; give a list of one for"
            " each, the positive's first"
        )
    return RelatedTexts(text, pair, negatives, scores, place=row.place)


def _read_beir(path: Path, encoding: str) -> list[Any]:
    """Reads a folder of BEIR, or the file of its `qrels` that is named."""
    folder = path if path.is_dir() else path.parent.parent
    judged = sorted((folder / "qrels").glob("*.tsv")) if path.is_dir() else [path]
    if len(judged) != 1:
        names = ", ".join(file.name for file in judged) or "nothing"
        raise InputError(f"{folder}/qrels: holds {names}; name one of its files, such as {folder}/qrels/test.tsv")
    grades: dict[str, dict[str, float]] = {}
    table = open_table(judged[0], "tsv", encoding)
    rows = table.rows if NUMBER.fullmatch(table.first[-1].strip()) else _after_first(table)
    for row in rows:
        if len(row.cells) != 3:
            raise InputError(f"{row.place} has {len(row.cells)} columns; a judgement is a query id, a text id, a grade")
        query, text, grade = (Cell(row.place, "judgement", cell) for cell in row.cells)
        grades.setdefault(query.text(), {})[text.text()] = _number(grade)
    texts = {each.id: each for each in _records(folder / "corpus.jsonl", encoding)}
    queries = {each.id: each for each in _records(folder / "queries.jsonl", encoding)}
    for query_id, found in grades.items():
        lost = [f"query {query_id!r}, which queries.jsonl"] if query_id not in queries else []
        # 判为 0 分的段落不在语料里也无妨：它本来就算错的
        lost += [
            f"text {name!r}, which corpus.jsonl" for name, grade in found.items() if grade > 0 and name not in texts
        ]
        if lost:
            raise InputError(f"{judged[0]}: judges {lost[0]} lacks; copy the whole folder")
    asked = (
        JudgedQuery(name, queries[name].text, tuple(found.items()), place=queries[name].place)
        for name, found in grades.items()
    )
    return [*texts.values(), *asked]


def _after_first(table: Table) -> Iterator[Row]:
    next(table.rows)
    return table.rows


def _records(path: Path, encoding: str) -> list[CorpusPassage]:
    """Reads `_id`, `text` and, where there is one, the `title` before it, of each line."""
    require_file(path)
    table = open_table(path, "jsonl", encoding)
    places = {name: number for number, name in enumerate(table.first)}
    if not {"_id", "text"} <= places.keys():
        raise InputError(f"{path}: no _id or no text among {', '.join(table.first[:8])}; this is not the form of BEIR")
    found = []
    for row in table.rows:
        title = row.cells[places["title"]] if "title" in places else None
        text = " ".join(str(part).strip() for part in (title, row.cells[places["text"]]) if part)
        found.append(CorpusPassage(row.cell([places["_id"]], "_id").text(), text.strip(), place=row.place))
    return found


RELATED = Reader(
    "pairs, scored pairs, classes or judged queries",
    (*(column.option for column in _COLUMNS), "header", "faults"),
    _read,
    _read_table,
)
"""What vectors are learned from, as one kind of `VectorExample` (or passages and queries)."""


def related_of_beir(examples: Sequence[VectorExample]) -> list[RelatedTexts]:
    """Returns every judged query with each of its right passages, as pairs to learn from."""
    texts = {each.id: each.text for each in examples if isinstance(each, CorpusPassage)}
    queries = (each for each in examples if isinstance(each, JudgedQuery))
    return [
        RelatedTexts(query.text, texts[name], place=query.place)
        for query in queries
        for name, grade in query.grades
        if grade > 0
    ]
