"""What a lesson is made of: sections, computations, questions, exercises, flash cards, links into the code.

Texts are templates in two languages: `{facts.…}` and `{c.…}` are filled from the code and the section's computation, so
that a text cannot say what the code does not. Terminal and browser render the same objects; nothing here prints.
`Words` are labels, notes and names for what the computations found: `parts/computations.LANGUAGE.yaml`.
"""

from __future__ import annotations

import functools
import html
import importlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import yaml
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.files import HALF_CHARACTER

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)

Cell = str | int | float
Value = Cell | NDArray[Any] | Sequence[Sequence[Cell]]

_STYLED = re.compile(r"\*\*(?P<bold>.+?)\*\*|`(?P<code>[^`]+)`|\*(?P<italic>[^*\s][^*]*)\*")


class Text(NamedTuple):
    """A text in English and in Chinese."""

    en: str
    zh: str

    def __call__(self, language: Language) -> str:
        """Returns the text in one language."""
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True)
class Step:
    """One step of a computation: what it is, how it comes about or what to look at, names of rows and columns."""

    label: str
    value: Value
    note: str = ""
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def is_table(self) -> bool:
        """Whether `value` has rows and columns (or one row) rather than being one number or text."""
        return not isinstance(self.value, Cell)

    def cells(self) -> list[list[str]]:
        """The value as rows of texts, each row headed by its name where rows have names."""
        values: Any = [[self.value]] if isinstance(self.value, Cell) else self.value
        table = values.tolist() if isinstance(values, np.ndarray) else [list(row) for row in values]
        if table and not isinstance(table[0], list):
            table = [table]
        texts = [[written(cell) for cell in row] for row in table]
        return [[name, *row] for name, row in zip(self.rows, texts, strict=True)] if self.rows else texts

    @property
    def headings(self) -> tuple[str, ...]:
        """What stands above each column of `cells`; empty where the columns have no names."""
        width = max(map(len, self.cells()), default=0)
        # 行名自成一列，这一列没有名称
        return ("", *self.columns) if self.columns and len(self.columns) < width else self.columns


Found = tuple[Sequence[Any], dict[str, Any]]
"""What a computation returns: the values of its steps, in the order of the reasoning, each a `Value`, or a `Step` where
its names were computed; and the results that texts refer to, by name."""


@dataclass(frozen=True)
class Computation:
    """What a computation found, step by step, a note such as that the model is untrained, and its equation, if any."""

    id: str
    title: str
    steps: tuple[Step, ...]
    values: Mapping[str, Any]
    note: str = ""
    code: str = ""

    def _repr_html_(self) -> str:
        return f"<h4>{html.escape(self.title)}</h4>" + "".join(map(_step_html, self.steps))


@dataclass(frozen=True)
class Input:
    """One thing that a reader may change about a computation.

    Attributes:
        name: the keyword of `compute`.
        kind: `text`, `integer`, `numbers` (a list), `matrix` (a list of rows), or `choice`.
        chinese: of a `text`, what is used with a vocabulary of Chinese.
    """

    name: str
    label: Text
    kind: Literal["text", "integer", "numbers", "matrix", "choice"]
    default: Any
    chinese: str = ""
    choices: tuple[str, ...] = ()
    smallest: int = 0
    largest: int = 0

    def check(self, value: Any) -> Any:
        """Returns a value in the form that the computation takes."""
        if self.kind == "integer":
            if not isinstance(value, int) or isinstance(value, bool) or not self.smallest <= value <= self.largest:
                # 不重复读到的数：它可能有几千位
                raise InputError(f"{self.name} must be a whole number from {self.smallest} to {self.largest}")
            return value
        if self.kind in ("numbers", "matrix"):
            return _as_array(self.name, value, axes=1 if self.kind == "numbers" else 2)
        if not isinstance(value, str):
            raise InputError(f"{self.name} must be a text, not {type(value).__name__}")
        if self.kind == "choice" and value not in self.choices:
            raise InputError(f"{self.name} {value[:40]!r} is unknown; use one of {', '.join(self.choices)}")
        # 单独的代理字符无法写成 UTF-8：在入口拦下，而不是在打印时出错
        if HALF_CHARACTER.search(value):
            raise InputError(f"{self.name} holds half of a character (a lone surrogate); type the text again")
        return value


@dataclass(frozen=True)
class Section:
    """A few paragraphs, and the name of the computation they speak of; None where the text stands alone."""

    template: str
    computation: str | None
    facts: SimpleNamespace = field(repr=False)

    def fill(self, computation: Computation | None = None) -> str:
        """Returns the text with its numbers, those of the result of its computation where it has one."""
        found = None if computation is None else computation.id
        if found != self.computation:
            raise ValueError(f"this section speaks of {self.computation}, not of {found}")
        values = SimpleNamespace(**(computation.values if computation else {}))
        return self.template.format(facts=self.facts, c=values)


@dataclass(frozen=True)
class Question:
    """A multiple-choice question: `answer` counts the choices from 0."""

    id: str
    prompt: str
    choices: tuple[str, ...]
    answer: int
    explanation: str


@dataclass(frozen=True)
class Exercise:
    """A question whose answer is a number."""

    id: str
    prompt: str
    answer: float
    explanation: str


class Grade(NamedTuple):
    """Whether an answer was right, the right one, and why."""

    correct: bool
    answer: str
    explanation: str


@dataclass(frozen=True)
class Card:
    """A flash card: `id` stays the same in every language, so that progress does too."""

    id: str
    front: str
    back: str


@dataclass(frozen=True)
class CodeLink:
    """Where an idea is in the code, by the dotted name and the page that the paper map has."""

    about: str
    name: str
    map_page: str

    @property
    def file(self) -> str:
        """The file that defines it, from the root of the package, such as `bertsmith/model/bert.py`."""
        words = self.name.split(".")
        for count in range(len(words), 0, -1):
            try:
                module = importlib.import_module(".".join(words[:count]))
            except ModuleNotFoundError:
                continue
            return f"{module.__name__.replace('.', '/')}.py"
        raise InputError(f"{self.name}: there is no such name")


@dataclass(frozen=True)
class Lesson:
    """One part of the story, in one language.

    Attributes:
        number: counted from 1.
        idea: the part in one sentence.
        shown: the computation whose picture shows the idea.
    """

    id: str
    number: int
    title: str
    idea: str
    shown: str
    sections: tuple[Section, ...]
    questions: tuple[Question, ...]
    exercises: tuple[Exercise, ...]
    cards: tuple[Card, ...]
    code_links: tuple[CodeLink, ...]

    @property
    def computations(self) -> tuple[str, ...]:
        """The names of its computations, in order."""
        return tuple(section.computation for section in self.sections if section.computation)


def grade(question: Question, choice: int) -> Grade:
    """Marks a choice, counted from 0; `InputError` where there is no such choice."""
    if isinstance(choice, bool) or not isinstance(choice, int) or not 0 <= choice < len(question.choices):
        raise InputError(f"choice {choice!r}: {question.id} has the choices 0 to {len(question.choices) - 1}")
    return Grade(choice == question.answer, question.choices[question.answer], question.explanation)


def spans(text: str) -> Iterator[tuple[str, str]]:
    """Cuts a text with **bold**, *italic* and `code` into (style, text); the style of plain text is empty."""
    end = 0
    for match in _STYLED.finditer(text):
        yield "", text[end : match.start()]
        style = match.lastgroup or ""
        yield style, match[style]
        end = match.end()
    yield "", text[end:]


def as_html(text: str, written: Callable[[str], str] = html.escape) -> str:
    """Returns a text with **bold**, *italic* and `code` as HTML; whatever else is in it is escaped."""
    tags = {"bold": "b", "code": "code", "italic": "i"}
    # 先转义、后加样式：文字里的尖括号永远成不了标签
    return "".join(
        f"<{tags[style]}>{written(part)}</{tags[style]}>" if style else written(part) for style, part in spans(text)
    )


def _step_html(step: Step) -> str:
    escaped = [[html.escape(cell) for cell in row] for row in step.cells()]
    label, note = html.escape(step.label), f"<br><i>{html.escape(step.note)}</i>" if step.note else ""
    if not step.is_table:
        return f"<p><b>{label}</b>: {escaped[0][0]}{note}</p>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in step.headings)
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in escaped)
    return f"<p><b>{label}</b>{note}</p><table><tr>{head}</tr>{rows}</table>"


def written(cell: Cell) -> str:
    """Writes a number for a table: whole ones with commas, others with four figures."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    if cell == 0 or not math.isfinite(cell):
        # 负零写作 0
        return f"{cell or 0.0:.0f}"
    if float(cell).is_integer() and abs(cell) < 1e4:
        return f"{cell:.0f}"
    return f"{cell:.4f}" if 1e-3 <= abs(cell) < 1e4 else f"{cell:.2e}"


def is_number(cell: str) -> bool:
    """Whether a cell of a table is a number or nothing, and so stands to the right in its column."""
    return bool(re.fullmatch(r"[+\-]?[\d,.]+(e[+\-]\d+)?%?|", cell))


def _as_array(name: str, value: Any, *, axes: int) -> NDArray[np.float64]:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, in rows of one length") from None
    if array.ndim != axes or not array.size or max(array.shape) > 16 or not np.isfinite(array).all():
        shape = "a list of numbers" if axes == 1 else "rows of numbers"
        raise InputError(f"{name} must be {shape}, at most 16 each way, all finite")
    return array


@functools.cache
def read_yaml(name: str) -> dict[str, Any]:
    """Returns a file of `parts/`."""
    text = (resources.files("bertsmith_school.learn") / "parts" / name).read_text(encoding="utf-8")
    # C 写的读取器快十倍；没有它的机器上用 Python 写的
    found: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


@dataclass(frozen=True)
class Words:
    """The words of one computation."""

    language: Language
    texts: Mapping[str, Any]

    @classmethod
    def of(cls, id: str, language: Language) -> Words:
        """Returns those of a computation, together with those that all share."""
        texts = read_yaml(f"computations.{language}.yaml")
        inputs = texts["common"]["inputs"] | texts[id].get("inputs", {})
        return cls(language, {"picture": {}, "starts": {}, **texts["common"], **texts[id], "inputs": inputs})

    def __getitem__(self, name: str) -> str:
        text: str = self.texts[name]
        return text

    def split(self, name: str) -> list[str]:
        """Returns the parts of a text that are written with | between."""
        return self[name].split("|")

    def named(self, name: str, rows: Iterable[Sequence[Cell]]) -> list[tuple[Cell, ...]]:
        """Heads rows with their names, the parts of a text."""
        return [(part, *row) for part, row in zip(self.split(name), rows, strict=True)]

    def steps(self, found: Sequence[Step | Value], results: Mapping[str, Any]) -> Iterator[Step]:
        """Yields the values found as steps in the words of the file; a value may be a `Step`, or have its own label."""
        templates = iter(self.texts["steps"])
        for each in found:
            step = each if isinstance(each, Step) else Step("", each)
            if not step.label:
                template = next(templates)
                words = {"label": template} if isinstance(template, str) else template
                words = {name: [part.format(**results) for part in text.split("|")] for name, text in words.items()}
                said: dict[str, Any] = {
                    name: tuple(parts) if name in ("rows", "columns") else parts[0] for name, parts in words.items()
                }
                step = replace(step, **said)
            yield step

    def picture(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Returns the words of a picture, filled."""
        return {name: text.format(**results) for name, text in self.texts["picture"].items()}
