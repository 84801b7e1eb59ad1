"""The pictures of a fine-tuning report: the course of the run, and what was taken for what.

Figures are made through matplotlib's object interface, so nothing global is touched and no screen is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bertsmith.finetune.metrics.calibration import Calibration
from bertsmith.reporting.fonts import drawable
from bertsmith.reporting.plots import HELDOUT_COLOUR, REFERENCE_COLOUR, TRAIN_COLOUR

MAX_COUNTED = 24
"""With more labels the cells are too small for numbers; the colours remain."""

MAX_NAMED = 120
"""With more labels their names would be too small to read."""

_LONGEST_LABEL = 28


def draw_course(rows: Sequence[dict[str, Any]], metric: str, best_epoch: int) -> Figure:
    """Draws the training loss and the dev metric over the epochs.

    Args:
        rows: of `metrics.jsonl`; those of kind `train` have a `loss`, those of kind `dev` the metric.
        metric: its name.
        best_epoch: whose weights were kept, from 1.
    """
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    loss, score = figure.subplots(1, 2)
    _draw_epochs(loss, rows, "train", "loss", TRAIN_COLOUR)
    loss.set_title("Training loss, mean of the epoch", fontsize=11)
    loss.set_ylim(0, 1.06 * loss.get_ylim()[1])
    _draw_epochs(score, rows, "dev", metric, HELDOUT_COLOUR)
    score.axvline(best_epoch, color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label="kept")
    score.set_title(f"{_plain(metric)} on dev", fontsize=11)
    score.legend(frameon=False, fontsize=9)
    return figure


def draw_confusion(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> tuple[Figure, str]:
    """Draws a confusion matrix: the colour is the share of the true label, the number the count.

    Args:
        labels: K names.
        counts: [K][K], true label by predicted one.

    Returns:
        The figure, and a note for the reader where its labels had to be numbers; empty otherwise.
    """
    table = np.asarray(counts, dtype=np.int64)
    names, family, note = drawable([_plain(_shortened(label)) for label in labels])
    size = float(np.clip(2.2 + 0.42 * len(names), 3.6, 14))
    figure = Figure(figsize=(size + 1.4, size), layout="constrained")
    axes = figure.add_subplot()
    # 按真实标签归一：样本少的类也看得出错在哪里；没有样本的行全为 0
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    # 标签多时格子变窄：字号随格宽缩小，相邻的名字才不会叠在一起
    points = min(9.0, 600 / len(names))
    turned = len(names) * max(map(len, names)) > 40
    if len(names) <= MAX_NAMED:
        axes.set_xticks(range(len(names)), names, rotation=90 if turned else 0, fontsize=points, family=family)
        axes.set_yticks(range(len(names)), names, fontsize=points, family=family)
    else:
        # 上千个名字画出来也读不了，却要画半分钟：只留编号
        note = f"With more than {MAX_NAMED} labels the axes count them, from 0, in the order of the table."
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(names) <= MAX_COUNTED:
        for row, column in np.argwhere(table).tolist():
            colour = "white" if shares[row, column] > 0.55 else "#1d2733"
            axes.text(column, row, f"{table[row, column]}", ha="center", va="center", fontsize=8, color=colour)
    figure.colorbar(image, ax=axes, shrink=0.75, label="share of the true label")
    return figure, note


def draw_reliability(files: Mapping[str, Calibration]) -> Figure:
    """Draws how often predictions are right by how sure they are, as they are and at the temperature of dev.

    Args:
        files: name of a file → its calibration, one or two.
    """
    figure = Figure(figsize=(5 * len(files), 4.2), layout="constrained")
    for axes, (name, found) in zip(figure.subplots(1, len(files), squeeze=False)[0], files.items(), strict=True):
        axes.plot([0, 1], [0, 1], color=REFERENCE_COLOUR, linestyle="--", linewidth=1)
        shown = (
            (f"as it is, error {found.before.error:.3f}", found.before, TRAIN_COLOUR),
            (f"temperature {found.temperature:g}, error {found.after.error:.3f}", found.after, HELDOUT_COLOUR),
        )
        for label, one, colour in shown:
            sure, right = [part.confidence for part in one.bins], [part.accuracy for part in one.bins]
            # 面积正比于个数：一格里只有两三个预测时，它偏离对角线说明不了什么
            most = max(part.count for part in one.bins)
            axes.plot(sure, right, color=colour, linewidth=1, label=label)
            axes.scatter(sure, right, s=[12 + 90 * part.count / most for part in one.bins], color=colour, alpha=0.7)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share that is right")
        axes.set_title(f"On {name}", fontsize=11)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def _draw_epochs(axes: Axes, rows: Sequence[dict[str, Any]], kind: str, name: str, colour: str) -> None:
    points = [(row["epoch"], row[name]) for row in rows if row["kind"] == kind and name in row]
    axes.plot([epoch for epoch, _ in points], [value for _, value in points], color=colour, linewidth=2, marker="o")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _plain(text: str) -> str:
    # matplotlib 把一对 $ 之间的文字当公式：标签 $$ 会让整份报告画不出来
    return text.replace("$", r"\$")


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"
