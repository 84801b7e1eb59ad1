"""Metrics of classes, of sets of labels and of entities, all from counts, as their intervals are.

What is not defined (no example of a class, no prediction of one) counts as 0, so that a bad model ranks last instead of
spoiling a comparison with NaN. Sets of labels are scored from three counts per label: for scikit-learn a file with one
label only would be another problem, of two classes. An entity is found only where its type, its first and its last word
are all right, as the CoNLL script and `seqeval` count (Tjong Kim Sang and De Meulder 2003).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.finetune.metrics import Floats, macro_f1_of_counts, matthews_of_counts
from bertsmith.inference.entities import entities_of, is_plain


@dataclass(frozen=True)
class ClassScores:
    """How well one class is found; `support` is its number of examples."""

    precision: float
    recall: float
    f1: float
    support: int


Weights = Sequence[float] | None
"""How much each example counts; None for all alike."""


def class_counts(
    labels: Sequence[int], predictions: Sequence[int], num_labels: int, weights: Weights = None
) -> tuple[Floats, Floats, Floats]:
    """Counts the hits, predictions and true examples of every class: three times [1, K], as one set of a bootstrap."""
    true, guess = (np.asarray(column, dtype=np.int64) for column in (labels, predictions))
    weighed = np.ones(len(true)) if weights is None else np.asarray(weights, dtype=np.float64)
    right = true == guess
    hits, predicted, actual = (
        np.bincount(classes, weight, num_labels)[None].astype(np.float64)
        for classes, weight in ((true[right], weighed[right]), (guess, weighed), (true, weighed))
    )
    return hits, predicted, actual


def class_metrics(hits: Floats, predicted: Floats, actual: Floats) -> dict[str, float]:
    """Returns accuracy, macro F1 and Matthews' correlation of counts [1, K]."""
    return {
        "accuracy": float(hits.sum() / actual.sum()),
        "macro_f1": float(macro_f1_of_counts(hits, predicted, actual)[0]),
        "matthews": float(matthews_of_counts(hits, predicted, actual)[0]),
    }


MOST_CONFUSED = 500
"""Classes in a table of which is taken for which: nobody looks at a larger one, and its file would be huge."""


def confusion_matrix(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> list[list[int]] | None:
    """Counts how often each true class (row) was predicted as each class (column), [K][K]; None for very many."""
    if num_labels > MOST_CONFUSED:
        return None
    cells = np.asarray(labels, dtype=np.int64) * num_labels + np.asarray(predictions, dtype=np.int64)
    table: list[list[int]] = np.bincount(cells, minlength=num_labels**2).reshape(num_labels, num_labels).tolist()
    return table


def without_matrix(num_labels: int) -> list[str]:
    """Says that there is no confusion matrix, where there are too many labels for one."""
    said = f"{num_labels:,} labels are too many for a confusion matrix, which has {MOST_CONFUSED} at most"
    return [said] if num_labels > MOST_CONFUSED else []


def class_scores(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> list[ClassScores]:
    """Returns precision, recall, F1 and support of every class, 0 where a share is of nothing."""
    counts = (column[0].astype(int).tolist() for column in class_counts(labels, predictions, num_labels))
    return [scores_from_counts(*each) for each in zip(*counts, strict=True)]


def label_scores(labels: ArrayLike, predictions: ArrayLike) -> list[ClassScores]:
    """Scores each label of sets of them, both [N, K], 1 or True where an example has the label."""
    return [scores_from_counts(*label) for label in zip(*_label_counts(labels, predictions), strict=True)]


def multilabel_metrics(labels: ArrayLike, predictions: ArrayLike) -> dict[str, float]:
    """Returns micro F1, macro F1, and the share of sets that are right as a whole; arguments as in `label_scores`."""
    # micro 把各标签的计数先相加再算，常见标签说了算；macro 先各算各的再平均，少见标签一样重
    return {
        "micro_f1": scores_from_counts(*map(sum, _label_counts(labels, predictions))).f1,
        "macro_f1": float(np.mean([scores.f1 for scores in label_scores(labels, predictions)])),
        "exact_match": float((np.asarray(labels, dtype=bool) == np.asarray(predictions, dtype=bool)).all(1).mean()),
    }


def _label_counts(labels: ArrayLike, predictions: ArrayLike) -> list[list[int]]:
    actual, predicted = np.asarray(labels, dtype=bool), np.asarray(predictions, dtype=bool)
    return [column.sum(0).tolist() for column in (actual & predicted, predicted, actual)]


def scores_from_counts(hits: int, predicted: int, actual: int) -> ClassScores:
    """Returns the scores for a number of right predictions, of predictions and of true examples."""
    return ClassScores(
        precision=hits / predicted if predicted else 0.0,
        recall=hits / actual if actual else 0.0,
        f1=2 * hits / (predicted + actual) if predicted + actual else 0.0,
        support=actual,
    )


@dataclass(frozen=True)
class EntityScores:
    """How well entities are found: all together (micro; what papers report), by type, and word by word.

    `counts` [N, 3] are the right, predicted and true entities of each sentence, for `bootstrap_interval`.
    """

    overall: ClassScores
    macro_f1: float
    types: dict[str, ClassScores]
    word_accuracy: float
    counts: NDArray[np.int64]


def entity_scores(
    tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], *, plain: bool | None = None
) -> EntityScores:
    """Scores predicted tags against the true ones; `plain` as in `entities_of`, None as the tags look."""
    # 真实与预测标签一起判断：一个模型可能只预测 O，不能因此换一种读法
    plain = is_plain([*tags, *predictions]) if plain is None else plain
    hits, predicted, actual = Counter[str](), Counter[str](), Counter[str]()
    counts = np.zeros((len(tags), 3), dtype=np.int64)
    for row, true, guess in zip(counts, tags, predictions, strict=True):
        true_set, predicted_set = (set(entities_of(each, plain=plain)) for each in (true, guess))
        hits.update(entity.type for entity in true_set & predicted_set)
        predicted.update(entity.type for entity in predicted_set)
        actual.update(entity.type for entity in true_set)
        row[:] = len(true_set & predicted_set), len(predicted_set), len(true_set)
    types = {
        name: scores_from_counts(hits[name], predicted[name], actual[name]) for name in sorted({*predicted, *actual})
    }
    words = [
        tag == guess for sentence in zip(tags, predictions, strict=True) for tag, guess in zip(*sentence, strict=True)
    ]
    return EntityScores(
        overall=scores_from_counts(hits.total(), predicted.total(), actual.total()),
        macro_f1=float(np.mean([scores.f1 for scores in types.values()])) if types else 0.0,
        types=types,
        word_accuracy=float(np.mean(words)) if words else 0.0,
        counts=counts,
    )
