"""Folding to the terminal's width, in English and Chinese."""

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bertsmith_school.learn import Step, compute, find_lesson
from bertsmith_school.learn.terminal import _fold, show_computation, show_lesson, show_markdown


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [40, 80])
def test_running_text_keeps_to_the_width(language, width):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for number in ("1", "2", "3", "4", "6", "7"):
        for section in find_lesson(number, language).sections:
            found = compute(section.computation, language=language) if section.computation else None
            show_markdown(console, section.fill(found))
    lines = console.export_text().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert sum(cell_len(line) > 0.7 * width for line in lines) > 0.6 * sum(bool(line.strip()) for line in lines)
    assert not any(line[:1] in tuple("，。；：！？、）") for line in lines)
    assert not any(line.rstrip()[-1:] in tuple("（“") for line in lines)


def test_no_character_is_lost_by_folding():
    text = "用 `x` 把 word（SWAG）和“引号”" + "很长的一段" * 20 + "averyveryverylongword" * 10 + " 完。"
    lines = _fold(Text(text), 30)
    assert "".join(line.plain for line in lines).replace(" ", "") == text.replace(" ", "")
    assert max(cell_len(line.plain) for line in lines) <= 30


def test_a_lesson_in_80_columns():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show_lesson(console, find_lesson("2", "zh"), None, "zh")
    text = console.export_text()
    assert "109,482,240" in text
    assert "[CLS]" in text
    assert text.count("用 bertsmith 自带的小村庄模型") == 1


def test_markup_in_a_text_is_shown_as_text():
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show_computation(console, compute("mlm_loss", text="the man reads [red]the book[/red]", hidden="book"))
    assert "[MASK]" in console.export_text()


@pytest.mark.parametrize(
    ("step", "headings"),
    [
        (Step("", [[1, 2]], columns=("a", "b")), ("a", "b")),
        (Step("", [[1, 2]], rows=("x",), columns=("a", "b")), ("", "a", "b")),
        (Step("", [[1, 2]], rows=("x",)), ()),
        (Step("", 3), ()),
        (Step("", [], columns=("a",)), ("a",)),
    ],
)
def test_a_column_of_names_has_no_heading(step, headings):
    assert step.headings == headings
