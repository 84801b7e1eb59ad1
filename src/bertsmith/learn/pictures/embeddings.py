"""Figure 2 of the paper in our own drawing: three embeddings for each token, summed, with the numbers of one token."""

from __future__ import annotations

from typing import Any

from bertsmith.learn.lesson import Computation, Language, Text
from bertsmith.learn.pictures.drawing import Drawing, text_width

MOST = 14
"""Tokens that are drawn."""


def draw_embeddings(found: Computation, language: Language) -> str:
    """Draws what `input_sum` found."""

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    rows: Any = found.steps[0].value
    sums: Any = found.steps[1].value
    place: int = found.values["place"]
    token, segment, position, total, normed = sums
    # 句子长时只画所选词元前后的一段
    first = max(0, min(place - MOST // 2, len(rows) - MOST))
    rows, place = rows[first : first + MOST], place - first
    pieces = [row[0] for row in rows]
    step = max(58.0, *(text_width(piece, 13) + 32 for piece in pieces))
    left, width = 120.0, 120 + step * len(pieces) + 20
    about = say(
        "Token, segment and position embeddings of each token are summed", "每个词元的词嵌入、段嵌入和位置嵌入相加"
    )
    drawing = Drawing(max(width, 560), 424, title=found.title, description=about)
    marks = {
        "blue": pieces,
        "green": ["AB"[row[2]] for row in rows],
        "amber": [str(row[3]) for row in rows],
    }
    names = (say("token", "词嵌入"), say("segment", "段嵌入"), say("position", "位置嵌入"))
    drawing.text(14, 36, say("input", "输入"), anchor="start", bold=True)
    for n, piece in enumerate(pieces):
        drawing.box(left + n * step, 22, step - 6, 28, piece, kind="violet" if n == place else "plain")
    for line, (name, (kind, marked)) in enumerate(zip(names, marks.items(), strict=True)):
        top = 78 + line * 52
        drawing.text(14, top + 14, name, anchor="start", bold=True)
        for n in range(len(pieces)):
            drawing.box(left + n * step, top, step - 6, 28, f"E {marked[n]}", kind=kind, size=12)
            if line < 2:
                drawing.text(left + n * step + step / 2 - 3, top + 40, "+", size=16, kind="soft")
    middle = left + place * step + step / 2 - 3
    drawing.arrow((middle, 212), (middle, 236))
    told = say(f"the first numbers of {pieces[place]}", f"{pieces[place]} 的前几个数")
    drawing.text(14, 248, told, anchor="start", kind="soft")
    lines = list(zip(names, (token, segment, position), strict=True))
    lines += [(say("sum", "和"), total), (say("after LayerNorm", "LayerNorm 之后"), normed)]
    for line, (name, row) in enumerate(lines):
        top = 266 + line * 30
        drawing.text(14, top + 11, name, anchor="start")
        drawing.matrix(left + 20, top, [row], cell=(72, 26), digits=2)
        drawing.text(left + 20 + 72 * len(row) + 14, top + 11, "…", kind="soft")
    drawing.arrow((left + 14, 354), (left + 330, 354), head=False)
    return drawing.svg()
