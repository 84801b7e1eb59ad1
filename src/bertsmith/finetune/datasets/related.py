"""What sentence vectors are learned from and scored on; the columns of a file say which kind it is.

- pairs: a query and a text that answers it, with texts that do not (hard negatives) where there are any, and a
  teacher's scores of these; also SQuAD files, where a question and its passage are a pair
- scored: two texts and how alike they are (STS-B), or 0 and 1
- classes: a text and its class; texts of one class belong together
- retrieval: a folder in the form of BEIR (Thakur et al. 2021): `corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv`

Documents without labels say by themselves what belongs together (`read_unlabelled`):

- `cloze`: a sentence, and the sentences around it, which answer it (inverse cloze: Lee et al. 2019, §4)
- `adjacent`: a stretch of text and the one after it (Neelakantan et al. 2022, §2)
- `span`: a few words in a row, and the stretch they are from (cropping; of two stretches: Izacard et al. 2022, §3.1)
- `same`: a sentence and itself; what differs is what dropout drops (SimCSE: Gao et al. 2021, §3)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from bertsmith.data.reading.documents import readable_files
from bertsmith.data.reading.lines import Placed, require_file, split_lines
from bertsmith.data.reading.records import Rows
from bertsmith.data.reading.tables import NUMBER, Cell, Table, ending_of, listed, open_table
from bertsmith.data.reading.text import Document, documents_of, read_documents
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import (
    Column,
    DataSource,
    Faults,
    InputForms,
    Layout,
    Reader,
    ReadingOptions,
    require_used,
    table_of,
)
from bertsmith.finetune.datasets.columns import BESIDE, find_columns, has_any, read_rows
from bertsmith.finetune.datasets.questions import QUESTIONS, is_one_document
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText, finite_number
from bertsmith.seeding import generator
from bertsmith.tokenizer.normalize import CJK


@dataclass(frozen=True)
class RelatedTexts(Placed):
    """A query, a text that answers it, texts that do not, and a teacher's scores of these, the positive's first."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.query, self.positive, *self.negatives)

    @property
    def known_by(self) -> tuple[str, ...]:
        """Its pair, whatever is told from it."""
        return (self.query, self.positive)


@dataclass(frozen=True)
class CorpusPassage(Placed):
    """A text that queries are to find."""

    id: str
    text: str

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.text,)

    @property
    def known_by(self) -> tuple[str, ...]:
        """None: queries of training and of test may look among the same texts."""
        return ()


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


def _texts(cell: Cell, _options: ReadingOptions) -> tuple[str, ...]:
    return tuple(each.text() for each in _all_of(cell))


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
    Column(
        "label",
        "label_column",
        (*_SCORE_NAMES, *_LABEL_NAMES),
        lambda cell, _: cell,
        required=False,
        called="label or score",
    ),
    Column("pair", "pair_column", _TEXT_NAMES, required=False, called="text"),
    Column(
        "negatives",
        "negative_column",
        ("negatives", "negative"),
        _texts,
        required=False,
        numbered=re.compile(r"negative_?(\d+)"),
    ),
)
_TO_EMBED = (*_QUERY_NAMES, *_TEXT_NAMES)
_INPUTS = Layout(
    (Column("text", "text_column", _TO_EMBED, exclusive=True),), has_any(*((name,) for name in _TO_EMBED)), ("text",)
)
_IS_HEADER = has_any(*_PAIRS, *((name, label) for name in _QUERY_NAMES for label in (*_LABEL_NAMES, *_SCORE_NAMES)))


JUDGEMENTS = "qrels"
"""The folder of BEIR that holds them."""


def _is_table(path: Path, options: ReadingOptions) -> bool:
    return not path.is_dir() and (ending_of(path) != ".json" or not is_one_document(path, options.encoding))


def _is_judgements(path: Path | str) -> bool:
    return Path(path).parent.name == JUDGEMENTS


def _read_other(path: Path, options: ReadingOptions) -> list[Any]:
    if path.is_dir():
        return _read_beir(path, options)
    questions = [question for question in QUESTIONS.read(path, options) if not question.is_impossible]
    if not questions:
        raise InputError(f"{path}: {_NO_ANSWER}")
    return [RelatedTexts(one.question, one.context, place=one.place, group=one.group) for one in questions]


_NO_ANSWER = "no query has a text that answers it"


def _layout_of(table: Table) -> Layout:
    # 没有表头的第三列：是数就是分数，否则是反例
    third = table.first[2] if len(table.first) == 3 else ""
    last = "label" if NUMBER.fullmatch(third.strip()) else "negatives"
    return Layout(_COLUMNS, _IS_HEADER, ("text", "pair", last), _PAIRS)


def _read_table(table: Table, options: ReadingOptions) -> list[Any]:
    if _is_judgements(table.path):
        return _read_beir(Path(table.path), options)
    layout = _layout_of(table)
    found = find_columns(table, layout, options)
    if not found["pair"] and not found["label"]:
        raise InputError(
            f"{table.path}: one column of texts and nothing beside it; name the second text with --pair-column, the"
            " class with --label-column, or learn from documents with --unlabelled"
        )
    examples = read_rows(table, layout, found, _example, options)
    # 没有表头的第二列若翻来覆去只有几个值，多半是类别：当成句子来学，什么也学不到
    seconds = {example.positive for example in examples if isinstance(example, RelatedTexts)}
    unsaid = options.pair_column is None and options.label_column is None and not table.has_names
    if unsaid and seconds and 10 * len(seconds) <= len(examples) and options.header is None:
        raise InputError(
            f"{table.path}: column {found['pair'][0]} has {len(seconds)} different values only; if they are classes,"
            f" say --label-column {found['pair'][0]}, if they are texts, --pair-column {found['pair'][0]}"
        )
    return examples


def _example(
    text: str, label: Cell | None, pair: str | None, negatives: tuple[str, ...] | None, place: str
) -> VectorExample:
    if pair is None:
        assert label is not None
        return LabelledText(text, None, label.text(), place=place)
    negatives = negatives or ()
    # 单独一个数且没有反例，是这一对有多像；否则是老师给正例和各个反例打的分
    if label is not None and not negatives and not isinstance(label.value, list):
        return ScoredText(text, pair, finite_number(label._replace(what="score")), place=place)
    scores = () if label is None else tuple(finite_number(each._replace(what="score")) for each in _all_of(label))
    if scores and len(scores) != 1 + len(negatives):
        raise InputError(
            f"{place}: {len(scores)} scores for a positive and {len(negatives)} negatives; give a list of one for"
            " each, the positive's first"
        )
    return RelatedTexts(text, pair, negatives, scores, place=place)


def _read_beir(path: Path, options: ReadingOptions) -> list[Any]:
    """Reads a folder of BEIR, or the file of its `qrels` that is named."""
    require_used(options, ("faults",), "a BEIR folder")
    folder = path if path.is_dir() else path.parent.parent
    encoding, faults = options.encoding, Faults(options)
    judgements = folder / JUDGEMENTS
    judged = sorted(judgements.glob("*.tsv")) if path.is_dir() else [path]
    if len(judged) != 1:
        names = ", ".join(file.name for file in judged) or "nothing"
        raise InputError(f"{judgements}: holds {names}; name one of its files, such as {judgements / 'test.tsv'}")
    grades: dict[str, dict[str, float]] = {}
    table = open_table(judged[0], "tsv", encoding)
    if not NUMBER.fullmatch(table.first[-1].strip()):
        next(table.rows)
    for row in table.rows:
        with faults.skipped():
            if len(row.cells) != 3:
                said = f"{row.place} has {len(row.cells)} columns"
                raise InputError(f"{said}; a judgement is a query id, a text id, a grade")
            query, text, grade = (Cell(row.place, "judgement", cell) for cell in row.cells)
            one, other, how_good = query.text(), text.text(), finite_number(grade)
            grades.setdefault(one, {})[other] = how_good
    texts = {each.id: each for each in _records(folder / "corpus.jsonl", encoding, faults)}
    queries = {each.id: each for each in _records(folder / "queries.jsonl", encoding, faults)}
    for query_id, found in grades.items():
        # 判为 0 分的段落不在语料里也无妨：它本来就算错的
        absent = [name for name, grade in found.items() if grade > 0 and name not in texts]
        lost = [f"query {query_id!r}, which queries.jsonl"] if query_id not in queries else []
        for judgement in (*lost, *(f"text {name!r}, which corpus.jsonl" for name in absent)):
            with faults.skipped():
                raise InputError(f"{judged[0]}: judges {judgement} lacks; copy the whole folder")
        for name in absent:
            del found[name]
    faults.tell(folder, "judgements and texts")
    asked = (
        JudgedQuery(name, queries[name].text, tuple(found.items()), place=queries[name].place)
        for name, found in grades.items()
        if name in queries and found
    )
    read: list[Any] = [*texts.values(), *asked]
    if not related_of_beir(read):
        raise InputError(f"{path}: {_NO_ANSWER}")
    return read


def _records(path: Path, encoding: str, faults: Faults) -> list[CorpusPassage]:
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
        with faults.skipped():
            found.append(CorpusPassage(row.cell([places["_id"]], "_id").text(), text.strip(), place=row.place))
    return found


RELATED = Reader(
    "pairs, scored pairs, classes or judged queries",
    (*(column.option for column in _COLUMNS), "header", "sheet", *BESIDE),
    _read_table,
    InputForms((_INPUTS,), other_form="one JSON document"),
    # 判断的表里是编号，不是文本
    lambda table: None if _is_judgements(table.path) else _layout_of(table),
    _is_table,
    _read_other,
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


Positives = Literal["span", "cloze", "adjacent", "same"]

# 中文不用空格分词：一个汉字算一个词
_WORD = re.compile(rf"[{CJK}]|[^\s{CJK}]+")

WINDOW = 4
"""Sentences in a stretch of text."""
KEPT_SHARE = 0.1
"""How often the query stays in its text, so that words in common count, too (Lee et al. 2019, §9.2)."""
SPAN = (3, 12)
"""Fewest and most words of a span; a stretch has at least twice as many as its span."""
HELD_OUT_SHARE, MOST_HELD_OUT = 0.05, 500
"""Share of the documents that choose the epoch, and how many of their pairs at most."""


def read_unlabelled(
    source: DataSource, positives: Positives = "cloze", *, encoding: str = "auto", seed: int = 0
) -> tuple[list[RelatedTexts], list[RelatedTexts]]:
    """Makes pairs of the texts of a folder, or in memory; returns some to learn from and some to choose the epoch by.

    `source` is a folder, file or pattern, as for `bertsmith corpus`, or rows with a document each in the column `text`.
    The held-out pairs are of other documents, and always `cloze`: they stand for search, whatever is learned from. No
    training text stands twice on the same side.
    """
    if positives not in get_args(Positives):
        raise ConfigError(f"positives {positives!r} are unknown; use {', '.join(get_args(Positives))}")
    if isinstance(source, (str, Path)):
        place, documents = str(source), list(read_documents(readable_files([source], encoding), encoding=encoding))
    else:
        place, documents = "unlabelled", _documents_in(source)
    # 按整篇留出而不是按句对：同一篇里的句子互相泄露答案；一本书切成的各段也算一篇
    keys: list[object] = [
        number if each.text is None else (each.source, each.text) for number, each in enumerate(documents)
    ]
    # 只有一本书，就只能按段留出
    keys = keys if len(set(keys)) > 1 else list(range(len(documents)))
    texts = list(dict.fromkeys(keys))
    drawn = generator(seed, "unlabelled/held out").random(len(texts)) < HELD_OUT_SHARE
    # 文本很少时，按比例可能一篇也没抽中
    if not drawn.any():
        drawn[-1:] = len(texts) > 1
    out_of = dict(zip(texts, drawn.tolist(), strict=True))
    learned, chosen_by = (
        _pairs([each for each, key in zip(documents, keys, strict=True) if out_of[key] == wanted], make, seed)
        for wanted, make in ((False, _MAKERS[positives]), (True, _cloze))
    )
    if len(learned) < 2 or len(chosen_by) < 2:
        raise InputError(
            f"{place}: {len(documents):,} documents give {len(learned)} pairs to learn from and {len(chosen_by)} to"
            " choose the epoch by; two of each are needed, so add text, or give pairs of your own with --dev"
        )
    order = generator(seed, "unlabelled/dev").permutation(len(chosen_by))[:MOST_HELD_OUT]
    return learned, [chosen_by[number] for number in sorted(order.tolist())]


def _documents_in(rows: Rows) -> list[Document]:
    """Returns the documents of rows in memory; one that is longer than a document may be is several."""
    table = table_of(rows, "unlabelled")
    if "text" not in table.first:
        raise InputError(f"unlabelled: no column text among {listed(table.first)}; call that of the documents text")
    column = [table.first.index("text")]
    texts = ((row.place, row.cell(column, "text").text()) for row in table.rows)
    return [document for place, text in texts for document in documents_of(split_lines(text), place)]


def _pairs(documents: Sequence[Document], make: _Maker, seed: int) -> list[RelatedTexts]:
    """Returns the pairs of documents; a repeated query or text is left out, since copies cannot be told apart."""
    queries: set[str] = set()
    texts: set[str] = set()
    found = []
    for number, document in enumerate(documents):
        # 每篇文档的抽取只由种子和它的编号决定：续跑时得到同样的对
        for query, text in make(document.sentences, generator(seed, "unlabelled/pairs", number)):
            if query not in queries and text not in texts:
                queries.add(query)
                texts.add(text)
                found.append(RelatedTexts(query, text, place=document.source))
    return found


def _cloze(sentences: Sequence[str], draws: np.random.Generator) -> Iterator[tuple[str, str]]:
    for first in range(0, len(sentences), WINDOW):
        window = sentences[first : first + WINDOW]
        chosen, is_kept = int(draws.integers(len(window))), draws.random() < KEPT_SHARE
        rest = [sentence for number, sentence in enumerate(window) if is_kept or number != chosen]
        if len(window) > 1:
            yield window[chosen], " ".join(rest)


def _span(sentences: Sequence[str], draws: np.random.Generator) -> Iterator[tuple[str, str]]:
    fewest, most = SPAN
    for first in range(0, len(sentences), WINDOW):
        window = " ".join(sentences[first : first + WINDOW])
        words = [match.span() for match in _WORD.finditer(window)]
        if len(words) >= 2 * fewest:
            count = int(draws.integers(fewest, min(most, len(words) // 2) + 1))
            begin = int(draws.integers(len(words) - count + 1))
            yield window[words[begin][0] : words[begin + count - 1][1]], window


def _adjacent(sentences: Sequence[str], _draws: np.random.Generator) -> Iterator[tuple[str, str]]:
    half = WINDOW // 2
    windows = [" ".join(sentences[first : first + half]) for first in range(0, len(sentences), half)]
    yield from pairwise(windows)


def _same(sentences: Sequence[str], _draws: np.random.Generator) -> Iterator[tuple[str, str]]:
    yield from ((sentence, sentence) for sentence in sentences)


_Maker = Callable[[Sequence[str], np.random.Generator], Iterator[tuple[str, str]]]
_MAKERS: dict[Positives, _Maker] = {"span": _span, "cloze": _cloze, "adjacent": _adjacent, "same": _same}
