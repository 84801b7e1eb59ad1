"""Curves of a run, or of several in one picture, from their `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

RUN_COLOURS = ("#1f4e8c", "#c4622d", "#2f7d4f", "#8a4fa3", "#a08a1f", "#4a4a4a")
TRAIN_COLOUR, HELDOUT_COLOUR, REFERENCE_COLOUR = "#9db7d5", "#1f4e8c", "#b04a3a"


PAPER = {"mlm": "Masked-LM", "nsp": "Next-sentence"}
"""The losses of the paper's objective, by the names of their figures."""

CHANCE = ("nsp", "sop")
"""Losses over two equally frequent classes, which a coin toss gets right half the time."""


def draw_loss_curves(
    rows: Sequence[dict[str, Any]], *, unigram_entropy: float, titles: Mapping[str, str] = PAPER
) -> Figure:
    """Draws the losses over the steps, side by side."""
    figure, panels = _side_by_side(titles)
    for name, axes in panels.items():
        _draw(axes, rows, f"{name}_loss", title=f"{titles[name]} loss (nats)")
        expected = _points(rows, "heldout", f"expected_{name}_loss")
        if expected[0]:
            axes.plot(*expected, color=HELDOUT_COLOUR, linewidth=1, linestyle=":", label="expected")
        reference = {"mlm": (unigram_entropy, "unigram entropy"), **dict.fromkeys(CHANCE, (0.6931, "chance"))}
        if name in reference:
            height, label = reference[name]
            axes.axhline(height, color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label=label)
    _finish(*panels.values())
    return figure


def draw_accuracy_curves(rows: Sequence[dict[str, Any]], *, titles: Mapping[str, str] = PAPER) -> Figure:
    """Draws the accuracies over the steps, side by side; `titles` as in `draw_loss_curves`."""
    figure, panels = _side_by_side(titles)
    for name, axes in panels.items():
        _draw(axes, rows, f"{name}_accuracy", title=f"{titles[name]} accuracy")
        # MLM 准确率离 1 很远：从 0 画到数据为止，曲线才看得清
        axes.set_ylim(bottom=0)
        if name in CHANCE:
            axes.axhline(0.5, color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label="chance")
            axes.set_ylim(0, 1)
    _finish(*panels.values())
    return figure


def _side_by_side(names: Iterable[str]) -> tuple[Figure, dict[str, Axes]]:
    names = list(names)
    figure = Figure(figsize=(5 * max(2, len(names)), 3.8), layout="constrained")
    return figure, dict(zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True))


@dataclass(frozen=True)
class Panel:
    """One set of axes: a figure of one kind of row, against the steps or the tokens."""

    figure_name: str
    kind: str
    title: str
    over: str = "step"


def draw_panels(runs: Mapping[str, Sequence[dict[str, Any]]], panels: Sequence[Panel]) -> Figure:
    """Draws panels in rows of two, with the curves of all runs overlaid; a run keeps its color in all of them.

    `runs` maps names to rows of `metrics.jsonl`; the caller leaves out panels of which no run has a row.
    """
    height = -(-len(panels) // 2)
    figure = Figure(figsize=(10, 3.6 * height))
    figure.set_layout_engine("constrained", h_pad=0.12)
    grid = figure.subplots(height, 2, squeeze=False).flatten()
    for axes, panel in zip(grid, panels, strict=False):
        for number, (name, rows) in enumerate(runs.items()):
            points = _points(rows, panel.kind, panel.figure_name, over=panel.over)
            marker = "o" if panel.kind == "heldout" else ""
            colour = RUN_COLOURS[number % len(RUN_COLOURS)]
            # 曲线只有一个点时没有线段可画：验证曲线的圆点保证它看得见
            axes.plot(*points, color=colour, linewidth=1.5, marker=marker, markersize=3.5, label=name)
            expected = _points(rows, panel.kind, f"expected_{panel.figure_name}", over=panel.over)
            if expected[0]:
                axes.plot(*expected, color=colour, linewidth=1, linestyle=":", label=f"{name}: expected")
        axes.set_title(panel.title, fontsize=11)
        axes.set_xlabel("tokens" if panel.over == "tokens" else "step")
        _finish(axes)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


def _points(
    rows: Sequence[dict[str, Any]], kind: str, figure_name: str, *, over: str = "step"
) -> tuple[list[float], list[float]]:
    chosen = [row for row in rows if row["kind"] == kind and figure_name in row]
    return [row[over] for row in chosen], [row[figure_name] for row in chosen]


def _draw(axes: Axes, rows: Sequence[dict[str, Any]], figure_name: str, *, title: str) -> None:
    for kind, colour, width in (("train", TRAIN_COLOUR, 1.2), ("heldout", HELDOUT_COLOUR, 2.0)):
        steps, values = _points(rows, kind, figure_name)
        if steps:
            marker = "o" if kind == "heldout" else ""
            label = "training" if kind == "train" else "held out"
            axes.plot(steps, values, color=colour, linewidth=width, marker=marker, markersize=4, label=label)
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("step")


def _finish(*panels: Axes) -> None:
    for axes in panels:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
