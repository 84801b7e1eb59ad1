"""A page of figures: verdict on top, the next command at the end, pictures that stay what they are."""

import base64
from xml.etree import ElementTree

from matplotlib.figure import Figure

from bertsmith.reporting.page import Picture, Table, render_report


def page():
    rows = [["a_setting_with_a_very_long_name_that_nothing_breaks" * 2, "0.123456", "a note on it " * 9]] * 3
    table = Table("Figures", ["what", "value", "note"], rows, "See `bertsmith plan`.", ("code", "figure", "note"))
    told = {"verdict": "Better than <b>words</b>.", "commands": ["bertsmith predict --model " + "runs/a/b" * 20]}
    return render_report("A title", "Of `runs/mine`.", [table], **told)


def test_the_verdict_is_on_top_and_the_next_command_at_the_end():
    said = page()
    places = [said.index(text) for text in ("A title</h1>", "Better than", "Of <code>", "<h2>Figures", "<h2>Next")]
    assert places == sorted(places)
    assert "See <code>bertsmith plan</code>." in said
    assert "Better than &lt;b&gt;words&lt;/b&gt;." in said
    assert "<h2>Next" not in render_report("A title", "", [])


def test_what_stands_between_backticks_is_code_wherever_a_page_has_sentences():
    figure = Picture("Curve", "By `epoch`.", Figure(), "Squares: install `a font <CJK>`.")
    said = render_report("A title", "Of `runs/mine`.", [figure], verdict="Use `bertsmith plan`.")
    codes = ("epoch", "a font &lt;CJK&gt;", "runs/mine", "bertsmith plan")
    assert all(f"<code>{one}</code>" in said for one in codes)


def test_a_picture_is_the_same_whenever_it_is_drawn():
    def drawn():
        figure = Figure()
        axes = figure.add_subplot()
        axes.plot([1, 2], [3, 1], marker="o", label="held out")
        axes.legend()
        return Picture("Curve", "Lower is better.", figure)

    assert drawn().svg == drawn().svg
    root = ElementTree.fromstring(base64.b64decode(drawn().svg))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
