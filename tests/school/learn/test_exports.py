"""Lessons as notebooks that run, cards as Anki reads them, exercises that are checked."""

import json
import re

import pytest

from bertsmith.errors import InputError
from bertsmith_school.learn import check_answer, find_lesson, lessons
from bertsmith_school.learn.equations import EQUATIONS
from bertsmith_school.learn.exports import write_anki, write_notebooks
from bertsmith_school.learn.facts import GIVEN
from bertsmith_school.learn.minibert import simple_sentences

nbformat = pytest.importorskip("nbformat")


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """Two parts in both languages: the others train networks while they are written."""
    folder = tmp_path_factory.mktemp("notebooks")
    return {language: write_notebooks(folder, lessons(language)[:2], language) for language in ("en", "zh")}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_notebooks_are_valid_and_hold_the_whole_lesson(books, language):
    for path, lesson in zip(books[language], lessons(language), strict=False):
        book = nbformat.read(path, as_version=4)
        nbformat.validate(book)
        text = "\n".join(cell.source for cell in book.cells)
        assert all(f'compute(\n    "{id}",' in text for id in lesson.computations)
        assert all(f'check_equation("{id}", ' in text for id in lesson.computations if id in EQUATIONS)
        assert all(question.explanation in text for question in lesson.questions)
        assert all(exercise.prompt in text for exercise in lesson.exercises)
        assert len({cell.id for cell in book.cells}) == len(book.cells)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
def test_a_notebook_runs_as_it_is(number, tmp_path):
    from nbclient import NotebookClient

    language = "zh" if number % 2 else "en"
    (path,) = write_notebooks(tmp_path, [lessons(language)[number]], language)
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    NotebookClient(book, timeout=300, kernel_name="python3").execute()
    shown = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("text/html" in output.get("data", {}) for output in shown)
    drawn = sum("SVG(picture" in cell.source for cell in book.cells)
    assert sum("image/svg+xml" in output.get("data", {}) for output in shown) == drawn


def test_a_notebook_for_ones_own_model_loads_it(tiny_model, tmp_path, monkeypatch):
    from bertsmith_school.learn import Study

    monkeypatch.chdir(tiny_model.parent)
    for folder in (tiny_model, tiny_model.name):
        (path,) = write_notebooks(tmp_path, [find_lesson("1")], "en", Study.load(folder))
        assert f"Study.load({str(tiny_model.resolve())!r})" in path.read_text().replace('\\"', '"')


def test_a_computation_is_a_table_in_a_notebook_and_its_texts_are_escaped():
    from bertsmith_school.learn import Computation, Step

    steps = (Step("a < b", [[1, "<i>"]], "note", columns=("x", "y")), Step("loss", 0.5))
    html = Computation("one", "<b>", steps, {})._repr_html_()
    assert "<th>x</th><th>y</th></tr><tr><td>1</td><td>&lt;i&gt;</td></tr>" in html
    assert "<h4>&lt;b&gt;</h4>" in html
    assert "<b>loss</b>: 0.5000" in html


@pytest.mark.parametrize("language", ["en", "zh"])
def test_cards_in_the_form_that_anki_imports(tmp_path, language):
    """Header lines, then a row for each card: guid, front, back, tags (https://docs.ankiweb.net/importing)."""
    count = write_anki(tmp_path / "cards.txt", lessons(language), language)
    head, rows = [], []
    for line in (tmp_path / "cards.txt").read_text(encoding="utf-8").splitlines():
        (head if line.startswith("#") else rows).append(line)
    assert "#separator:tab" in head
    assert "#guid column:1" in head
    cells = [row.split("\t") for row in rows]
    assert count == len(cells) == sum(len(lesson.cards) for lesson in lessons(language))
    assert {len(row) for row in cells} == {4}
    assert len({row[0] for row in cells}) == count


def test_every_exercise_is_in_a_lesson_and_its_own_answer_is_right():
    story = lessons("zh")
    assert sorted(GIVEN) == sorted(exercise.id for lesson in story for exercise in lesson.exercises)
    for lesson in story:
        for exercise in lesson.exercises:
            assert check_answer(exercise, exercise.answer).correct
            assert not check_answer(exercise, exercise.answer * 1.02).correct


def test_the_answers_by_hand():
    answers = {exercise.id: exercise.answer for lesson in lessons() for exercise in lesson.exercises}
    assert answers["why/left"] + answers["why/right"] == 9 + 1
    assert answers["architecture/block"] == 4 * (256**2 + 256) + 2 * 256 * 1024 + 1024 + 256 + 4 * 256
    assert answers["architecture/softmax"] == pytest.approx(1 / (1 + 2.718281828**-2), abs=1e-6)
    assert (answers["pre-training/masked"], answers["fine-tuning/span"]) == (240, 1 + 6 + 1)
    # no sentence is longer than 5 words, and 15 % of 5 is 0.75: one word each, in 80 steps
    assert answers["pre-training/minibert"] == 80 * len(simple_sentences())
    (shown,) = (one.prompt for lesson in lessons() for one in lesson.exercises if one.id == "fine-tuning/span")
    starts, ends = ([float(number) for number in found.split(", ")] for found in re.findall(r"(?:\d+, )+\d+", shown))
    sums = sorted((start + ends[j] for i, start in enumerate(starts) for j in range(i, len(ends))), reverse=True)
    assert sums[0] > sums[1]
    assert answers["details/rate"] == pytest.approx(5e-5)
    assert answers["families/window"] == 1000 * 129 - 2 * sum(range(1, 65))


@pytest.mark.parametrize(
    ("answer", "correct"), [("789,760", True), (" 789760 ", True), ("789761", False), ("7.9e5", False)]
)
def test_whole_numbers_must_be_met(answer, correct):
    exercise = find_lesson("2").exercises[0]
    assert check_answer(exercise, answer).correct is correct


@pytest.mark.parametrize(
    ("answer", "correct"), [("0.88", True), ("88%", True), ("88.1 %", True), (0.9, False), ("88", False)]
)
def test_shares_may_be_rounded_and_written_in_percent(answer, correct):
    assert check_answer(find_lesson("2").exercises[1], answer).correct is correct


@pytest.mark.parametrize("answer", ["", "four", "1e999", "nan", "%", True, "\x00"])
def test_an_answer_that_is_no_number(answer):
    with pytest.raises(InputError, match="is no number; write one such as"):
        check_answer(find_lesson("1").exercises[0], answer)


def test_notebooks_are_plain_json(books):
    assert json.loads(books["en"][0].read_text(encoding="utf-8"))["nbformat"] == 4
