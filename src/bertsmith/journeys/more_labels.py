"""What more labels would bring: the score of words against the number of labelled rows.

Scores of such models rise by about as much with each doubling of the rows (Hestness et al. 2017 find power laws of the
error); a line through the last three points says what the next doubling would bring.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from bertsmith.finetune.parts import train_linear
from bertsmith.finetune.tasks.task import AdditiveTask
from bertsmith.inference.engine import DEFAULT
from bertsmith.seeding import generator

Curve = tuple[tuple[int, float], ...]
"""Rows learned from → score, from few to all."""
SHARES = (8, 4, 2)
FEWEST = 32
"""Rows of a point."""


def label_curve(
    task: AdditiveTask[Any, Any],
    train: Sequence[Any],
    dev: Sequence[Any],
    whole: float,
    seed: int,
    folds: Sequence[int] = (),
) -> Curve:
    """Trains words on an eighth, a quarter and a half of the rows.

    Args:
        dev: those that are scored; with folds these are the training examples.
        whole: the score of words that learned from all.
        seed: draws the rows; a smaller part lies within the larger ones.
        folds: as in `train_words`.
    """
    order = generator(seed, "solve/curve").permutation(len(train))
    found = []
    for share in SHARES:
        rows = np.sort(order[: len(train) // share]).tolist()
        if len(rows) < FEWEST:
            continue
        some = [train[row] for row in rows]
        held = some if folds else dev
        model, fit = train_linear(
            task, some, None if folds else dev, folds=[folds[row] for row in rows] if folds else ()
        )
        pipeline = task.pipeline(model, cast("Any", None), DEFAULT)
        decided = task.decided(pipeline, fit.outputs, held)
        metrics = decided.metrics(held, decided.told(pipeline, fit.outputs, held))
        found.append((len(rows), float(metrics[task.metric])))
    return (*found, (len(train), whole))


def gain_of_twice(curve: Curve) -> float:
    """Returns by how much the score rises with a doubling of the rows: the slope over the last three points."""
    rows, scores = zip(*curve[-3:], strict=True)
    return float(np.polyfit(np.log2(rows), scores, 1)[0])


def in_a_sentence(curve: Curve, metric: str) -> str:
    """Says what twice the labels would bring."""
    gain, rows = gain_of_twice(curve), 2 * curve[-1][0]
    return f"{rows:,} labelled rows, twice as many, would bring words alone about {gain:+.3f} of {metric}"


def draw_curve(curve: Curve, metric: str) -> Figure:
    """Draws the score against the rows, and the line to twice as many."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    rows, scores = zip(*curve, strict=True)
    axes.plot(rows, scores, marker="o")
    axes.plot([rows[-1], 2 * rows[-1]], [scores[-1], scores[-1] + gain_of_twice(curve)], linestyle="--", marker="o")
    axes.set_xscale("log", base=2)
    ticks = [*rows, 2 * rows[-1]]
    axes.set_xticks(ticks, [f"{one:,}" for one in ticks])
    axes.minorticks_off()
    axes.set_xlabel("labelled rows")
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    return figure
