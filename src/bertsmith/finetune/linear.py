"""Training a linear model over sparse features: what words of texts and chains of tags share.

L-BFGS (Liu and Nocedal 1989) minimizes the sum of losses, multiplied by a strength, and half the squared weights. The
strength is chosen on dev, from strong penalty to weak; each start is where the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.finetune.tasks.task import AdditiveTask

Floats = NDArray[np.float64]
Losses = Callable[[Floats, Floats], tuple[float, Floats, Floats]]
"""Takes scores [N, C] and further parameters [R, C]; gives a loss, and its slopes at both."""

STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The values of `C`, by which the loss of the examples is multiplied beside the penalty, among which dev chooses."""
MOST_WEIGHTS = 4_000_000
"""Of the features the most frequent ones are kept, as many as make this many weights: 16 MB."""
TOLERANCES = (1e-4, 1e-8)
"""Least relative gain of a step of the optimizer: to compare strengths, and for the weights that are kept."""


class Fit(NamedTuple):
    """How a model was found: it learned from `rows` examples, None for all; `outputs` [N, K] are for other examples."""

    strength: float
    outputs: Tensor
    rows: int | None = None


class Ways(NamedTuple):
    """How examples of which each has several rows of outputs are learned from.

    `matrix` gives their features, sparse [N, F], `losses` those of their outputs, `filled` a model with parameters.
    """

    matrix: Callable[[Sequence[Any]], Any]
    losses: Callable[[Sequence[Any]], Losses]
    filled: Callable[[Floats], Any]


def fitted_rows(
    task: AdditiveTask[Any, Any],
    ways: Ways,
    train: Sequence[Any],
    dev: Sequence[Any] | None,
    folds: Sequence[int],
    strengths: Sequence[float],
    shape: tuple[int, int],
    tolerances: tuple[float, float],
) -> tuple[Any, Fit]:
    """Trains a model whose examples have several rows of outputs; `shape` as in `fitted`, the rest as `train_words`."""
    numbers = np.asarray(folds)
    parts = [] if dev is not None else [numbers == part for part in np.unique(numbers)]
    held = [list(dev)] if dev is not None else [_chosen(train, part) for part in parts]
    rest = [list(train)] if dev is not None else [_chosen(train, ~part) for part in parts]

    def piece(examples: Sequence[Any]) -> tuple[Any, Losses]:
        return ways.matrix(examples), ways.losses(examples)

    measured = [piece(examples) for examples in held]

    def held_loss(tables: Sequence[Floats]) -> float:
        return sum(
            loss(scores_of(features, table), table[features.shape[1] + 1 :])[0]
            for (features, loss), table in zip(measured, tables, strict=True)
        )

    pieces = [piece(examples) for examples in rest]
    whole = pieces[0] if dev is not None else piece(train)
    learned, strength, tables = fitted(pieces, whole, held_loss, strengths, shape, tolerances)
    model = ways.filled(learned)
    if dev is not None:
        return model, Fit(strength, task.outputs(model, dev))
    told = zip(tables, held, strict=True)
    outputs = torch.cat([task.outputs(ways.filled(table), examples) for table, examples in told])
    return model, Fit(strength, in_order(outputs, task.rows(train), numbers))


def _chosen(examples: Sequence[Any], which: NDArray[np.bool_]) -> list[Any]:
    return [examples[number] for number in np.flatnonzero(which).tolist()]


def fitted(
    pieces: Sequence[tuple[Any, Losses]],
    whole: tuple[Any, Losses],
    held_loss: Callable[[Sequence[Floats]], float],
    strengths: Sequence[float],
    shape: tuple[int, int],
    tolerances: tuple[float, float] = TOLERANCES,
) -> tuple[Floats, float, list[Floats]]:
    """Fits parameters for each strength, and to all, more exactly, for the one with the least loss on what is held out.

    The `pieces`, one beside each part that is held out, and the `whole` are features [N, F] and the losses of their
    outputs. Parameters have the `shape` of F rows of weights, one of biases, then further ones, by C columns. Returns
    them, the strength, and those of each piece.
    """
    tables: list[Floats] = [np.zeros(shape)] * len(pieces)
    best: tuple[float, float, list[Floats]] | None = None
    for strength in strengths:
        tables = [_least(*piece, strength, start, tolerances[0]) for piece, start in zip(pieces, tables, strict=True)]
        loss = held_loss(tables)
        # 由强到弱，一变差就停：再弱只会更差
        if best is not None and loss >= best[0]:
            break
        best = (loss, strength, tables)
    assert best is not None
    _, strength, tables = best
    return _least(*whole, strength, np.mean(tables, axis=0), tolerances[1]), strength, tables


def _least(features: Any, losses: Losses, strength: float, start: Floats, tolerance: float) -> Floats:
    """Returns the parameters with the least loss, times the strength, and half the squared weights."""
    from scipy.optimize import minimize

    transposed, count = features.T.tocsr() if hasattr(features, "tocsr") else features.T, features.shape[1]

    def objective(parameters: Floats) -> tuple[float, Floats]:
        table = parameters.reshape(start.shape)
        loss, slopes, rest = losses(scores_of(features, table), table[count + 1 :])
        # 偏置不受惩罚：先验概率不该被压向一半
        penalised = table.copy()
        penalised[count] = 0
        # 强度先乘进各例的斜率，单精度的乘积才与损失一致
        slopes, rest = slopes * strength, rest * strength
        parts = [transposed @ slopes.astype(np.float32), slopes.sum(0, keepdims=True), rest]
        gradient = np.concatenate(parts) + penalised
        return loss * strength + 0.5 * float(np.square(penalised).sum()), gradient.ravel()

    how = {"maxiter": 300, "maxcor": 6, "gtol": 1e-4, "ftol": tolerance}
    found: Any = minimize(objective, start.ravel(), method="L-BFGS-B", jac=True, options=how)
    return np.asarray(found.x).reshape(start.shape)


def scores_of(features: Any, table: Floats) -> Floats:
    """Returns outputs [N, C] from weights and biases, the first F + 1 rows of a table."""
    count = features.shape[1]
    scores: Floats = np.asarray(features @ table[:count].astype(np.float32), dtype=np.float64) + table[count]
    return scores


def known_rows(blocks: Iterable[NDArray[np.int32]], count: int) -> Any:
    """Returns a sparse matrix [N, count] of rows with T features; blocks [B, T] say their columns, -1 for none."""
    from scipy.sparse import csr_matrix, vstack

    parts = []
    for places in blocks:
        rows, which = np.nonzero(places >= 0)
        values = np.ones(len(rows), dtype=np.float32)
        parts.append(csr_matrix((values, (rows, places[rows, which])), shape=(len(places), count)))
    return vstack(parts, format="csr")


def most_frequent(counts: NDArray[np.int64], outputs: int) -> NDArray[np.int64]:
    """Returns the numbers of the features that occur, rising; of too many the most frequent ones."""
    most, known = max(MOST_WEIGHTS // outputs, 1), np.flatnonzero(counts)
    if len(known) > most:
        known = np.sort(known[np.argsort(-counts[known], kind="stable")[:most]])
    return known


def in_order(outputs: Tensor, counts: Sequence[int], folds: Sequence[int] | NDArray[np.int64]) -> Tensor:
    """Puts outputs [R, K] that were found fold by fold, the first fold's first, into the order of the examples.

    `counts` says how many rows of outputs each example has, `folds` the number of its fold.
    """
    order = np.argsort(np.repeat(np.asarray(folds), counts), kind="stable")
    return outputs[torch.from_numpy(np.argsort(order))]
