"""Whether a model is right as often as it says: temperature, calibration error, and thresholds of single classes.

A network that was trained to the end is too sure of itself. One number mends most of it: logits divided by a
temperature, fitted on dev (Guo et al. 2017). It changes no prediction, only how sure each one is. Probabilities are
enough for it: log p differs from the logits by a constant of the row, which softmax does not see. Of several classes
the surest one is judged (top-label calibration), of labels that are decided one by one every decision. As in the paper,
there are 15 bins of equal width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.finetune.metrics.classification import scores_from_counts

Floats = NDArray[np.float64]

BINS = 15
_LEAST, _MOST = 0.05, 20.0
_TINY = 1e-12


@dataclass(frozen=True)
class Bin:
    """Predictions that are about equally sure: their mean probability, the share that is right, and how many."""

    confidence: float
    accuracy: float
    count: int


@dataclass(frozen=True)
class Reliability:
    """How far the probabilities of some predictions can be trusted.

    Attributes:
        error: expected calibration error, in [0, 1]: mean distance of confidence and accuracy over the bins, by count.
        brier: mean squared distance from the truth, summed over classes, in [0, 2]; in [0, 1] for a single decision.
        log_loss: mean -log p of the truth, in nats.
        bins: those that hold a prediction, from the least sure up.
    """

    error: float
    brier: float
    log_loss: float
    bins: list[Bin]


@dataclass(frozen=True)
class Calibration:
    """The probabilities of a file at temperature 1 and at that which dev asks for; above 1 the model is too sure."""

    temperature: float
    before: Reliability
    after: Reliability


@dataclass(frozen=True)
class ClassThreshold:
    """What a threshold of its own does for a class: its F1 at the threshold that all share, and at its own."""

    threshold: float
    f1: float
    own_f1: float


def softened(probabilities: Floats, temperature: float) -> Floats:
    """Returns the probabilities [N, K] that logits divided by a temperature give."""
    logits = np.log(np.clip(probabilities, _TINY, None)) / temperature
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    shares: Floats = weights / weights.sum(-1, keepdims=True)
    return shares


def softened_decisions(probabilities: Floats, temperature: float) -> Floats:
    """Returns the same for decisions of their own, of any shape: sigmoid(logit / temperature)."""
    clipped = np.clip(probabilities, _TINY, 1 - _TINY)
    decisions: Floats = 1 / (1 + np.exp(-(np.log(clipped) - np.log1p(-clipped)) / temperature))
    return decisions


def fit_temperature(probabilities: Floats, truth: NDArray[np.int64]) -> float:
    """Finds the temperature with the least log loss, in [0.05, 20]; 1 where all are equally good.

    Args:
        probabilities: [N, K] of classes, or of labels that are decided one by one.
        truth: [N] numbers of the true classes; or [N, K], 1 where the label is true.
    """
    from scipy.optimize import minimize_scalar

    # 在对数温度上搜索：损失在那里是平滑的单峰，放大与缩小同样好找
    def loss(log_temperature: float) -> float:
        return reliability(_at(probabilities, truth, float(np.exp(log_temperature))), truth).log_loss

    found: Any = minimize_scalar(loss, bounds=(np.log(_LEAST), np.log(_MOST)), method="bounded")
    return float(f"{np.exp(found.x):.4g}") if loss(float(found.x)) < loss(0.0) else 1.0


def calibration(probabilities: Floats, truth: NDArray[np.int64], temperature: float) -> Calibration:
    """Returns what a temperature does on a file; arguments as in `fit_temperature`."""
    after = reliability(_at(probabilities, truth, temperature), truth)
    return Calibration(temperature, reliability(probabilities, truth), after)


def reliability(probabilities: Floats, truth: NDArray[np.int64]) -> Reliability:
    """Measures probabilities against the truth; arguments as in `fit_temperature`."""
    rows = np.asarray(probabilities, dtype=np.float64)
    if truth.ndim == 1:
        sure, right = rows.max(-1), rows.argmax(-1) == truth
        true = rows[np.arange(len(rows)), truth]
        # 对真类差 1 - p，对其余各类差 p：平方和展开，不必造独热矩阵
        brier = float(((rows**2).sum(-1) - 2 * true + 1).mean())
    else:
        sure, right = rows.ravel(), truth.ravel() == 1
        true = np.where(right, sure, 1 - sure)
        brier = float(((sure - right) ** 2).mean())
    # 0 减去而不取负：全对时是 0，不是 -0
    log_loss = float(0.0 - np.log(np.clip(true, _TINY, 1.0)).mean())
    # 1.0 落在最后一格，而不是再开一格
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    bins = [
        Bin(float(sure[place == number].mean()), float(right[place == number].mean()), int((place == number).sum()))
        for number in range(BINS)
        if (place == number).any()
    ]
    error = sum(one.count * abs(one.confidence - one.accuracy) for one in bins) / len(sure)
    return Reliability(float(error), brier, log_loss, bins)


def best_cut(truth: NDArray[np.int64], probabilities: Floats, default: float = 0.5) -> float:
    """Finds the threshold with the best F1, of equals the nearest to the default, which stands if nothing is true."""
    if not truth.any():
        return default
    order = np.argsort(-probabilities, axis=None, kind="stable")
    falling, right = probabilities.ravel()[order], truth.ravel()[order]
    below = np.append(falling[1:], 0.0)
    # 标签上百时，所有概率可能都低于 0.05：候选阈值取自概率本身，而不是固定的刻度；从高到低逐个算作“有”
    scores = 2 * np.cumsum(right) / (np.arange(1, len(right) + 1) + right.sum())
    # 概率相同的判断只能一起改变：阈值落不进并列之间
    scores[falling == below] = -1.0
    thresholds = np.where((below <= default) & (falling > default), default, (falling + below) / 2)
    best = np.flatnonzero(scores == scores.max())
    return float(thresholds[best[np.argmin(np.abs(thresholds[best] - default))]])


def f1_of(truth: NDArray[np.int64], decided: NDArray[np.bool_]) -> float:
    """Returns the F1 of decisions, 0 where it is of nothing."""
    return scores_from_counts(int((truth * decided).sum()), int(decided.sum()), int(truth.sum())).f1


def probability_rows(predictions: Sequence[Any], labels: Sequence[str]) -> Floats:
    """Returns [N, K], the probabilities of predictions in the order of the labels."""
    return np.array([[one.probabilities[label] for label in labels] for one in predictions], dtype=np.float64)


def _at(probabilities: Floats, truth: NDArray[np.int64], temperature: float) -> Floats:
    return (softened if truth.ndim == 1 else softened_decisions)(probabilities, temperature)
