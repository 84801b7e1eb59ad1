"""The lessons as the lab draws them: inputs as one types them, numbers as the terminal has them."""

import base64
import re
from html import unescape

import pytest
import torch

pytest.importorskip("gradio", reason="the lab needs pip install 'bertsmith[school]'")

import gradio as gr

from bertsmith.errors import InputError
from bertsmith.model import BertConfig, BertForMaskedLM
from bertsmith.serve.app import build_app
from bertsmith.serve.guard import ApiKeys
from bertsmith.serve.settings import ServeSettings
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith_school.lab import learn
from bertsmith_school.lab.models import LabError, LabModels
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.learn import COMPUTATIONS, Study, compute, find_lesson, lessons


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


@pytest.mark.parametrize(
    "typed", [float("inf"), float("nan"), 2.5, 1e30, pytest.param(-(10**400), id="400 digits"), None], ids=str
)
def test_what_is_no_whole_number_is_said(laid_out, typed):
    """1e400 in a request is infinity, which Gradio cannot round; 400 digits are an integer too large for a float."""
    page = laid_out("pre-training", "single")
    field = next(one for one in page.blocks.values() if isinstance(one, gr.Number))
    integer = next(
        given for _, given in inputs() if given.label("en") == field.label or given.label("zh") == field.label
    )
    assert learn.parsed(integer, field.preprocess(float(integer.largest))) == integer.largest
    with pytest.raises(InputError, match=rf"{integer.name} must be a whole number from {integer.smallest} to"):
        integer.check(learn.parsed(integer, field.preprocess(typed)))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_section_has_its_text_and_every_step(language):
    study = Study.village()
    lesson = lessons(language)[0]
    section = next(one for one in lesson.sections if one.computation)
    found = learn.computed(section.computation, language, study, {})
    page = learn.section_html(section, found, language)
    for step in compute(section.computation, language=language, study=study).steps:
        for row in step.cells():
            assert all(learn.written(cell) in page for cell in row)
    assert "{" not in page


def test_a_section_with_a_picture_shows_it_as_an_image_of_its_own():
    section = next(one for one in lessons("zh")[1].sections if one.computation == "looking_up")
    page = learn.section_html(section, learn.computed("looking_up", "zh", None, {}), "zh")
    drawn = re.search(r"<img class='lesson-picture' alt='she 指谁？' src='data:image/svg\+xml;base64,([^']+)'>", page)
    assert "水手" in base64.b64decode(drawn[1]).decode()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_overview_has_every_part_with_its_idea_its_picture_and_its_computations(language):
    story = lessons(language)
    page = learn.overview(story, language)
    assert page.count("<img class='overview-picture'") == page.count("<li>") == len(story)
    for lesson in story:
        titles = [COMPUTATIONS[id].title(language) for id in lesson.computations]
        assert all(learn.written(text) in page for text in (lesson.title, lesson.idea, *titles))


def test_a_result_is_kept_until_an_input_changes():
    study = Study.village()
    one = learn.computed("two_tokens", "en", study, {})
    assert learn.computed("two_tokens", "en", study, {}) is one
    other = learn.computed("two_tokens", "en", study, {"x": [[1.0, 0.0], [0.0, 1.0]]})
    assert other is not one


def test_bold_italic_and_code_are_styled_and_tags_are_shown():
    assert learn.markdown("a **b** *c* `<d*e*>`\n\n<e> & 2 * 3 * 4") == (
        "<p>a <b>b</b> <i>c</i> <code>&lt;d*e*&gt;</code></p><p>&lt;e&gt; &amp; 2 * 3 * 4</p>"
    )


@pytest.mark.parametrize("kind", ["text", "numbers", "matrix"])
def test_a_field_takes_20_000_characters(kind):
    given = next(given for _, given in inputs() if given.kind == kind)
    with pytest.raises(LabError, match="20,000 at most"):
        learn.parsed(given, "1 " * 10_001)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Two models: one of Chinese, and one that knows a single segment and so cannot take pairs."""
    root = tmp_path_factory.mktemp("odd-models")
    texts = {"chinese": "今天天气很好", "single": "the man reads the book . the woman sleeps . he eats bread at night"}
    for name, text in texts.items():
        tokenizer = WordPieceTokenizer.train([text] * 3, vocab_size=100)
        config = BertConfig.named(
            "1/64",
            vocab_size=tokenizer.vocab_size,
            max_position_embeddings=32,
            type_vocab_size=1 if name == "single" else 2,
        )
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(root / name)
        tokenizer.save(root / name)
    settings = ServeSettings(models=tuple((name, str(root / name)) for name in texts), threads=1, drain=0.0)
    app = build_app(settings, keys=ApiKeys())
    yield LabModels(list(app.state.models), settings)
    app.state.admission.close()
    app.state.admission.batcher.close()


@pytest.fixture(params=["en", "zh"])
def laid_out(request, odd):
    """Lays a part out for a model; returns its page."""

    def begin(part, model):
        with gr.Blocks() as page:
            state = PageState(odd, request.param, page)
            again = gr.Button(elem_id="again")
            starts = {name: learn.starts_of(odd.named(name)) for name in odd.names}
            learn.lay_out(state, odd.named(model), find_lesson(part, request.param), starts, [again.click])
        return page

    return begin


def called(page, component, event, *values):
    """Calls what answers an event, without a browser: returns what each output becomes, by its component."""
    (wired,) = (one for one in page.fns.values() if (component._id, event) in one.targets)
    return dict(zip((output for output in wired.outputs), wired.fn(*values), strict=True))


def named(page, elem_id):
    return next(one for one in page.blocks.values() if getattr(one, "elem_id", None) == elem_id)


def texts_of(values):
    """The sections among what HTML components show."""
    return [str(value) for value in values if isinstance(value, str) and "class='lesson'" in value]


def shown(page):
    return texts_of(one.value for one in page.blocks.values() if isinstance(one, gr.HTML))


def test_a_part_opens_although_one_of_its_computations_fails(laid_out):
    page = laid_out("architecture", "single")
    texts = shown(page)
    (failed,) = (text for text in texts if "role='alert'" in text)
    assert "knows a single segment" in failed
    assert sum("109,482,240" in text for text in texts) == 1
    assert len(texts) == len(find_lesson("architecture").sections)


@pytest.mark.parametrize("part", ["why", "fine-tuning", "families"])
def test_the_contents_lead_to_every_section_of_a_part(laid_out, part):
    page = laid_out(part, "chinese")
    html = [str(one.value) for one in page.blocks.values() if isinstance(one, gr.HTML)]
    (contents,) = (one for one in html if "class='contents'" in one)
    links = re.findall(r"<a href='#([^']+)'>([^。]+?)</a>", unescape(contents))
    there = [getattr(one, "elem_id", None) for one in page.blocks.values()] + re.findall(r" id='(.+?)'", " ".join(html))
    # the cards are below the part
    assert [place for place, _ in links if place not in there] == ["cards"]
    assert len(links) == len(find_lesson(part).sections) + 4
    for (_, title), section in zip(links, find_lesson(part).sections, strict=False):
        if section.computation:
            assert title in COMPUTATIONS[section.computation].title
    if part == "fine-tuning":
        assert links[1][1] in ("Classes", "分类")


def test_a_part_is_computed_with_words_of_the_model_and_again_with_those_of_another(laid_out):
    for lesson in ("why", "pre-training"):
        page = laid_out(lesson, "chinese")
        again = texts_of(called(page, named(page, "again"), "click", "single").values())
        assert not any("role='alert'" in text for text in shown(page))
        assert any("今" in text for text in shown(page))
        assert any("man" in text for text in again)


def test_fields_begin_with_words_of_the_chosen_model_and_keep_what_was_typed(laid_out):
    page = laid_out("why", "chinese")
    # the first model is the Chinese one: no field of a sentence begins in English
    assert not any("the man" in str(one.value) for one in page.blocks.values() if isinstance(one, gr.Textbox))
    (wired,) = (one for one in page.fns.values() if (named(page, "model")._id, "change") in one.targets)
    values = [field.value for field in wired.inputs[1:]]
    changed = wired.fn("single", *values)[1:]
    assert "the man reads the book" in changed
    kept = wired.fn("single", "mine", *values[1:])[1:]
    assert kept[0] not in ("the man reads the book", "mine")
    assert kept[1:] == changed[1:]
    assert wired.fn("chinese", *changed)[1:] == values


def test_no_part_is_laid_out_before_it_is_opened(odd, tmp_path):
    """Hundreds of components: the browser would build them all before the first tab can be used."""
    with gr.Blocks() as page:
        state = PageState(odd, "en", page)
        with gr.Tabs(), gr.Tab("Learn") as tab:
            learn.build(state, tmp_path / "cards.json", tab)
    assert not any(str(getattr(one, "elem_id", "")).startswith(("lesson-", "compute-")) for one in page.blocks.values())
