"""The pictures of the lessons, drawn from what their computations found: a head, a block, the input, masks, tasks.

They are SVG: boxes, texts, arrows, and matrices whose cells are shaded by their numbers. Each carries its own ground
and colours for light and dark (`prefers-color-scheme`) and names fonts of the reader's machine, so that it can be read
on any page, and nothing is fetched. Texts are escaped; title and description are there for those who do not see it.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith_school.learn.lesson import Computation

_RULES = {
    "ground": ("fill:#fff", "fill:#171d25"),
    "ink": ("fill:#1d2733", "fill:#e8edf3"),
    "soft": ("fill:#5a6876", "fill:#a5b2c0"),
    "line": ("stroke:#7a8794;fill:none;stroke-width:1.4", "stroke:#8896a5"),
    "head": ("fill:#7a8794", "fill:#8896a5"),
    "plain": ("fill:#f1f4f8;stroke:#c3ccd6", "fill:#242d38;stroke:#485563"),
    "blue": ("fill:#dbe8f9;stroke:#3f79c4", "fill:#1f3a5c;stroke:#6ea3e6"),
    "green": ("fill:#dcf1e2;stroke:#3f9460", "fill:#1c4030;stroke:#5fbd85"),
    "amber": ("fill:#fdeccb;stroke:#c08a1e", "fill:#4a3912;stroke:#dba83d"),
    "violet": ("fill:#e8e0f8;stroke:#7d5fc0", "fill:#372a5e;stroke:#a78ce6"),
    "cell": ("fill:#3f79c4", "fill:#6ea3e6"),
    "minus": ("fill:#c4554a", "fill:#e2796d"),
}
"""Kind of shape → how it looks on a light ground, and on a dark one."""

# 选择器都限定在 .drawing 之内：图嵌进网页时，不影响页面上别的元素
_LIGHT, _DARK = ("".join(f".drawing .{kind}{{{rule[n]}}}" for kind, rule in _RULES.items()) for n in (0, 1))
STYLE = f"{_LIGHT}@media (prefers-color-scheme:dark){{{_DARK}}}"
FONT = "system-ui,'Noto Sans','Noto Sans CJK SC','PingFang SC','Microsoft YaHei',sans-serif"


class Drawing:
    """An SVG in the making; coordinates are in pixels from the upper left corner."""

    def __init__(self, width: float, height: float, *, title: str, description: str) -> None:
        self.width, self.height = width, height
        self._title, self._description = title, description
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 13,
        kind: str = "ink",
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """Writes a line whose middle is at height y."""
        weight = " font-weight='600'" if bold else ""
        self._parts.append(
            f"<text x='{x:g}' y='{y + size * 0.36:.4g}' font-size='{size:g}' text-anchor='{anchor}'"
            f" class='{kind}'{weight}>"
            f"{html.escape(words)}</text>"
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        *,
        kind: str = "plain",
        size: float = 13,
        bold: bool = False,
    ) -> None:
        """Draws a rounded box with a line of text in its middle, smaller where it would not fit."""
        self._parts.append(f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='6' class='{kind}'/>")
        if words:
            fitting = min(size, size * (width - 6) / max(1.0, text_width(words, size)))
            self.text(x + width / 2, y + height / 2, words, size=round(fitting, 1), bold=bold)

    def arrow(self, *points: tuple[float, float], head: bool = True) -> None:
        """Draws a line through points, with a head at its end."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        end = " marker-end='url(#head)'" if head else ""
        self._parts.append(f"<path d='M{path}' class='line'{end}/>")

    def curve(self, *points: tuple[float, float], kind: str = "blue", dashed: bool = False) -> None:
        """Draws a line through points in the colour of a kind."""
        path, dash = " L".join(f"{x:g} {y:g}" for x, y in points), ";stroke-dasharray:6 4" if dashed else ""
        self._parts.append(f"<path d='M{path}' class='{kind}' style='fill:none;stroke-width:2{dash}'/>")

    def matrix(
        self,
        x: float,
        y: float,
        rows: Sequence[Sequence[float]],
        *,
        cell: tuple[float, float] = (52, 24),
        digits: int = 1,
        share: bool = False,
    ) -> None:
        """Draws numbers in cells; the farther from 0, the darker, negative ones in red."""
        largest = max((abs(number) for row in rows for number in row), default=0) or 1
        width, height = cell
        for down, row in enumerate(rows):
            for across, number in enumerate(row):
                left, top = x + across * width, y + down * height
                shade = 0.06 + 0.5 * abs(number) / largest
                kind = "minus" if number < 0 else "cell"
                self._parts.append(
                    f"<rect x='{left:g}' y='{top:g}' width='{width - 2:g}' height='{height - 2:g}' rx='3'"
                    f" class='{kind}' fill-opacity='{shade:.2f}'/>"
                )
                words = f"{number:.0%}" if share else f"{number:.{digits}f}"
                # 四舍五入后为零的负数不写负号
                words = words.removeprefix("-") if not words.strip("-0.%") else words
                self.text(left + width / 2 - 1, top + height / 2 - 1, words, size=11.5)

    def svg(self) -> str:
        """Returns the whole file."""
        size = f"width='{self.width:g}' height='{self.height:g}'"
        title = html.escape(self._title)
        head = "viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'"
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width:g} {self.height:g}' {size}"
            f" class='drawing' role='img' aria-label='{title}' font-family=\"{FONT}\"><title>{title}</title>"
            f"<desc>{html.escape(self._description)}</desc><style>{STYLE}</style>"
            f"<defs><marker id='head' {head}><path d='M0 0L8 4L0 8z' class='head'/></marker></defs>"
            f"<rect {size} rx='10' class='ground'/>{''.join(self._parts)}</svg>\n"
        )


def text_width(words: str, size: float) -> float:
    """Returns about how wide a line is; Chinese characters are as wide as they are high."""
    return sum(size if character > "\u2e80" else 0.58 * size for character in words)


def draw_head(found: Computation, say: Mapping[str, str]) -> str:
    """Draws what `looking_up` found, for its last word."""
    values = found.values
    words, last = values["words"], len(values["words"]) - 1
    told = found.steps[3].columns
    sought = found.steps[1].columns
    drawing = Drawing(720, 392, title=found.title, description=say["about"])
    drawing.text(14, 74, say["words"], anchor="start", bold=True)
    for x, head, names in zip((150, 330, 510), say["heads"].split("|"), (sought, sought, told), strict=True):
        drawing.text(x + 62, 26, head, bold=True)
        for n, name in enumerate(names):
            drawing.text(x + 31 + 62 * n, 48, name, size=11, kind="soft")
    for n, word in enumerate(words):
        top = 62 + n * 34
        drawing.box(84, top, 56, 26, word, kind="violet" if n == last else "plain")
        for x, name in zip((150, 330, 510), "qkv", strict=True):
            drawing.matrix(x, top, [values[name][n]], cell=(62, 28), digits=0)
    y = 196
    drawing.text(14, y + 13, say["scores"], anchor="start", bold=True)
    drawing.arrow((212, 160), (212, y - 6))
    drawing.arrow((392, 160), (392, 176), (260, 176), (260, y - 6))
    drawing.matrix(190, y, [values["scores"][last]], cell=(72, 28), digits=0)
    drawing.text(430, y + 13, "Q · K", anchor="start", kind="soft")
    drawing.text(14, y + 67, say["softmax"], anchor="start", bold=True)
    drawing.arrow((297, y + 32), (297, y + 50))
    drawing.matrix(190, y + 54, [values["weights"][last]], cell=(72, 28), share=True)
    for n, name in enumerate(found.steps[4].columns):
        drawing.text(226 + 72 * n, y + 92, name, size=11, kind="soft")
    drawing.text(14, y + 143, say["mix"], anchor="start", bold=True)
    drawing.arrow((297, y + 102), (297, y + 126))
    drawing.arrow((572, 160), (572, y + 116), (340, y + 116), (340, y + 126))
    drawing.matrix(235, y + 130, [values["z"][last]], cell=(72, 28), digits=2)
    for n, name in enumerate(told):
        drawing.text(271 + 72 * n, y + 170, name, size=11, kind="soft")
    drawing.box(460, y + 130, 230, 30, say["told"], kind="green")
    drawing.arrow((386, y + 144), (456, y + 144))
    return drawing.svg()


def draw_block(found: Computation, say: Mapping[str, str]) -> str:
    """Draws what `first_block` found."""
    states: Any = found.steps[0].value
    drawing = Drawing(760, 560, title=found.title, description=say["about"])
    kinds = ("violet", "blue", "", "green", "amber", "", "green")
    names = (say["state"], say["attention"], "+", "LayerNorm", say["forward"], "+", "LayerNorm")
    bottom, step, middle = 516.0, 74.0, 240.0
    for number, (name, kind, row) in enumerate(zip(names, kinds, states, strict=True)):
        y = bottom - number * step
        if kind:
            drawing.box(middle - 120, y - 18, 240, 36, name, kind=kind, bold=number == 0)
        else:
            drawing.box(middle - 15, y - 15, 30, 30, "+", size=18)
        low = 18 if kind else 15
        if number:
            below = 18 if kinds[number - 1] else 15
            drawing.arrow((middle, y + step - below), (middle, y + low + 2))
        drawing.matrix(440, y - 13, [row], cell=(66, 28), digits=2)
        drawing.text(440 + 66 * len(row) + 10, y, "…", kind="soft")
    for start, end in ((0, 2), (3, 5)):
        # 残差：绕过子层的那条路
        foot, top = bottom - start * step - 26, bottom - end * step
        drawing.arrow((middle, foot), (middle - 150, foot), (middle - 150, top), (middle - 17, top))
        drawing.text(middle - 156, (foot + top) / 2, say["residual"], size=12, kind="soft", anchor="end")
    drawing.text(440, 24, say["shown"], anchor="start", kind="soft", size=12)
    drawing.text(middle, 28, say["next"], kind="soft", size=12)
    return drawing.svg()


MOST = 14
"""Tokens that are drawn."""


def draw_embeddings(found: Computation, say: Mapping[str, str]) -> str:
    """Draws what `input_sum` found."""
    rows: Any = found.steps[0].value
    sums: Any = found.steps[1].value
    place: int = found.values["place"]
    # 句子长时只画所选词元前后的一段
    first = max(0, min(place - MOST // 2, len(rows) - MOST))
    rows, place = rows[first : first + MOST], place - first
    pieces = [row[0] for row in rows]
    step = max(58.0, *(text_width(piece, 13) + 32 for piece in pieces))
    left, width = 120.0, 120 + step * len(pieces) + 20
    drawing = Drawing(max(width, 560), 424, title=found.title, description=say["about"])
    marks = {"blue": pieces, "green": ["AB"[row[2]] for row in rows], "amber": [str(row[3]) for row in rows]}
    names = say["names"].split("|")
    drawing.text(14, 36, say["input"], anchor="start", bold=True)
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
    drawing.text(14, 248, say["first"], anchor="start", kind="soft")
    lines = zip([*names, say["sum"], say["normed"]], sums, strict=True)
    for line, (name, row) in enumerate(lines):
        top = 266 + line * 30
        drawing.text(14, top + 11, name, anchor="start")
        drawing.matrix(left + 20, top, [row], cell=(72, 26), digits=2)
        drawing.text(left + 20 + 72 * len(row) + 14, top + 11, "…", kind="soft")
    drawing.arrow((left + 14, 354), (left + 330, 354), head=False)
    return drawing.svg()


KINDS = ("blue", "amber", "green")
"""Colours of the fates: `[MASK]`, another piece, unchanged."""


def draw_masking(found: Computation, say: Mapping[str, str]) -> str:
    """Draws what `masking` found."""
    before, after = (str(found.steps[number].value).split() for number in (0, 2))
    drawn: Any = found.steps[3].value
    shares: Any = found.steps[4].value
    names = [row[0] for row in shares]
    fates = {row[0]: KINDS[names.index(row[3])] for row in drawn}
    lines: list[list[int]] = [[]]
    used, widths = 20.0, [max(text_width(a, 13), text_width(b, 13)) + 14 for a, b in zip(before, after, strict=True)]
    for place, width in enumerate(widths):
        if used + width > 780:
            lines.append([])
            used = 20.0
        lines[-1].append(place)
        used += width
    height = 60 + 104 * len(lines) + 104
    drawing = Drawing(800, height, title=found.title, description=say["about"])
    drawing.text(20, 24, say["lines"], anchor="start", kind="soft")
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
    drawing.text(20, top, say["draws"], anchor="start", bold=True)
    x = 20.0
    for kind, (_name, _count, share, _setting) in zip(KINDS, shares, strict=True):
        width = 760 * float(share.rstrip("%")) / 100
        drawing.box(x, top + 18, width - 3, 34, share, kind=kind)
        x += width
    for number, (kind, row) in enumerate(zip(KINDS, shares, strict=True)):
        drawing.box(20 + 250 * number, top + 68, 16, 16, kind=kind)
        drawing.text(44 + 250 * number, top + 76, f"{row[0]} ({row[3]})", anchor="start", size=12)
    return drawing.svg()


def draw_example(found: Computation, say: Mapping[str, str]) -> str:
    """Draws what `one_example` found: a masked pair below, the two predictions and their losses above."""
    values = found.values
    pieces, positions = values["read"], values["positions"]
    step = max(50.0, *(text_width(piece, 13) + 12 for piece in pieces))
    drawing = Drawing(max(640, 30 + step * len(pieces)), 330, title=found.title, description=say["about"])
    _tokens(drawing, pieces, values["segments"], 15, 254, step, marked=positions)
    drawing.box(15, 176, step * len(pieces) - 6, 44, "BERT", kind="plain", size=16, bold=True)
    for n in range(len(pieces)):
        middle = 15 + n * step + step / 2 - 3
        drawing.arrow((middle, 252), (middle, 223))
    first = 15 + step / 2 - 3
    drawing.arrow((first, 174), (first, 134))
    drawing.box(15, 104, text_width(say["follows"], 13) + 16, 28, say["follows"], kind="green")
    for number, (place, _true, guess, top, _) in enumerate(values["filled"]):
        middle = 15 + place * step + step / 2 - 3
        words = f"{guess} {top:.0%}"
        width = text_width(words, 13) + 16
        high = 104 if number % 2 else 64
        drawing.arrow((middle, 174), (middle, high + 30))
        drawing.box(min(middle - width / 2, drawing.width - width - 10), high, width, 28, words, kind="blue")
    drawing.text(15, 26, say["loss"], anchor="start", bold=True)
    return drawing.svg()


def draw_shapes(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the four kinds of task with the new parameters that `head_sizes` counted."""
    tasks: Any = found.steps[0].value
    drawing = Drawing(860, 560, title=found.title, description=say["about"])
    text, question, passage, ending = say["words"].split("|")
    label, start, end, score = say["outputs"].split("|")
    panels: tuple[tuple[Sequence[str], Sequence[tuple[int, str, str]]], ...] = (
        (["[CLS]", "A", "[SEP]", "B", "[SEP]"], [(0, label, "green")]),
        (["[CLS]", "Anna", "feeds", "cows", "[SEP]"], [(1, "B-PER", "blue"), (2, "O", "blue"), (3, "O", "blue")]),
        (["[CLS]", question, "[SEP]", passage, passage, "[SEP]"], [(3, start, "amber"), (4, end, "amber")]),
        (["[CLS]", text, "[SEP]", ending, "[SEP]"], [(0, score, "violet")]),
    )
    for number, ((name, _, count, *_), (tokens, outputs)) in enumerate(zip(tasks, panels, strict=True)):
        x, y = 16 + 424 * (number % 2), 16 + 270 * (number // 2)
        drawing.text(x, y + 14, name, anchor="start", bold=True, size=14)
        drawing.text(x, y + 36, say["added"].format(count), anchor="start", kind="soft", size=12)
        step = 400 / len(tokens)
        _tokens(drawing, tokens, None, x, y + 206, step)
        drawing.box(x, y + 136, 394, 40, "BERT", size=15, bold=True)
        for n in range(len(tokens)):
            middle = x + n * step + step / 2 - 3
            drawing.arrow((middle, y + 204), (middle, y + 179))
        for place, words, kind in outputs:
            middle = x + place * step + step / 2 - 3
            drawing.arrow((middle, y + 134), (middle, y + 98))
            width = min(step - 6, text_width(words, 13) + 18)
            drawing.box(middle - width / 2, y + 66, width, 28, words, kind=kind)
    drawing.text(540, 368, say["several"], anchor="start", kind="soft", size=12)
    return drawing.svg()


def _tokens(
    drawing: Drawing,
    pieces: Sequence[str],
    segments: Sequence[int] | None,
    x: float,
    y: float,
    step: float,
    *,
    marked: Sequence[int] = (),
) -> None:
    for n, piece in enumerate(pieces):
        drawing.box(x + n * step, y, step - 6, 28, piece, kind="blue" if n in marked else "plain")
        if segments is not None:
            drawing.text(x + n * step + step / 2 - 3, y + 42, "AB"[segments[n]], size=11, kind="soft")
