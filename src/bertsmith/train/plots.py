"""Curves of a run, from its `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

TRAIN_COLOUR, HELDOUT_COLOUR, REFERENCE_COLOUR = "#9db7d5", "#1f4e8c", "#b04a3a"


def draw_loss_curves(rows: Sequence[dict[str, Any]], *, unigram_entropy: float) -> Figure:
    """Draws the masked-LM loss and the next-sentence loss over the steps.

    Args:
        rows: of `metrics.jsonl`.
        unigram_entropy: drawn as a line: the loss of knowing piece frequencies and no context, in nats.
    """
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    masked, following = figure.subplots(1, 2)
    _draw(masked, rows, "mlm_loss", title="Masked-LM loss (nats)")
    masked.axhline(unigram_entropy, color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label="unigram entropy")
    _draw(following, rows, "nsp_loss", title="Next-sentence loss (nats)")
    following.axhline(0.6931, color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label="chance")
    _finish(masked, following)
    return figure


def draw_accuracy_curves(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draws the masked-LM accuracy and the next-sentence accuracy over the steps."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    masked, following = figure.subplots(1, 2)
    _draw(masked, rows, "mlm_accuracy", title="Masked-LM accuracy")
    _draw(following, rows, "nsp_accuracy", title="Next-sentence accuracy")
    following.axhline(0.5, color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label="chance")
    # MLM 准确率离 1 很远：从 0 画到数据为止，曲线才看得清
    masked.set_ylim(bottom=0)
    following.set_ylim(0, 1)
    _finish(masked, following)
    return figure


def _draw(axes: Axes, rows: Sequence[dict[str, Any]], figure_name: str, *, title: str) -> None:
    for kind, colour, width in (("train", TRAIN_COLOUR, 1.2), ("heldout", HELDOUT_COLOUR, 2.0)):
        points = [(row["step"], row[figure_name]) for row in rows if row["kind"] == kind and figure_name in row]
        if points:
            steps, values = zip(*points, strict=True)
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
