"""The lessons as the lab draws them: inputs as one types them, numbers as the terminal has them."""

import pytest

pytest.importorskip("gradio", reason="the lab needs pip install 'bertsmith[lab]'")

from bertsmith.errors import InputError
from bertsmith.lab import learn
from bertsmith.lab.models import LabError
from bertsmith.learn import COMPUTATIONS, Study, compute, lessons


def inputs():
    return [(id, given) for id, recipe in COMPUTATIONS.items() for given in recipe.inputs]


@pytest.mark.parametrize(("id", "given"), inputs(), ids=lambda one: getattr(one, "name", one))
def test_what_stands_in_a_field_is_the_default(id, given):
    back = given.check(learn.parsed(given, learn.typed(given)))
    assert str(back) == str(given.check(given.default))


def test_numbers_are_read_as_people_write_them():
    matrix = next(given for _, given in inputs() if given.kind == "matrix")
    for text in ("1 0; 1 2", "1, 0\n1, 2\n", "1 0；1 2"):
        assert learn.parsed(matrix, text) == [[1.0, 0.0], [1.0, 2.0]]
    with pytest.raises(LabError, match="write numbers"):
        learn.parsed(matrix, "one two")
    with pytest.raises(InputError):
        matrix.check(learn.parsed(matrix, ""))
    with pytest.raises(InputError):
        matrix.check(learn.parsed(matrix, "1 2; 3"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_section_has_its_text_and_every_step(language):
    study = Study.small()
    lesson = lessons(language)[0]
    section = next(one for one in lesson.sections if one.computation)
    found = learn.computed(section.computation, language, study, {})
    page = learn.section_html(section, found)
    for step in compute(section.computation, language=language, study=study).steps:
        for row in step.cells():
            assert all(learn.written(cell) in page for cell in row)
    assert "{" not in page


def test_a_result_is_kept_until_an_input_changes():
    study = Study.small()
    one = learn.computed("two_tokens", "en", study, {})
    assert learn.computed("two_tokens", "en", study, {}) is one
    other = learn.computed("two_tokens", "en", study, {"x": [[1.0, 0.0], [0.0, 1.0]]})
    assert other is not one
