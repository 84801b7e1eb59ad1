import io

import numpy as np

from bertsmith_school.looking.attention import draw_heatmap


def test_a_heatmap_has_its_tokens_on_both_axes():
    heatmap = draw_heatmap(["[CLS]", "the", "man", "[SEP]"], np.eye(4), title="layer 1")
    axes = heatmap.figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["[CLS]", "the", "man", "[SEP]"]
    assert heatmap.note == ""
    buffer = io.BytesIO()
    heatmap.figure.savefig(buffer, format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")


def test_chinese_tokens_become_numbers_where_no_font_has_them(monkeypatch):
    monkeypatch.setattr("bertsmith.reporting.drawing.CJK_FONTS", ())
    heatmap = draw_heatmap(["[CLS]", "战", "国"], np.eye(3), title="layer 1")
    assert [label.get_text() for label in heatmap.figure.axes[0].get_xticklabels()] == ["1", "2", "3"]
    assert "2 战" in heatmap.note
