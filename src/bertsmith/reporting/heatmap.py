"""One attention map as a picture: which token reads which.

Matplotlib's object interface touches nothing global and needs no screen. A long text makes a large, readable picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsmith.reporting.drawing import Drawing, drawable

Origin = Literal["upper", "lower"]

_ROOMY, _CLOSE = 40, 120
"""Number of tokens up to which labels have room to spare, and from which they are as close as can be read."""


def draw_heatmap(
    pieces: Sequence[str], weights: NDArray[np.float32], *, title: str, token_type_ids: Sequence[int] | None = None
) -> Drawing:
    """Draws one attention map [S, S], rows adding up to 1, with its tokens on both axes.

    Where `token_type_ids` [S] hold two segments, lines are drawn between them.
    """
    count = len(pieces)
    side = max(2.4, token_inches(count) * count)
    labels, family, note = drawable(pieces)
    figure, axes, bar_axes = label_axes(labels, side, side, square=True)
    shades = draw_weights(axes, weights, highest=float(weights.max()))
    axes.set_aspect("equal")
    points = label_points(count)
    # 词元里的 $ 是文字，不是公式的开头
    axes.set_xticks(range(count), labels, rotation=90, fontsize=points, family=family, parse_math=False)
    axes.set_yticks(range(count), labels, fontsize=points, family=family, parse_math=False)
    borders = np.flatnonzero(np.diff(token_type_ids)) + 0.5 if token_type_ids is not None else ()
    for border in borders:
        axes.axhline(border, color="#c4622d", linewidth=0.8)
        axes.axvline(border, color="#c4622d", linewidth=0.8)
    axes.set_xlabel("read from")
    axes.set_ylabel("by token")
    axes.set_title(title, fontsize=11, loc="left")
    figure.colorbar(shades, ax=axes, cax=bar_axes, shrink=min(0.75, 6 / side), label="attention probability")
    return Drawing(figure, note)


def draw_weights(
    axes: Axes, weights: NDArray[np.float32], *, highest: float, origin: Origin = "upper"
) -> ScalarMappable:
    """Draws weights [rows, columns] as colors; returns what a color bar is made from.

    Colors grow with the square root: most weights are small, and would look white otherwise.
    """
    shades = ScalarMappable(PowerNorm(0.5, 0, max(highest, 1e-6)), "Blues")
    # 先按格子上色再放大：反过来，要给几千万个像素各算一次平方根
    axes.imshow(shades.to_rgba(weights, bytes=True), aspect="auto", interpolation="nearest", origin=origin)
    return shades


class LabelAxes(NamedTuple):
    """A figure, its axes, and those of the colour bar; None where the layout engine finds a place for it."""

    figure: Figure
    axes: Axes
    bar_axes: Axes | None


def label_axes(labels: Sequence[str], width: float, height: float, *, square: bool) -> LabelAxes:
    """Returns a figure whose axes have room for tokens as labels, and for a colour bar."""
    if len(labels) <= _CLOSE:
        figure = Figure(figsize=(width + 2.5, height + 1.8), layout="compressed" if square else "constrained")
        return LabelAxes(figure, figure.add_subplot(), None)
    # 自动排版要把上千个标签量好几遍，花掉一分钟：词多时按最长的标签自己留边
    room = 0.6 + max(map(_inches, labels))
    left = room if square else 0.8
    figure = Figure(figsize=(left + width + 1.2, room + height + 0.5))
    whole, high = figure.get_size_inches()
    axes = figure.add_axes((left / whole, room / high, width / whole, height / high))
    bar_axes = figure.add_axes(((left + width + 0.25) / whole, room / high, 0.2 / whole, min(height, 6) / high))
    return LabelAxes(figure, axes, bar_axes)


def _inches(label: str) -> float:
    """Returns how long a label is, at most; characters of the East are as wide as they are high."""
    points = label_points(_CLOSE)
    return points / 72 * sum(1.0 if character >= "\u2e80" else 0.65 for character in label)


def token_inches(count: int) -> float:
    """Returns how much of an axis each of `count` tokens gets, in inches: less as there are more, never too little."""
    return float(np.interp(count, [_ROOMY, _CLOSE], [0.3, 0.14]))


def label_points(count: int) -> float:
    """Returns the size of the labels of `count` tokens, in points."""
    return float(np.interp(count, [_ROOMY, _CLOSE], [9.0, 7.0]))
