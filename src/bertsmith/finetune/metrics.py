"""Metrics as the field computes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def accuracy(labels: Sequence[int], predictions: Sequence[int]) -> float:
    """Returns the share of right predictions, in [0, 1]."""
    return float(np.mean(np.asarray(labels) == np.asarray(predictions)))


def f1_scores(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> list[float]:
    """Returns F1 = 2 TP / (2 TP + FP + FN) for every class, 0 where a class neither occurs nor is predicted.

    Args:
        labels: true classes, in [0, num_labels).
        predictions: predicted classes, in the same order.
        num_labels: number of classes.
    """
    confusion = np.zeros((num_labels, num_labels), dtype=np.int64)
    np.add.at(confusion, (np.asarray(labels), np.asarray(predictions)), 1)
    hits = confusion.diagonal()
    # 行和 = TP+FN，列和 = TP+FP，两者相加即 2TP+FP+FN
    denominator = confusion.sum(0) + confusion.sum(1)
    return [float(2 * hit / total) if total else 0.0 for hit, total in zip(hits, denominator, strict=True)]


def macro_f1(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> float:
    """Returns the mean F1 over the classes that occur or are predicted."""
    scores = f1_scores(labels, predictions, num_labels)
    present = set(labels) | set(predictions)
    return float(np.mean([scores[index] for index in sorted(present)]))
