"""`lessons`: the six parts in one language, with every number of their questions and cards filled in."""

from __future__ import annotations

from collections.abc import Mapping

from bertsmith.errors import InputError
from bertsmith.learn.facts import facts
from bertsmith.learn.lesson import LANGUAGES, Card, CodeLink, Language, Lesson, Question, Section, Text
from bertsmith.learn.parts import architecture, details, experiments, finetuning, pretraining, why
from bertsmith.learn.parts.part import CHAPTERS, Part

PARTS: tuple[Part, ...] = (
    why.PART,
    architecture.PART,
    pretraining.PART,
    finetuning.PART,
    experiments.PART,
    details.PART,
)

MAP_PAGE = Text("docs/paper_map.md", "docs/paper_map.zh-CN.md")


def lessons(language: Language = "en") -> list[Lesson]:
    """Returns the story.

    Args:
        language: `en` or `zh`.

    Raises:
        InputError: there is no such language.
    """
    if language not in LANGUAGES:
        raise InputError(f"language {language!r} is unknown; use {' or '.join(LANGUAGES)}")
    return [_localised(part, number, language) for number, part in enumerate(PARTS, 1)]


def find_lesson(name: str, language: Language = "en") -> Lesson:
    """Finds a lesson by its number or its id.

    Raises:
        InputError: there is no such lesson.
    """
    story = lessons(language)
    for lesson in story:
        if name.strip().lower() in (lesson.id, str(lesson.number)):
            return lesson
    known = ", ".join(f"{lesson.number} {lesson.id}" for lesson in story)
    raise InputError(f"there is no part {name[:40]!r}; there are {known}")


def _localised(part: Part, number: int, language: Language) -> Lesson:
    known = facts()

    def fill(text: Text) -> str:
        return text(language).format(facts=known)

    questions = [
        Question(
            f"{part.id}/{place}", fill(each.prompt), tuple(map(fill, each.choices)), each.answer, fill(each.explanation)
        )
        for place, each in enumerate(part.questions, 1)
    ]
    page = MAP_PAGE(language)
    return Lesson(
        id=part.id,
        number=number,
        title=part.title(language),
        sections=tuple(Section(each.text(language), each.computation, known) for each in part.sections),
        questions=tuple(questions),
        cards=tuple(Card(each.key, fill(each.front), fill(each.back)) for each in part.cards),
        code_links=tuple(
            CodeLink(each.about(language), each.name, f"{page}#{CHAPTERS[each.chapter](language)}")
            for each in part.links
        ),
    )


def environment_language(environment: Mapping[str, str]) -> Language:
    """Returns the language of an environment's locale: Chinese where it says so, otherwise English."""
    # POSIX 的优先次序：LC_ALL 压过 LC_MESSAGES，再压过 LANG；空字符串等于没设
    locale = next((environment[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environment.get(name)), "")
    return "zh" if locale.lower().startswith("zh") else "en"
