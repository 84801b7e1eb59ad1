"""Training the linear model over the words of passages: where answers begin and end.

The loss is the -log probability of the true span among all spans of its passage, and "no answer" where some have none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bertsmith.finetune.datasets.questions import QuestionExample
from bertsmith.finetune.linear import Fit, Floats, Losses, Ways, fitted_rows, known_rows, most_frequent
from bertsmith.finetune.tasks.task import AdditiveTask
from bertsmith.inference.spans import OUTPUTS, Spans, looks, passage_words, span_chances

SPANS = "answer"
"""What a row of outputs means: where an answer begins and ends."""
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3)
TOLERANCES = (1e-3, 1e-4)
"""As in `linear`; nearer to the optimum, answers get no better."""
MOST_QUESTIONS = 8000
"""Of more questions some are learned from: each takes 130 KB of features."""
RARE = 3
"""Features of fewer words say nothing."""
LAST = 1 << len(OUTPUTS)
"""Marks the last word of a passage among the targets."""


def train_spans(
    task: AdditiveTask[Any, Any],
    train: Sequence[QuestionExample],
    dev: Sequence[QuestionExample] | None,
    strengths: Sequence[float] = STRENGTHS,
    *,
    folds: Sequence[int] = (),
) -> tuple[Spans, Fit]:
    """Trains a linear model over passages; arguments and what is returned as in `train_words`."""
    some = train if dev is None else train[:: -(-len(train) // MOST_QUESTIONS)]
    counts = np.zeros(Spans.most, dtype=np.int64)
    for one in some:
        counts += np.bincount(looks(one.question, one.context).ravel(), minlength=Spans.most)
    counts[counts < RARE] = 0
    known = most_frequent(counts, len(OUTPUTS))
    nothing = np.zeros((len(known), len(OUTPUTS)), dtype=np.float32)
    empty = Spans(known.astype(np.int32), nothing, np.zeros(len(OUTPUTS), dtype=np.float32))
    ways = Ways(partial(_matrix, empty), _losses, partial(_filled, empty))
    spans, fit = fitted_rows(task, ways, some, dev, folds, strengths, (len(known) + 1, len(OUTPUTS)), TOLERANCES)
    return spans, fit if len(some) == len(train) else fit._replace(rows=len(some))


def targets_of(examples: Sequence[QuestionExample]) -> list[int]:
    """Returns for each word the sum of 1 << k for each output k that counts in the true answer; the last has `LAST`.

    Of several true answers it is the first; where one ends within a word, it is the whole word.
    """
    found: list[int] = []
    for one in examples:
        places = passage_words(one.context).places
        codes = [0] * len(places)
        codes[-1] = LAST
        if one.is_impossible:
            codes[-1] += 1 << OUTPUTS.index("none")
        else:
            first, last = words_within(places, one.answers[0].start, one.answers[0].start + len(one.answers[0].text))
            # 答案只有标点之外的零宽字符时没有词：取它前面的那个词
            last = max(first, last)
            for place in range(first, last + 1):
                codes[place] += 1 << OUTPUTS.index("inside")
            codes[first] += 1 << OUTPUTS.index("start")
            codes[last] += 1 << OUTPUTS.index("end")
        found += codes
    return found


def words_within(places: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """Returns the first and the last word that share a character with a stretch of text."""
    ends = [place[1] for place in places]
    first = min(bisect_right(ends, start), len(places) - 1)
    return first, bisect_left([place[0] for place in places], end) - 1


def span_losses(scores: Floats, targets: Sequence[int] | Floats) -> tuple[float, Floats]:
    """Returns the -log likelihood of the true answers for scores [W, 4] of all words, and its slope at each.

    The `targets` [W] are of `targets_of`; there may be no answer where one of them says so.
    """
    codes = np.asarray(targets, dtype=np.int64)
    true = ((codes[:, None] >> np.arange(len(OUTPUTS))) & 1).astype(np.float64)
    sizes = np.diff(np.flatnonzero(codes >= LAST), prepend=-1)
    normalizer, expected = span_chances(scores, sizes.tolist(), none=bool(true[:, -1].any()))
    return normalizer - float((scores * true).sum()), expected - true


def _losses(examples: Sequence[QuestionExample]) -> Losses:
    targets = targets_of(examples)

    def losses(scores: Floats, rest: Floats) -> tuple[float, Floats, Floats]:
        return (*span_losses(scores, targets), rest)

    return losses


def _matrix(spans: Spans, examples: Sequence[QuestionExample]) -> Any:
    """Returns the features of the W words of passages as a sparse matrix [W, F]."""
    return known_rows((spans.places[looks(one.question, one.context)] for one in examples), len(spans.features))


def _filled(empty: Spans, table: Floats) -> Spans:
    weights, bias = table[:-1].astype(np.float32), table[-1].astype(np.float32)
    return Spans(empty.features, weights, bias)
