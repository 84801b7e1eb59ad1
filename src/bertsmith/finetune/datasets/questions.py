"""Reader of questions on passages: SQuAD JSON 1.1 and 2.0, and what is written like it (XQuAD, CMRC 2018).

Tables with a question a row are read as well, as the Hub has SQuAD: `id`, `question`, `context`, and `answers` as
`{"text": [...], "answer_start": [...]}`; where these lists are empty, the passage does not answer the question.

An answer that does not stand at its offset would point the model at the wrong words. The trial file of CMRC 2018 has
five of these, and two questions without text. They are refused, or left out and listed, as asked. A file of another
form is always refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from bertsmith.data.reading.lines import Placed, read_text
from bertsmith.data.reading.tables import (
    Table,
    ending_of,
    listed,
    require_unicode,
    start_of_json,
)
from bertsmith.errors import InputError
from bertsmith.finetune.datasets import (
    ENOUGH_DOCUMENTS,
    Column,
    Faults,
    InputForms,
    Layout,
    Reader,
    ReadingOptions,
    require_used,
)
from bertsmith.finetune.datasets.columns import BESIDE, columns_beside, has_any
from bertsmith.finetune.datasets.inputs import Input


@dataclass(frozen=True)
class Answer:
    """A stretch of the passage: its text, and the character it starts at, from 0."""

    text: str
    start: int


@dataclass(frozen=True)
class QuestionExample(Placed):
    """A question on a passage and its true answers; none where the passage does not answer it (SQuAD 2.0)."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]

    @property
    def is_impossible(self) -> bool:
        """Whether the passage does not answer the question."""
        return not self.answers

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (self.question, self.context)


def _read_document(path: Path, options: ReadingOptions) -> list[QuestionExample]:
    require_used(options, ("offsets", "faults"), "SQuAD's form")
    file = _Questions(path, options, read_text(path, options.encoding))
    for entry, context, place in _entries(file):
        # data[3].paragraphs[0].qas[1] 里，第一段就是文章
        file.add(entry, context, place, group=place.partition(".")[0])
    return file.finished(path)


def _entries(file: _Questions) -> Iterator[tuple[object, str, str]]:
    """Yields the questions of SQuAD's one document: each with its passage and its place."""
    try:
        document = json.loads(file.content)
    except json.JSONDecodeError as error:
        raise InputError(f"{file.path}: line {error.lineno} is not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file.path}: is not valid JSON ({type(error).__name__})") from None
    for a, article in enumerate(file.items(document, "data", "the file")):
        for p, paragraph in enumerate(file.items(article, "paragraphs", f"data[{a}]")):
            place = f"data[{a}].paragraphs[{p}]"
            entries = file.items(paragraph, "qas", place)
            with file.faults.skipped():
                context = file.text(paragraph, "context", place)
                yield from ((entry, context, f"{place}.qas[{q}]") for q, entry in enumerate(entries))


def is_one_document(path: Path, encoding: str) -> bool:
    """Tells SQuAD's one JSON object from a list, and from JSON Lines, whose first line is whole and has no `data`."""
    start = start_of_json(path, encoding)
    try:
        record = json.loads(start)
    except (ValueError, RecursionError):
        return not start.startswith("[")
    return isinstance(record, dict) and "data" in record


def _inputs(path: Path, options: ReadingOptions) -> Iterator[Input] | None:
    """Reads the questions of SQuAD's one document, whatever their answers."""
    if ending_of(path) != ".json" or not is_one_document(path, options.encoding):
        return None
    file = _Questions(path, options, read_text(path, options.encoding))
    return (_input(file, *one) for one in _entries(file))


def _input(file: _Questions, entry: object, context: str, place: str) -> Input:
    others = {name: one for name, one in entry.items() if name != "question"} if isinstance(entry, dict) else {}
    return Input.of(f"{file.path}: {place}", others, lambda: (file.text(entry, "question", place), context))


def _read_table(table: Table, options: ReadingOptions) -> list[QuestionExample]:
    missing = [name for name in ("question", "context", "answers") if name not in table.first]
    if missing:
        raise InputError(
            f"{table.path}: no column {missing[0]} among {listed(table.first)}; a question has a question, a context"
            " and answers"
        )
    file, beside = _Questions(table.path, options), columns_beside(table, options)
    for number, row in enumerate(table.rows):
        # 每一行都自报位置：表里没有可以回头去找的原文
        file.path = row.place
        cells = dict(zip(table.first, row.cells, strict=True))
        entry = {"id": str(number), **{name: value for name, value in cells.items() if value is not None}}
        with file.faults.skipped():
            if isinstance(answers := entry.get("answers"), dict):
                entry["answers"] = answers = _answer_list(row.place, answers)
            # Hub 上的 SQuAD 2.0 没有 is_impossible 一列：答案为空就是无答案
            entry.setdefault("is_impossible", answers == [])
            said = {"group": str(cells.get("title") or ""), **beside(row)}
            file.add(entry, file.text(entry, "context", "the row"), "the row", **said)
    return file.finished(table.path)


_INPUTS = Layout(
    (Column("question", "text_column", ("question",)), Column("context", "pair_column", ("context", "passage"))),
    has_any(("question", "context"), ("question", "passage")),
    ("question", "context"),
)

_ANSWERED = replace(_INPUTS, columns=(*_INPUTS.columns, Column("answers", "label_column", ("answers",))))

QUESTIONS = Reader(
    "questions on passages",
    ("offsets", *BESIDE),
    _read_table,
    InputForms((_INPUTS,), other=_inputs, other_form="one JSON document"),
    lambda _table: _ANSWERED,
    lambda path, _options: ending_of(path) in (".jsonl", ".ndjson", ".parquet"),
    _read_document,
)

_WIDTHS: dict[str, tuple[str, Callable[[str], int]]] = {
    "utf16": (
        "a character above U+FFFF counts as two (JavaScript, Java)",
        lambda letter: 1 + (letter > "\uffff"),
    ),
    "utf8": ("bytes of UTF-8 are counted", lambda letter: len(letter.encode("utf-8", "surrogatepass"))),
    "crlf": ("a line end counts as two characters (CR LF)", lambda letter: 1 + (letter == "\n")),
}
"""What a character counts, in words and as a function."""


def _in_characters(context: str, start: int, offsets: str | None) -> int:
    """Returns an offset of another kind in characters; -1 where it is inside of a character."""
    if offsets in (None, "characters"):
        return start
    places = list(accumulate(map(_WIDTHS[offsets][1], context), initial=0))
    return places.index(start) if start in places else -1


@dataclass
class _Questions:
    """The questions of a file so far; knows enough of its text to name a line."""

    path: Path | str
    options: ReadingOptions
    content: str = ""
    found: list[QuestionExample] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.faults = Faults(self.options)

    def finished(self, path: Path | str) -> list[QuestionExample]:
        self.faults.tell(path, "questions and answers")
        if not self.found:
            raise InputError(f"{path}: holds no question")
        # 几篇文章分不成三份：那时只看段落
        articles = {one.group for one in self.found}
        if self.options.group_column is None and len(articles) < ENOUGH_DOCUMENTS:
            return [replace(one, group="") for one in self.found]
        return self.found

    def add(self, entry: object, context: str, place: str, *, group: str, time: float | None = None) -> None:
        """Reads a question of a group, its article if the user names no other, or leaves it out."""
        with self.faults.skipped():
            identity = entry.get("id") if isinstance(entry, dict) else None
            if not isinstance(identity, (str, int)) or identity == "":
                raise InputError(f"{self.path}: {place} has no id")
            name = str(identity)
            question = self.text(entry, "question", place, name)
            answers = tuple(self.answers(entry, context, place, name))
            if name in self.seen:
                raise self.error(name, "its id occurs twice; predictions are told apart by it")
            self.seen.add(name)
            self.found.append(
                QuestionExample(name, question, context, answers, place=str(self.path), group=group, time=time)
            )

    def answers(self, entry: object, context: str, place: str, name: str) -> Iterator[Answer]:
        assert isinstance(entry, dict)
        given = self.items(entry, "answers", place, name) if "answers" in entry else []
        # SQuAD 2.0 的无答案题另有 plausible_answers，那不是答案，不读
        if entry.get("is_impossible") is True:
            if given:
                raise self.error(name, "it is marked is_impossible and has answers; drop one of the two")
            return
        if not given:
            raise self.error(name, 'it has no answers; mark it "is_impossible": true if the passage has none')
        right = []
        for item in given:
            with self.faults.skipped():
                right.append(self.answer(item, context, name))
        if not right:
            raise self.error(name, "none of its answers is left")
        yield from right

    def answer(self, item: object, context: str, name: str) -> Answer:
        text, start = (item.get(key) if isinstance(item, dict) else None for key in ("text", "answer_start"))
        if not isinstance(text, str) or isinstance(start, bool) or not isinstance(start, int):
            raise self.error(name, 'an answer needs a "text" and an "answer_start", a number of characters')
        if not text.strip():
            raise self.error(name, "it has an empty answer")
        place = _in_characters(context, start, self.options.offsets)
        # 负数在 Python 里从末尾数起：碰巧对上，也不是文件说的位置
        if place >= 0 and context.startswith(text, place):
            return Answer(text, place)
        others = [kind for kind in _WIDTHS if context.startswith(text, _in_characters(context, start, kind)) and start]
        advice = "correct answer_start, or ask to skip such faults with --faults skip"
        if others and _in_characters(context, start, others[0]) >= 0:
            advice = f"it is where {_WIDTHS[others[0]][0]}: pass --offsets {others[0]}"
        found = repr(context[start : start + len(text)][:40]) if 0 <= start < len(context) else "nothing"
        raise self.error(name, f"the passage has {found} at character {start}, not the answer {text[:40]!r}; {advice}")

    def items(self, owner: object, key: str, place: str, name: str | None = None) -> list[object]:
        found = owner.get(key) if isinstance(owner, dict) else None
        if not isinstance(found, list):
            if name is not None:
                raise self.error(name, f'its "{key}" is no list')
            raise InputError(f'{self.path}: {place} has no list "{key}"; this is not the form of SQuAD')
        return found

    def text(self, owner: object, key: str, place: str, name: str | None = None) -> str:
        found = owner.get(key) if isinstance(owner, dict) else None
        if not isinstance(found, str) or not found.strip():
            reason = f"has an empty {key}" if isinstance(found, str) else f"has no {key}"
            if name is not None:
                raise self.error(name, f"it {reason}")
            raise InputError(f"{self.path}: {place} {reason}")
        require_unicode(f"{self.path}: {place}", found)
        return found

    def error(self, name: str, reason: str) -> InputError:
        # JSON 解析后没有行号：出错时才回到原文里找这个 id 所在的行
        spellings = "|".join(map(re.escape, (json.dumps(name), json.dumps(name, ensure_ascii=False), name)))
        offsets = [found.start() for found in re.finditer(rf'"id"\s*:\s*(?:{spellings})\s*[,}}]', self.content)]
        # 答案等别处可能也有同样的 id（如 DRCD）：分不清时宁可不说行号
        line = f"line {self.content.count(chr(10), 0, offsets[0]) + 1}, " if len(offsets) == 1 else ""
        return InputError(f"{self.path}: {line}question {name!r}: {reason}")


def _answer_list(place: str, answers: dict[str, object]) -> list[object]:
    """Returns answers that are written as a list of texts and one of offsets as SQuAD's own list of answers."""
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise InputError(f'{place}: its answers need a list "text" and a list "answer_start" of the same length')
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
