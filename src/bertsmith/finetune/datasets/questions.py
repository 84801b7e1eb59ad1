"""Reader of questions on passages: SQuAD JSON 1.1 and 2.0, and what is written like it (XQuAD, CMRC 2018).

Tables are read as well, with a question a row, as the Hub has SQuAD: `id`, `question`, `context`, and `answers` as
`{"text": [...], "answer_start": [...]}`; where these lists are empty, the passage does not answer the question.

An answer is a stretch of its passage. Where the passage at the given offset reads otherwise, training would point the
model at the wrong words. Published files have such answers, and even questions without text (five and two in the trial
file of CMRC 2018): they are refused, or left out and listed, as asked. A file of another form is always refused.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.data.reading.lines import Placed, read_text
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.reader import Reader, ReadingOptions
from bertsmith.finetune.datasets.tables import Table, ending_of, kind_of, listed, open_table, require_unicode


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


@dataclass(frozen=True)
class QuestionFile:
    """What a file holds.

    Attributes:
        examples: in the order of the file.
        mismatches: for every answer left out because the passage reads otherwise at its offset, its question's id.
        empty: the id of every question left out because it has no text.
        skipped: how many questions were left out, for having no text or no answer left.
    """

    examples: list[QuestionExample]
    mismatches: list[str]
    empty: list[str]
    skipped: int


def read_squad(
    path: str | Path, *, faults: Literal["refuse", "skip"] = "refuse", encoding: str = "auto"
) -> QuestionFile:
    """Reads a file of questions in the form of SQuAD.

    Args:
        path: the file, plain or packed (`.gz`, `.zst`).
        faults: what to do with an answer whose offset does not match its text, and with a question without text.
        encoding: `auto` or a codec's name.

    Raises:
        InputError: the file is missing, damaged, no JSON or of another form; a passage or answer is empty, an id
            occurs twice, a question has no answer and is not marked `is_impossible`, or a fault is refused. The message
            names the file, the question, and the line where its id stands on one only.
    """
    path = Path(path)
    content = read_text(path, encoding)
    try:
        document = json.loads(content)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno} is not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON ({type(error).__name__})") from None
    reader = _SquadReader(path, content, faults == "skip")
    return reader.finish(path, reader.examples(document))


def _read_questions(path: Path, options: ReadingOptions) -> list[QuestionExample]:
    if ending_of(path) in (".jsonl", ".ndjson", ".parquet"):
        return _read_table(open_table(path, kind_of(path), options.encoding), options)
    found = read_squad(path, faults=_faults(options), encoding=options.encoding)
    return _told_of_faults(path, found)


def _read_table(table: Table, options: ReadingOptions) -> list[QuestionExample]:
    missing = [name for name in ("question", "context", "answers") if name not in table.first]
    if missing:
        raise InputError(
            f"{table.path}: no column {missing[0]} among {listed(table.first)}; a question has a question, a context"
            " and answers"
        )
    reader = _SquadReader(table.path, "", _faults(options) == "skip")
    records = ((row.place, dict(zip(table.first, row.cells, strict=True))) for row in table.rows)
    return _told_of_faults(table.path, reader.finish(table.path, reader.examples_of_rows(records)))


def _faults(options: ReadingOptions) -> Literal["refuse", "skip"]:
    if options.faults not in (None, "refuse", "skip"):
        raise ConfigError(f"--faults {options.faults!r} is unknown; use refuse or skip")
    return options.faults or "refuse"


def _told_of_faults(path: Path | str, found: QuestionFile) -> list[QuestionExample]:
    """Returns the questions, and warns of those that were left out."""
    if found.mismatches or found.empty:
        warnings.warn(
            f"{path}: left out {len(found.mismatches)} answers that are not where the file says and"
            f" {len(found.empty)} questions without text; {found.skipped} questions in all",
            stacklevel=3,
        )
    return found.examples


QUESTIONS = Reader("questions on passages", ("faults",), _read_questions, _read_table)
"""Questions with their passages and answers, as `QuestionExample`."""


class _SquadReader:
    """Walks the nested lists of a file, or the rows of a table; knows enough of the text of a file to name a line."""

    def __init__(self, path: Path | str, content: str, skip: bool) -> None:
        self.path = path
        self.content = content
        self.skip = skip
        self.seen: set[str] = set()
        self.mismatches: list[str] = []
        self.empty: list[str] = []
        self.skipped = 0

    def finish(self, path: Path | str, examples: Iterator[QuestionExample]) -> QuestionFile:
        """Reads all questions."""
        found = list(examples)
        if not found:
            raise InputError(f"{path}: holds no question")
        return QuestionFile(found, self.mismatches, self.empty, self.skipped)

    def examples_of_rows(self, rows: Iterable[tuple[str, dict[str, object]]]) -> Iterator[QuestionExample]:
        for number, (place, row) in enumerate(rows):
            # 每一行都自报位置：表里没有可以回头去找的原文
            self.path = place
            entry = {"id": str(number), **{name: value for name, value in row.items() if value is not None}}
            answers = entry.get("answers")
            if isinstance(answers, dict):
                answers = entry["answers"] = _answer_list(place, answers)
            # Hub 上的 SQuAD 2.0 没有 is_impossible 一列：答案为空就是无答案
            entry.setdefault("is_impossible", answers == [])
            yield from self.one(entry, self.text(entry, "context", "the row"), "the row")

    def examples(self, document: object) -> Iterator[QuestionExample]:
        for a, article in enumerate(self.items(document, "data", "the file")):
            for p, paragraph in enumerate(self.items(article, "paragraphs", f"data[{a}]")):
                place = f"data[{a}].paragraphs[{p}]"
                context = self.text(paragraph, "context", place)
                for q, entry in enumerate(self.items(paragraph, "qas", place)):
                    yield from self.one(entry, context, f"{place}.qas[{q}]")

    def one(self, entry: object, context: str, place: str) -> Iterator[QuestionExample]:
        """Yields a question, or nothing if it is left out."""
        example = self.question(entry, context, place)
        if example is not None:
            if example.id in self.seen:
                raise self.error(example.id, "its id occurs twice; predictions are told apart by it")
            self.seen.add(example.id)
            yield example

    def question(self, entry: object, context: str, place: str) -> QuestionExample | None:
        """Returns a question, or None if it is left out."""
        identity = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(identity, (str, int)) or identity == "":
            raise InputError(f"{self.path}: {place} has no id")
        name = str(identity)
        assert isinstance(entry, dict)
        if self.skip and isinstance(entry.get("question"), str) and not entry["question"].strip():
            self.empty.append(name)
            self.skipped += 1
            return None
        question = self.text(entry, "question", place, name)
        given = self.items(entry, "answers", place, name) if "answers" in entry else []
        # SQuAD 2.0 的无答案题另有 plausible_answers，那不是答案，不读
        if entry.get("is_impossible") is True:
            if given:
                raise self.error(name, "it is marked is_impossible and has answers; drop one of the two")
            return QuestionExample(name, question, context, (), place=str(self.path))
        if not given:
            raise self.error(name, 'it has no answers; mark it "is_impossible": true if the passage has none')
        answers = [answer for answer in (self.answer(item, context, name) for item in given) if answer]
        if not answers:
            self.skipped += 1
            return None
        return QuestionExample(name, question, context, tuple(answers), place=str(self.path))

    def answer(self, item: object, context: str, name: str) -> Answer | None:
        """Returns an answer, or None if it is left out."""
        text = item.get("text") if isinstance(item, dict) else None
        start = item.get("answer_start") if isinstance(item, dict) else None
        if not isinstance(text, str) or isinstance(start, bool) or not isinstance(start, int):
            raise self.error(name, 'an answer needs a "text" and an "answer_start", a number of characters')
        if not text.strip():
            raise self.error(name, "it has an empty answer")
        # 负数在 Python 里从末尾数起：碰巧对上，也不是文件说的位置
        if start >= 0 and context.startswith(text, start):
            return Answer(text, start)
        if self.skip:
            self.mismatches.append(name)
            return None
        found = repr(context[start : start + len(text)][:40]) if 0 <= start < len(context) else "nothing"
        raise self.error(
            name,
            f"the passage has {found} at character {start}, not the answer {text[:40]!r}; "
            "correct answer_start, or ask to skip such faults",
        )

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
