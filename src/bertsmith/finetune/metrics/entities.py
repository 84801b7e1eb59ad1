"""Entity-level precision, recall and F1, as the CoNLL script and `seqeval` count them.

An entity counts as found only where its type, its first and its last word are all right (Tjong Kim Sang and
De Meulder 2003). The counts are kept per sentence, so that an interval can be drawn over sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.finetune.metrics.classification import ClassScores, scores_from_counts
from bertsmith.inference.entities import Entity, entities_of, is_plain


@dataclass(frozen=True)
class EntityScores:
    """How well entities are found.

    Attributes:
        overall: all entities together (micro average); its F1 is what papers report.
        macro_f1: mean F1 of the types.
        types: the scores of each type, in alphabetical order.
        word_accuracy: share of the words with the right tag.
    """

    overall: ClassScores
    macro_f1: float
    types: dict[str, ClassScores]
    word_accuracy: float


def entity_scores(tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> EntityScores:
    """Scores predicted tags against the true ones.

    Args:
        tags: for each sentence, the true tag of each word.
        predictions: the same for the predicted tags.
    """
    hits, predicted, actual = Counter[str](), Counter[str](), Counter[str]()
    for true_set, predicted_set in _entity_sets(tags, predictions):
        hits.update(entity.type for entity in true_set & predicted_set)
        predicted.update(entity.type for entity in predicted_set)
        actual.update(entity.type for entity in true_set)
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
    )


def entity_counts(tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """Returns for each of N sentences its right, predicted and true entities: [N, 3], for `bootstrap_interval`."""
    counts = [(len(true & guess), len(guess), len(true)) for true, guess in _entity_sets(tags, predictions)]
    return np.array(counts, dtype=np.int64).reshape(-1, 3)


def _entity_sets(
    tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> list[tuple[set[Entity], set[Entity]]]:
    # 真实与预测标签一起判断：一个模型可能只预测 O，不能因此换一种读法
    plain = is_plain([*tags, *predictions])
    return [
        (set(entities_of(true, plain=plain)), set(entities_of(guess, plain=plain)))
        for true, guess in zip(tags, predictions, strict=True)
    ]
