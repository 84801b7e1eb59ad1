"""Training a linear-chain conditional random field over the tags of sentences (Lafferty et al. 2001).

The loss is the -log probability of the tags of whole sentences; its slopes are the probabilities that forward and
backward give, less what is true. So weights and transitions are learned together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.linear import Fit, Floats, Losses, fitted, in_order, most_frequent, scores_of
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.inference.chain import PART, Chain, Steps, chances, looks

STRENGTHS = (0.3, 1.0, 3.0, 10.0)
TOLERANCES = (1e-3, 1e-4)
"""As in `linear`; nearer to the optimum, tags get no better, and take twice the time."""


def train_chain(
    task: TaggingTask,
    train: Sequence[TaggedWords],
    dev: Sequence[TaggedWords] | None,
    strengths: Sequence[float] = STRENGTHS,
    *,
    folds: Sequence[int] = (),
    tolerances: tuple[float, float] = TOLERANCES,
) -> tuple[Chain, Fit]:
    """Trains a chain over tags; arguments and what is returned as in `train_words`."""
    tags = len(task.labels)
    counts = np.zeros(Chain.most, dtype=np.int64)
    for first in range(0, len(train), PART):
        seen = looks([one.words for one in train[first : first + PART]])
        counts += np.bincount(seen[seen >= 0], minlength=Chain.most)
    known = most_frequent(counts, tags)
    nothing = np.zeros((len(known), tags), dtype=np.float32)
    empty = Chain(task.labels, known.astype(np.int32), nothing, nothing[:1, 0], nothing[:0])
    numbers = np.asarray(folds)
    held = [list(dev)] if dev is not None else [_chosen(train, numbers == part) for part in np.unique(numbers)]
    rest = [list(train)] if dev is not None else [_chosen(train, numbers != part) for part in np.unique(numbers)]

    def piece(examples: Sequence[TaggedWords]) -> tuple[Any, Losses]:
        return _matrix(empty, examples), _losses(task, examples)

    measured = [piece(examples) for examples in held]

    def held_loss(tables: Sequence[Floats]) -> float:
        rows = zip(measured, tables, strict=True)
        return sum(loss(scores_of(features, table), table[len(known) + 1 :])[0] for (features, loss), table in rows)

    shape, pieces = (len(known) + 1 + tags, tags), [piece(examples) for examples in rest]
    whole = pieces[0] if dev is not None else piece(train)
    learned, strength, tables = fitted(pieces, whole, held_loss, strengths, shape, tolerances)
    made = [_filled(empty, table) for table in (learned, *tables)]
    if dev is not None:
        return made[0], Fit(strength, made[0].logits([one.words for one in dev]))
    told = zip(made[1:], held, strict=True)
    outputs = torch.cat([one.logits([example.words for example in examples]) for one, examples in told])
    return made[0], Fit(strength, in_order(outputs, task.rows(train), numbers))


def _chosen(examples: Sequence[TaggedWords], which: NDArray[np.bool_]) -> list[TaggedWords]:
    return [examples[number] for number in np.flatnonzero(which).tolist()]


def _filled(empty: Chain, table: Floats) -> Chain:
    """Returns a chain with the parameters of a table."""
    count = len(empty.features)
    weights, bias, transitions = np.split(table.astype(np.float32), [count, count + 1])
    return Chain(empty.labels, empty.features, weights, bias[0], transitions)


def _matrix(chain: Chain, examples: Sequence[TaggedWords]) -> Any:
    """Returns the features of the W words of sentences as a sparse matrix [W, F]."""
    from scipy.sparse import csr_matrix, vstack

    parts = []
    for first in range(0, len(examples), PART):
        places = chain.places[looks([one.words for one in examples[first : first + PART]])]
        rows, columns = np.nonzero(places >= 0)
        values = np.ones(len(rows), dtype=np.float32)
        shape = (len(places), len(chain.features))
        parts.append(csr_matrix((values, (rows, places[rows, columns])), shape=shape))
    return vstack(parts, format="csr")


def _losses(task: TaggingTask, examples: Sequence[TaggedWords]) -> Losses:
    """Returns the loss of sentences' tags as it depends on the scores of words and on transitions."""
    true = np.asarray(task.targets(examples), dtype=np.int64)
    steps = Steps.of([len(one.words) for one in examples])
    words, followed = np.arange(len(true)), np.zeros((len(task.labels), len(task.labels)))
    np.add.at(followed, (true[steps.later - 1], true[steps.later]), 1)

    def losses(scores: Floats, transitions: Floats) -> tuple[float, Floats, Floats]:
        normalizer, slopes, expected = chances(scores, transitions, steps)
        slopes[words, true] -= 1
        return (
            normalizer - float(scores[words, true].sum() + (followed * transitions).sum()),
            slopes,
            expected - followed,
        )

    return losses
