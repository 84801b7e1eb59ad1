"""Pictures are well formed, say the same in both languages, and hold the numbers of their computations."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bertsmith_school.learn import COMPUTATIONS, compute, picture
from bertsmith_school.learn.exports import save_pictures
from bertsmith_school.learn.pictures import Drawing
from bertsmith_school.learn.story import lessons

ROOT = Path(__file__).parents[3]
DRAWN = [id for id, recipe in COMPUTATIONS.items() if recipe.draw]
LONG = {"first": "the man reads the book " * 5, "place": 27}
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def texts(svg):
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter() if each.tag.endswith("}text")]


def numbers(svg):
    return [float(number.replace(",", "")) for text in texts(svg) for number in NUMBER.findall(text)]


@pytest.mark.parametrize("id", DRAWN)
def test_both_languages_show_the_same_numbers(id):
    english, chinese = (picture(compute(id, language=language), language) for language in ("en", "zh"))
    assert sorted(numbers(english)) == sorted(numbers(chinese))
    assert not re.search(r"[\u4e00-\u9fff]", english)
    assert re.search(r"[\u4e00-\u9fff]", chinese)
    for drawn in (english, chinese):
        root = ElementTree.fromstring(drawn)
        width, height = float(root.get("width")), float(root.get("height"))
        for each in root.iter():
            if each.tag.endswith("}rect"):
                assert 0 <= float(each.get("x", 0)) <= float(each.get("x", 0)) + float(each.get("width")) <= width
                assert float(each.get("y", 0)) + float(each.get("height")) <= height
            assert "http" not in "".join(value for name, value in each.attrib.items() if name != "xmlns")


def test_the_numbers_are_those_of_the_computation():
    found = compute("input_sum", place=3)
    shown = numbers(picture(found))
    for row in found.steps[1].value:
        assert all(any(abs(number - value) < 0.006 for number in shown) for value in row)
    found = compute("head_sizes", labels=7)
    assert "5,383 new parameters" in texts(picture(found))
    assert picture(compute("two_tokens")) is None


@pytest.mark.parametrize(
    ("id", "inputs"), [("masking", {"text": "the man reads " * 15}), ("input_sum", {"place": 0}), ("input_sum", LONG)]
)
def test_other_inputs_are_drawn_too(id, inputs):
    drawn = picture(compute(id, **inputs))
    assert "[SEP]" in texts(drawn) if inputs is LONG else "[CLS]" in texts(drawn)
    if id == "input_sum":
        assert f"E {inputs['place']}" in texts(drawn)


def test_texts_are_escaped_and_a_tiny_negative_number_has_no_sign():
    drawing = Drawing(100, 50, title="<a> & b", description="c")
    drawing.text(0, 0, "<script>alert(1)</script>")
    drawing.matrix(0, 0, [[-0.001, -0.03, 0.5]], digits=2)
    assert texts(drawing.svg()) == ["<script>alert(1)</script>", "0.00", "-0.03", "0.50"]
    assert "<script>" not in drawing.svg()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_pictures_of_the_guide_are_the_ones_that_are_drawn(language, tmp_path):
    """`make lesson-pictures` draws them again; numbers may differ in the last figure on another processor."""
    saved = save_pictures(tmp_path, lessons(language), language)
    kept = sorted((ROOT / "docs/images/lessons").glob(f"*.{language}.svg"))
    assert [path.name for path in kept] == sorted(path.name for path in saved)
    guide = (ROOT / f"docs/{language}/how-to/learn.md").read_text(encoding="utf-8")
    for path in kept:
        assert f"(../../images/lessons/{path.name})" in guide
        before, now = (place.read_text(encoding="utf-8") for place in (path, tmp_path / path.name))
        assert [NUMBER.sub("#", text) for text in texts(before)] == [NUMBER.sub("#", text) for text in texts(now)]
        assert numbers(before) == pytest.approx(
            numbers(now), abs=1.01 if re.search("masking|ablation|seeds|replaced|curve", path.name) else 0.02
        )
