"""The overview names every part with its idea, its computations and its picture, at a terminal and on the site."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from bertsmith_school.learn import COMPUTATIONS, LANGUAGES, Deck, lessons
from bertsmith_school.learn.terminal import show_overview

ROOT = Path(__file__).parents[3]


def without_spaces(text):
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_at_a_terminal(language, tmp_path):
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show_overview(console, Deck(tmp_path / "progress.json", language), language, pictures=tmp_path)
    shown = without_spaces(console.export_text())
    for lesson in lessons(language):
        titles = [COMPUTATIONS[id].title(language) for id in lesson.computations]
        for text in (lesson.title, lesson.id, lesson.idea, *titles):
            assert without_spaces(text) in shown
        picture = tmp_path / f"{lesson.number}-{lesson.id}-{lesson.shown}.{language}.svg"
        assert picture.is_file()
        assert without_spaces(str(picture)) in shown


@pytest.mark.parametrize("language", LANGUAGES)
def test_on_the_site(language):
    page = (ROOT / f"docs/{language}/how-to/learn.md").read_text(encoding="utf-8")
    for lesson in lessons(language):
        titles = " · ".join(COMPUTATIONS[id].title(language) for id in lesson.computations)
        heading, picture = f"### {lesson.number} {lesson.title}\n", f"{lesson.number}-{lesson.id}-{lesson.shown}"
        section = page.partition(heading)[2].partition("\n##")[0]
        assert lesson.idea in section
        assert titles in section
        assert f"](../../images/lessons/{picture}.{language}.svg)" in section
