"""What more labels would bring, and which: the score of words against the number of rows, and what to label next.

Scores of such models rise by about as much with each doubling of the rows (Hestness et al. 2017 find power laws of the
error); a line through the last three points says what the next doubling would bring. What a model is least sure of
teaches it most (Lewis and Gale 1994), but such texts are often alike; so they are taken one by one, each as unlike
those before it as it is unsure (farthest first, Gonzalez 1985).
"""

from __future__ import annotations

import csv
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from bertsmith.errors import InputError
from bertsmith.files import atomic_path
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.predict import Predictor
from bertsmith.finetune.tasks.task import AdditiveTask, Record
from bertsmith.finetune.words import train_linear
from bertsmith.inference.engine import DEFAULT
from bertsmith.inference.words import counted
from bertsmith.seeding import generator

Curve = tuple[tuple[int, float], ...]
"""Rows learned from → score, from few to all."""
SHARES = (8, 4, 2)
FEWEST = 32
"""Rows of a point."""
CANDIDATES = 10
"""Unsure rows among which one is chosen to be labelled."""


def label_curve(
    task: AdditiveTask[Any, Any],
    train: Sequence[Any],
    dev: Sequence[Any],
    whole: float,
    seed: int,
    folds: Sequence[int] = (),
) -> Curve:
    """Trains words on an eighth, a quarter and a half of the rows, by the seed; a smaller part lies in the larger ones.

    What belongs together is taken together. Parts that cannot be scored are left out; without any the curve is empty.

    Args:
        dev: those that are scored; with folds, as in `train_words`, these are the training examples.
        whole: the score of words that learned from all.
    """
    # 同一个查询的文本、同一段落的问题要么都在，要么都不在
    group_of: dict[Hashable, int] = {}
    groups = np.array([group_of.setdefault(task.group_of(one), len(group_of)) for one in train])
    order = generator(seed, "solve/curve").permutation(len(group_of))
    found = []
    for share in SHARES:
        rows = np.flatnonzero(np.isin(groups, order[: len(order) // share])).tolist()
        some, parts = [train[row] for row in rows], [folds[row] for row in rows] if folds else []
        held = some if folds else dev
        if len(rows) < FEWEST or len(set(parts)) == 1:
            continue
        try:
            task.targets(some)
        except InputError:
            continue
        model, fit = train_linear(task, some, None if folds else dev, folds=parts)
        pipeline = task.pipeline(model, cast("Any", None), DEFAULT)
        decided = task.decided(pipeline, fit.outputs, held)
        metrics = decided.metrics(held, decided.told(pipeline, fit.outputs, held))
        found.append((len(rows), float(metrics[task.metric])))
    return (*found, (len(train), whole)) if found else ()


def gain_of_twice(curve: Curve) -> float:
    """Returns by how much the score rises with a doubling of the rows: the slope over the last three points."""
    rows, scores = zip(*curve[-3:], strict=True)
    return float(np.polyfit(np.log2(rows), scores, 1)[0])


def in_a_sentence(curve: Curve, metric: str) -> str:
    """Says what twice the labels would bring."""
    gain, rows = gain_of_twice(curve), 2 * curve[-1][0]
    if (last := curve[-1][1] - curve[-2][1]) <= 0:
        return f"what {rows:,} rows would bring is not clear: the last doubling brought {last:+.3f} of {metric}"
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


def label_next(model: Path, unlabelled: str | Path, count: int, reading: ReadingOptions) -> list[Record]:
    """Returns the `Predictor` records that would teach a model most: spread out, and the least sure first.

    Args:
        model: a folder that predicts with probabilities.
        unlabelled: a file as `bertsmith predict --file` reads it.
        count: how many rows; fewer where there are fewer different ones.

    Raises:
        InputError: the file is not usable, or no row of it can be predicted.
    """
    rows = Predictor.load(model).predict_file(unlabelled, reading)
    found = {record["input"]: record for record in rows if record["prediction"] is not None}
    if not found:
        raise InputError(f"{unlabelled}: no row can be predicted; there is nothing to label")
    records = sorted(found.values(), key=_sure)[: CANDIDATES * count]
    unsure = np.array([1 - _sure(record) for record in records])
    vectors = _vectors([" ".join(record["input"]) for record in records])
    chosen: list[int] = []
    unlike = np.ones(len(records))
    while len(chosen) < min(count, len(records)):
        # 越没把握、与已选的越不像，越先选；选过的记为 -1，不再选
        worth = unsure * unlike
        worth[chosen] = -1
        chosen.append(int(worth.argmax()))
        unlike = np.minimum(unlike, 1 - (vectors @ vectors[chosen[-1]].T).toarray()[:, 0])
    return [records[number] for number in chosen]


def write_rows(records: Sequence[Record], path: Path) -> None:
    """Writes rows that a person will label: their texts and other columns, what is predicted, and how sure that is."""
    others = list(dict.fromkeys(name for record in records for name in record.get("columns", ())))
    width = max(len(record["input"]) for record in records)
    texts = ["text", "text_b"][:width] if width <= 2 else [f"text_{number}" for number in range(1, width + 1)]
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*texts, "predicted", "probability", *others])
        for record in records:
            # 选项的个数可以不同：补齐空格，后面的列才对得上
            padded = [*record["input"], *[""] * (width - len(record["input"]))]
            rest = (record.get("columns", {}).get(name, "") for name in others)
            writer.writerow([*padded, record["prediction"], f"{_sure(record):.3f}", *rest])


def _sure(record: Record) -> float:
    """Returns how probable a prediction is; of several labels the one least sure counts."""
    if "probability" in record:
        return float(record["probability"])
    return float(min(max(share, 1 - share) for share in record["probabilities"].values()))


def _vectors(texts: Sequence[str]) -> Any:
    """Returns the n-grams of texts as rows of length 1, a sparse matrix."""
    from scipy.sparse import csr_matrix

    rows, columns, values = (np.concatenate(parts) for parts in zip(*counted(texts, None), strict=True))
    lengths = np.sqrt(np.bincount(rows, weights=values**2, minlength=len(texts)))
    shape = (len(texts), int(columns.max(initial=0)) + 1)
    return csr_matrix((values / np.maximum(lengths, 1e-12)[rows], (rows, columns)), shape=shape)
