"""Masking: a sentence, what the model reads, and the shares of the three fates over many draws."""

from __future__ import annotations

from typing import Any

from bertsmith.learn.lesson import Computation, Language, Text
from bertsmith.learn.pictures.drawing import Drawing, text_width

KINDS = ("blue", "amber", "green")
"""Colours of the fates: `[MASK]`, another piece, unchanged."""


def draw_masking(found: Computation, language: Language) -> str:
    """Draws what `masking` found."""

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    before, after = (str(found.steps[number].value).split() for number in (0, 2))
    drawn: Any = found.steps[3].value
    shares: Any = found.steps[4].value
    names = [row[0] for row in shares]
    fates = {row[0]: KINDS[names.index(row[3])] for row in drawn}
    about = say(
        "Of the chosen pieces most become [MASK], some another piece, some stay",
        "选中的词片多数变成 [MASK]，少数换成别的，少数不变",
    )
    lines: list[list[int]] = [[]]
    used, widths = 20.0, [max(text_width(a, 13), text_width(b, 13)) + 14 for a, b in zip(before, after, strict=True)]
    for place, width in enumerate(widths):
        if used + width > 780:
            lines.append([])
            used = 20.0
        lines[-1].append(place)
        used += width
    height = 60 + 104 * len(lines) + 104
    drawing = Drawing(800, height, title=found.title, description=about)
    drawing.text(
        20,
        24,
        say("above: the text; below: what the model reads", "上：原文；下：模型读到的"),
        anchor="start",
        kind="soft",
    )
    for number, line in enumerate(lines):
        x, top = 20.0, 44 + number * 104
        for place in line:
            kind = fates.get(place, "plain")
            drawing.box(x, top, widths[place] - 6, 28, before[place], kind=kind)
            drawing.box(x, top + 52, widths[place] - 6, 28, after[place], kind=kind)
            middle = x + widths[place] / 2 - 3
            drawing.arrow((middle, top + 30), (middle, top + 49), head=place in fates)
            x += widths[place]
    top = 60 + 104 * len(lines)
    drawing.text(
        20, top, say(f"{found.values['draws']:,} draws", f"抽 {found.values['draws']:,} 次"), anchor="start", bold=True
    )
    x = 20.0
    for kind, (_name, _count, share, _setting) in zip(KINDS, shares, strict=True):
        width = 760 * float(share.rstrip("%")) / 100
        drawing.box(x, top + 18, width - 3, 34, share, kind=kind)
        x += width
    for number, (kind, row) in enumerate(zip(KINDS, shares, strict=True)):
        drawing.box(20 + 250 * number, top + 68, 16, 16, kind=kind)
        drawing.text(44 + 250 * number, top + 76, f"{row[0]} ({row[3]})", anchor="start", size=12)
    return drawing.svg()
