"""Training a linear-chain conditional random field over the tags of sentences (Lafferty et al. 2001).

The loss is the -log probability of the tags of whole sentences; its slopes are the probabilities that forward and
backward give, less what is true. So weights and transitions are learned together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.linear import Fit, Floats, Losses, Ways, fitted_rows, known_rows, most_frequent
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
    ways = Ways(partial(_matrix, empty), partial(_losses, task), partial(_filled, empty))
    return fitted_rows(task, ways, train, dev, folds, strengths, (len(known) + 1 + tags, tags), tolerances)


def _filled(empty: Chain, table: Floats) -> Chain:
    count = len(empty.features)
    weights, bias, transitions = np.split(table.astype(np.float32), [count, count + 1])
    return Chain(empty.labels, empty.features, weights, bias[0], transitions)


def _matrix(chain: Chain, examples: Sequence[TaggedWords]) -> Any:
    """Returns the features of the W words of sentences as a sparse matrix [W, F]."""
    parts = (examples[first : first + PART] for first in range(0, len(examples), PART))
    return known_rows((chain.places[looks([one.words for one in part])] for part in parts), len(chain.features))


def _losses(task: TaggingTask, examples: Sequence[TaggedWords]) -> Losses:
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
