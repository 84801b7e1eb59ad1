"""A text coloured by its attributions as a PNG picture: lines of words, filled like a paragraph.

matplotlib draws text but does not break lines; the width of every stretch is measured first, and lines are filled from
left to right. Figures are made through its object interface, so nothing global is touched and no screen is needed.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle

from bertsmith.errors import RunFolderError
from bertsmith.files import write_text
from bertsmith.interpret.attributed_text import (
    Run,
    attribution_page,
    colour_of,
    coloured_runs,
    largest_value,
    printable,
)
from bertsmith.interpret.attribution import Attribution
from bertsmith.reporting.drawing import Drawing, write_picture
from bertsmith.reporting.fonts import drawable

_WIDTH, _MARGIN, _LINE = 9.0, 0.3, 0.36
"""Inches: of the picture, beside the text, and of a line."""

_MOST_LINES = 160
_LONG = 40
"""Characters: text that no token covers is broken at its spaces from this length on; a token is never broken."""


class _Placed(NamedTuple):
    """A stretch of text with its place: inches from the left, line, length in inches."""

    left: float
    line: int
    length: float
    text: str
    value: float | None


def draw_attribution(attribution: Attribution) -> Drawing:
    """Draws the coloured text; its note says what the picture could not show."""
    texts = coloured_runs(attribution)
    target = printable(attribution.scored.target)[:90]
    _, family, missing = drawable([target, *(printable(run.text) for runs in texts for run in runs)])
    notes = [
        "No font has glyphs for all of the text; what it lacks are boxes in the picture, write .html instead."
    ] * bool(missing)
    placed = _lay_out(texts, FontProperties(family=family, size=13))
    lines = placed[-1].line + 1
    if lines > _MOST_LINES:
        notes.append(f"The picture shows the first {_MOST_LINES} of {lines} lines; write .html for all.")
        lines = _MOST_LINES
    height = 1.0 + _LINE * lines
    figure = Figure(figsize=(_WIDTH, height))
    title = f"{target}, by {attribution.method.replace('-', ' ')}"
    font = FontProperties(family=family, size=11)
    figure.text(_MARGIN / _WIDTH, 1 - 0.3 / height, title, fontproperties=font, va="center", parse_math=False)
    largest = largest_value(attribution)
    font = FontProperties(family=family, size=13)
    for left, line, length, text, value in placed:
        if line >= lines:
            break
        middle = 1 - (0.8 + _LINE * line) / height
        if value is not None:
            red, green, blue = (channel / 255 for channel in colour_of(value / largest))
            corner = (left / _WIDTH, middle - 0.15 / height)
            box = Rectangle(corner, length / _WIDTH, 0.3 / height, color=(red, green, blue), linewidth=0)
            figure.add_artist(box)
        # 文本里的 $ 就是 $：不让 matplotlib 当成公式
        figure.text(left / _WIDTH, middle, text, fontproperties=font, va="center", parse_math=False)
    return Drawing(figure, " ".join(notes))


def write_attribution(attribution: Attribution, path: Path) -> str:
    """Writes the page, or for a name that ends in `.png` the picture.

    Returns:
        A note for the reader; empty as a rule.

    Raises:
        RunFolderError: the file cannot be written.
    """
    if path.is_dir():
        raise RunFolderError(f"{path}: is a folder; name a file that ends in .html or .png")
    if path.suffix.lower() == ".png":
        drawn = draw_attribution(attribution)
        return " ".join(note for note in (drawn.note, write_picture(drawn.figure, path)) if note)
    write_text(path, attribution_page(attribution))
    return ""


def _lay_out(texts: list[list[Run]], font: FontProperties) -> list[_Placed]:
    """Fills lines; each text begins a new one, after an empty one."""
    figure = Figure(figsize=(1, 1))
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    placed: list[_Placed] = []
    line = 0
    with warnings.catch_warnings():
        # 量宽度时也会报缺字形；写图片时已经收集并告诉读者，这里不必再说
        warnings.simplefilter("ignore")
        for runs in texts:
            left = _MARGIN
            for run in runs:
                for part in _broken(run):
                    length = renderer.get_text_width_height_descent(part or " ", font, ismath=False)[0] / figure.dpi
                    # 一行放不下就换行；行首的空白不画
                    if left + length > _WIDTH - _MARGIN and left > _MARGIN:
                        left, line = _MARGIN, line + 1
                        if not part.strip():
                            continue
                    placed.append(_Placed(left, line, length, part, run.value))
                    left += length + (0.02 if run.value is not None else 0.0)
            line += 2
    return placed


def _broken(run: Run) -> list[str]:
    """Drops line breaks, and cuts what no token covers at its spaces, so that lines can be filled."""
    flat = printable(run.text).replace("\n", " ").replace("\t", " ")
    if run.value is not None or len(flat) < _LONG:
        return [flat]
    return [part + " " for part in flat.split(" ")]
