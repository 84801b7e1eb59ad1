"""`lessons`: the parts in one language, read from Markdown, with the numbers of their questions and cards.

A part is a pair of files, `parts/NUMBER-ID.en.md` and `.zh.md`, of one form:

    # title
    > the part in one sentence | the computation whose picture shows it
    paragraphs, then a block ```compute with a computation's name, or ---, ends a section; any number of sections
    ## Questions    ### prompt, choices as - [ ] (the right one - [x]), explanation
    ## Exercises    ### key | prompt, then how the answer comes about; the answer is in `facts`, under the key
    ## Cards        ### key | front, then the back; progress is kept under the key
    ## Code         - what it is: [`dotted.name`](page of the paper map#anchor)

Numbers are placeholders, `{facts.…}` or, in sections, `{c.…}` of the section's computation and, in exercises, `{e.…}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from types import SimpleNamespace
from typing import NamedTuple

from bertsmith.errors import InputError
from bertsmith_school.learn.facts import GIVEN, facts
from bertsmith_school.learn.lesson import LANGUAGES, Card, CodeLink, Exercise, Language, Lesson, Question, Section

HEADINGS: dict[Language, tuple[str, str, str, str]] = {
    "en": ("Questions", "Exercises", "Cards", "Code"),
    "zh": ("问题", "练习", "卡片", "代码"),
}
"""The four second-level headings of a part, in their order."""

_SECTION_END = re.compile(r"^```compute\n(?P<computation>\w+)\n```$|^---$", re.MULTILINE)
_CHOICE = re.compile(r"- \[(?P<right>[ x])\] (?P<text>.+)")
_CODE_LINK = re.compile(r"- (?P<about>.+): \[`(?P<name>[\w.]+)`\]\((?P<page>[\w./-]+#[^)\s]+)\)")


class PartFile(NamedTuple):
    """One part in one language as it lies in the package: its name, such as `1-why.en.md`, and its text."""

    name: str
    text: str

    @property
    def number(self) -> int:
        """Its place in the story, from 1."""
        return int(self.name.partition("-")[0])

    @property
    def id(self) -> str:
        """Its name, the same in every language."""
        return self.name.partition("-")[2].partition(".")[0]


def part_files(language: Language) -> list[PartFile]:
    """Returns the files of a language, in the order of the story."""
    folder = resources.files("bertsmith_school.learn") / "parts"
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(f".{language}.md")]
    files = [PartFile(name, (folder / name).read_text(encoding="utf-8")) for name in names]
    return sorted(files, key=lambda file: file.number)


def lessons(language: Language = "en") -> list[Lesson]:
    """Returns the story in `en` or `zh`."""
    if language not in LANGUAGES:
        raise InputError(f"language {language!r} is unknown; use {' or '.join(LANGUAGES)}")
    return [read_part(file, language) for file in part_files(language)]


def find_lesson(name: str, language: Language = "en") -> Lesson:
    """Finds a lesson by its number or its id."""
    story = lessons(language)
    for lesson in story:
        if name.strip().lower() in (lesson.id, str(lesson.number)):
            return lesson
    known = ", ".join(f"{lesson.number} {lesson.id}" for lesson in story)
    raise InputError(f"there is no part {name[:40]!r}; there are {known}")


def read_part(file: PartFile, language: Language) -> Lesson:
    """Reads one part."""
    title, idea, shown, body, questions, exercises, cards, links = _divided(file, language)
    known = facts()

    def fill(text: str) -> str:
        return text.format(facts=known)

    return Lesson(
        id=file.id,
        number=file.number,
        title=title,
        idea=idea,
        shown=shown,
        sections=_sections(body, known),
        questions=tuple(
            _question(file, f"{file.id}/{place}", heading, text, fill)
            for place, (heading, text) in enumerate(_entries(questions), 1)
        ),
        exercises=tuple(_exercise(*entry, known) for entry in _keyed(file, exercises)),
        cards=tuple(Card(id, fill(front), fill(back)) for id, front, back in _keyed(file, cards)),
        code_links=tuple(_code_link(file, line) for line in links.splitlines() if line),
    )


def _divided(file: PartFile, language: Language) -> list[str]:
    """Returns title, idea, the computation that shows it, sections, questions, exercises, cards and links as texts."""
    headings = "".join(rf"\n## {heading}\n(.+)" for heading in HEADINGS[language])
    match = re.fullmatch(rf"# (.+?)\n\n> (.+?) \| (\w+)\n(.+?){headings}", file.text, re.DOTALL)
    if match is None:
        wanted = ", ".join(f"## {heading}" for heading in HEADINGS[language])
        raise InputError(f"{file.name}: must be a title, > IDEA | COMPUTATION, sections, and {wanted}, in this order")
    return [text.strip() for text in match.groups()]


def _sections(body: str, known: SimpleNamespace) -> tuple[Section, ...]:
    """Cuts the text at its computations and rules."""
    sections, start = [], 0
    for end in _SECTION_END.finditer(body):
        sections.append(Section(body[start : end.start()].strip(), end["computation"], known))
        start = end.end()
    if last := body[start:].strip():
        sections.append(Section(last, None, known))
    return tuple(sections)


def _entries(text: str) -> list[tuple[str, str]]:
    """Cuts a text at its third-level headings, into (heading, what stands below it)."""
    cut = re.split(r"^### (.+)$", text, flags=re.MULTILINE)[1:]
    return [(heading, below.strip()) for heading, below in zip(cut[::2], cut[1::2], strict=True)]


def _question(file: PartFile, name: str, prompt: str, text: str, fill: Callable[[str], str]) -> Question:
    choices = list(_CHOICE.finditer(text))
    right = [place for place, choice in enumerate(choices) if choice["right"] == "x"]
    explanation = text[choices[-1].end() :].strip() if choices else ""
    if len(right) != 1 or not explanation:
        raise InputError(f"{file.name}: question {prompt!r} must have choices, one of them - [x], and an explanation")
    filled = tuple(fill(choice["text"]) for choice in choices)
    return Question(name, fill(prompt), filled, right[0], fill(explanation))


def _keyed(file: PartFile, text: str) -> Iterator[tuple[str, str, str]]:
    """Yields the entries of exercises or cards: the key with that of the part before it, the heading, what is below."""
    for heading, below in _entries(text):
        key, bar, front = heading.partition(" | ")
        if not bar or not below:
            raise InputError(f"{file.name}: {heading!r} must be headed by ### KEY | TEXT, with text below it")
        yield f"{file.id}/{key}", front, below


def _exercise(id: str, prompt: str, explanation: str, known: SimpleNamespace) -> Exercise:
    given = GIVEN[id]()
    prompt, explanation = (text.format(facts=known, e=given) for text in (prompt, explanation))
    return Exercise(id, prompt, given.answer, explanation)


def _code_link(file: PartFile, line: str) -> CodeLink:
    match = _CODE_LINK.fullmatch(line)
    if match is None:
        raise InputError(f"{file.name}: {line!r} is no link of the form - ABOUT: [`NAME`](PAGE#ANCHOR)")
    return CodeLink(match["about"], match["name"], match["page"])


def environment_language(environment: Mapping[str, str]) -> Language:
    """Returns the language of an environment's locale: Chinese where it says so, otherwise English."""
    # POSIX 的优先次序：LC_ALL 压过 LC_MESSAGES，再压过 LANG；空字符串等于没设
    locale = next((environment[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environment.get(name)), "")
    return "zh" if locale.lower().startswith("zh") else "en"
