"""What is put on the page shows texts as they are, and asks nothing of anybody."""

import html.parser
import json

import numpy as np
import pytest

pytest.importorskip("gradio", reason="the lab needs pip install 'bertsmith[school]'")

from bertsmith_school.lab import figures
from bertsmith_school.lab.learn import markdown
from bertsmith_school.lab.markup import Bar, Mark, bars, marked, notice, table

EVIL = "</p><script>alert(1)</script><img src=x onerror='alert(2)'>\ud800\x00 & \"`b`"
TAGS = {"p", "ol", "li", "div", "span", "button", "mark", "small", "table", "thead", "tbody", "tr", "th", "td", "code"}


class Reader(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.texts.append(data)


@pytest.mark.parametrize(
    "made",
    [
        lambda text: notice(text, wrong=True),
        lambda text: bars([Bar(text, 0.5, text)], caption="", choice="0", hint=text),
        lambda text: table([text], [[text]], name=text),
        lambda text: marked(text, [Mark(3, 9, text)]),
        lambda text: markdown(text.replace("`", "")),
    ],
)
def test_no_text_becomes_a_tag(made):
    reader = Reader(made(EVIL))
    assert reader.tags <= TAGS
    assert not any(name.startswith("on") for name in reader.attributes)
    assert "<script>alert(1)</script>" in "".join(reader.texts)
    made(EVIL).encode("utf-8")


def test_marks_leave_the_text_whole():
    shown = Reader(marked("Anna lives in Oslo.", [Mark(14, 18, "LOC", 1), Mark(0, 4, "PER")]))
    assert "".join(shown.texts) == "AnnaPER lives in OsloLOC."


def test_no_head_is_marked_where_all_are_meant():
    weights, words = np.full((3, 3), 1 / 3, dtype=np.float32), ("layer", "head")
    shapes = [
        figures.draw_heads(weights, share=True, words=words, chosen=(0, head)).layout.shapes for head in (1, None)
    ]
    assert [len(one) for one in shapes] == [1, 0]


def drawn():
    weights = np.full((3, 3), 1 / 3, dtype=np.float32)
    names = [EVIL, "b", "c"]
    yield figures.draw_map(names, weights, [0, 0, 1], words=("reads", "is read"), by_pair=True)
    yield figures.draw_heads(weights, share=True, words=("layer", "head"), chosen=(0, 1))
    yield figures.draw_scatter(names, np.zeros((3, 2)), ("one", "two"))
    yield figures.draw_matrix(names, weights)
    yield figures.draw_topics(np.zeros((3, 2)), np.array([1, 2, 1]), [EVIL, "b"], names)
    yield figures.draw_over_time([EVIL], [EVIL, "2024"], np.array([[1, 2]]), title=EVIL)
    yield figures.draw_curves({EVIL: ([1.0], [2.0])}, over="step", title=EVIL)


@pytest.mark.parametrize("figure", list(drawn()), ids=["map", "heads", "scatter", "matrix", "topics", "time", "curves"])
def test_figures_hold_no_tag_of_the_texts_and_no_address(figure):
    text = figure.to_json()
    json.loads(text)
    text.encode("utf-8")
    assert "<script" not in text
    assert "<img" not in text
    assert "http" not in text


def test_a_long_label_is_cut():
    assert figures.label("a" * 100, 10) == "aaaaaaaaa…"
