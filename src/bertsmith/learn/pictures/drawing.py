"""A few shapes as SVG: boxes, texts, arrows, and matrices whose cells are shaded by their numbers.

Notable:
- a drawing carries its own ground and colours for light and dark (`prefers-color-scheme`), so that it can be read on
  any page, with no style of that page
- it names fonts that are on the reader's machine; nothing is fetched
- every text is escaped; title and description are there for those who do not see it
"""

from __future__ import annotations

import html
from collections.abc import Sequence

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
        """Draws numbers in cells; the farther from 0, the darker, negative ones in red.

        Args:
            x: of the upper left corner.
            y: of the upper left corner.
            rows: the numbers.
            cell: width and height of one.
            digits: behind the point.
            share: whether they are shares and written in percent.
        """
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
