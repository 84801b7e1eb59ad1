"""The parts that need no encoder, the majority and a linear model over words, and weighing them against an encoder.

- logistic regression (softmax over classes, or each label by itself) or ridge regression, fitted by `linear`
- the outputs of two models are added, each times a weight: log odds, or numbers (a product of experts, Hinton 2002;
  stacking, Wolpert 1992). The few weights are fitted on dev, which neither model was trained on
- a part stays out unless the likelihood of dev asks for it: twice its gain must be beyond what chance gives in 95 of
  100 cases (Wilks 1938)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.finetune.chain import train_chain
from bertsmith.finetune.linear import STRENGTHS, Fit, Floats, Losses, fitted, most_frequent, scores_of
from bertsmith.finetune.spans import SPANS, span_losses, train_spans
from bertsmith.finetune.tasks.answer import AnsweringTask
from bertsmith.finetune.tasks.choose import ChoiceTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.finetune.tasks.task import AdditiveTask, WordsTask
from bertsmith.inference.chain import Chain
from bertsmith.inference.classify import REGRESSION, SINGLE
from bertsmith.inference.linear import LinearModel
from bertsmith.inference.words import CHOICES, PART, SIMILARITIES, Words, all_outputs, counted

CHANCE = 1.92
"""Half the 95 % quantile of chi squared with one degree of freedom."""
ONE_SIDED = 1.645
"""Standard errors by which chance lifts a mean in 5 of 100 cases."""


def train_linear(
    task: AdditiveTask[Any, Any], train: Sequence[Any], dev: Sequence[Any] | None, *, folds: Sequence[int] = ()
) -> tuple[LinearModel, Fit]:
    """Trains the linear model of a task; arguments and what is returned as in `train_words`."""
    if isinstance(task, TaggingTask):
        return train_chain(task, train, dev, folds=folds)
    if isinstance(task, AnsweringTask):
        return train_spans(task, train, dev, folds=folds)
    return train_words(cast("WordsTask[Any, Any]", task), train, dev, folds=folds)


def majority(task: AdditiveTask[Any, Any], train: Sequence[Any]) -> LinearModel:
    """Returns a model without features: it gives the shares of classes, tags or labels, or the mean."""
    if isinstance(task, (AnsweringTask, ChoiceTask)):
        raise ConfigError("no answer is the commonest")
    target = np.asarray(task.targets(train), dtype=np.float64)
    labels = tuple(task.config_fields()["id2label"].values())
    if isinstance(task, RegressionTask):
        bias = np.array([task.mean])
    elif target.ndim > 1:
        shares = np.clip(target.mean(0), 1e-6, 1 - 1e-6)
        bias = np.log(shares) - np.log1p(-shares)
    else:
        bias = np.log(np.maximum(np.bincount(target.astype(int), minlength=len(labels)), 1e-6) / len(target))
    biases = bias.astype(np.float32)
    if isinstance(task, TaggingTask):
        return replace(Chain.none(labels), bias=biases)
    return replace(Words.none(task.problem, labels), bias=biases)


def train_words(
    task: WordsTask[Any, Any],
    train: Sequence[Any],
    dev: Sequence[Any] | None,
    strengths: Sequence[float] = STRENGTHS,
    *,
    folds: Sequence[int] = (),
) -> tuple[Words, Fit]:
    """Trains a linear model over the n-grams of texts.

    Args:
        dev: labelled examples that choose the strength; None where folds do.
        strengths: to choose from, rising.
        folds: the part of each training example; each part is held out once, and the kept model learns from all.

    Returns:
        The model; the strength, and the outputs for dev or, by folds, for the training examples.
    """
    labels = tuple(task.config_fields()["id2label"].values())
    known = replace(_known(task, train, max(len(labels), 1)), problem=task.problem, labels=labels)
    features = _matrix(known, task, train)
    held = None if dev is None else _matrix(known, task, dev)
    weights, bias, fit = _learned(task, features, train, held, dev, folds, strengths)
    return replace(known, weights=weights, bias=bias), fit


def train_states(
    task: WordsTask[Any, Any],
    pooling: str,
    vectors: Tensor,
    train: Sequence[Any],
    held: Tensor | None,
    dev: Sequence[Any] | None,
    strengths: Sequence[float] = STRENGTHS,
    *,
    folds: Sequence[int] = (),
) -> tuple[Words, Fit]:
    """Trains a linear layer over what an encoder's layers hold of texts, and leaves the encoder as it is.

    `vectors` [N, W] are those of the training examples, `held` those of dev. The model that is returned has the layer
    and no n-grams; the rest is as in `train_words`.
    """
    problem, labels = task.problem, tuple(task.config_fields()["id2label"].values())
    # 各维的尺度差别很大：标准化之后同一个惩罚对谁都公平；宽度再多，也只当一个整体来罚
    mean, spread = vectors.mean(0), vectors.std(0, correction=0) * len(vectors[0]) ** 0.5 + 1e-6
    scaled = [None if one is None else ((one - mean) / spread).numpy() for one in (vectors, held)]
    weights, bias, fit = _learned(task, scaled[0], train, scaled[1], dev, folds, strengths)
    weights /= spread.numpy()[:, None]
    bias = (bias - mean.numpy() @ weights).astype(np.float32)
    none = Words.none(problem, labels)
    return replace(none, mix=(1.0, 0.0, 0.0), pooling=pooling, states=weights, states_bias=bias), fit


def _learned(
    task: WordsTask[Any, Any],
    features: Any,
    train: Sequence[Any],
    held: Any,
    dev: Sequence[Any] | None,
    folds: Sequence[int],
    strengths: Sequence[float],
) -> tuple[NDArray[np.float32], NDArray[np.float32], Fit]:
    """Chooses the strength by what was held out; returns weights [F, C] and bias [C], and how they were found."""
    problem, labels = task.problem, tuple(task.config_fields()["id2label"].values())
    target = np.asarray(task.targets(train), dtype=np.float64)
    each = _example_weights(task, target)
    columns = 1 if problem == SINGLE and len(labels) == 2 else max(len(labels), 1)
    every = np.arange(len(target))
    if dev is None:
        # 一份一份地留出：每个例子都由没学过它的模型来答
        of = np.repeat(np.asarray(folds), task.rows(train))
        parts = [np.flatnonzero(of == part) for part in np.unique(of)]
        pieces = [(np.setdiff1d(every, part), features[part]) for part in parts]
        order = np.concatenate(parts)
        wanted = target[order]
    else:
        wanted = np.asarray(task.targets(dev), dtype=np.float64)
        pieces, order = [(every, held)], np.arange(len(wanted))
    measured = _example_weights(task, wanted)

    def losses(rows: NDArray[np.int64]) -> Losses:
        def weighed(scores: Floats, rest: Floats) -> tuple[float, Floats, Floats]:
            found, slopes = _losses(problem, scores, target[rows])
            return float(found @ each[rows]), slopes * each[rows][:, None], rest

        return weighed

    def held_scores(tables: Sequence[Floats]) -> Floats:
        return np.concatenate([scores_of(part, table) for (_, part), table in zip(pieces, tables, strict=True)])

    learned, strength, tables = fitted(
        [(features[rows], losses(rows)) for rows, _ in pieces],
        (features, losses(every)),
        lambda tables: float(_losses(problem, held_scores(tables), wanted)[0] @ measured),
        strengths,
        (features.shape[1] + 1, columns),
    )
    outputs = scores_of(held, learned) if dev is not None else held_scores(tables)[np.argsort(order)]
    weights, bias = learned[:-1], learned[-1]
    if isinstance(task, RegressionTask):
        weights, bias, outputs = (
            weights * task.spread,
            bias * task.spread + task.mean,
            outputs * task.spread + task.mean,
        )
    known = all_outputs(outputs.astype(np.float32), len(labels))
    return weights.astype(np.float32), bias.astype(np.float32), Fit(strength, known)


def _known(task: WordsTask[Any, Any], train: Sequence[Any], outputs: int) -> Words:
    """Returns a model without weights that knows the n-grams of the training texts, and how rare they are."""
    texts, pairs = task.columns(train)
    found = np.zeros(Words.most, dtype=np.int64)
    for first in range(0, len(texts), PART):
        part = slice(first, first + PART)
        for _, features, _ in counted(texts[part], None if pairs is None else pairs[part]):
            found += np.bincount(features, minlength=len(found))
    if pairs is not None:
        found[SIMILARITIES:] = len(texts)
    known = most_frequent(found, outputs)
    rarity = 1 + np.log((1 + len(texts)) / (1 + found[known]))
    nothing = np.zeros((len(known), 1), dtype=np.float32)
    return Words("", (), known.astype(np.int32), rarity.astype(np.float32), nothing, nothing[:1, 0])


def _matrix(words: Words, task: WordsTask[Any, Any], examples: Sequence[Any]) -> Any:
    """Returns the features of examples as a sparse matrix [N, F]."""
    from scipy.sparse import csr_matrix, vstack

    texts, pairs = task.columns(examples)
    parts = []
    for first in range(0, len(texts), PART):
        part = slice(first, first + PART)
        rows, columns, values = words.entries(texts[part], None if pairs is None else pairs[part])
        parts.append(csr_matrix((values, (rows, columns)), shape=(len(texts[part]), len(words.features))))
    return vstack(parts, format="csr")


def _example_weights(task: WordsTask[Any, Any], target: Floats) -> Floats:
    weights = getattr(task, "class_weights", ())
    return np.asarray(weights)[target.astype(np.int64)] if weights else np.ones(len(target))


def _losses(problem: str, scores: Floats, target: Floats) -> tuple[Floats, Floats]:
    """Returns losses [R], of answers one for all, and slopes at scores [N, C]; C may be 1 for two classes: log odds."""
    if problem == SPANS:
        loss, slopes = span_losses(scores, target)
        return np.array([loss]), slopes
    if problem == CHOICES:
        # 题目内部做 softmax：目标的一半是题号，奇数的那个是正确选项
        question, right = np.divmod(target.astype(np.int64), 2)
        starts = np.flatnonzero(np.diff(question, prepend=-1))
        counts = np.diff(starts, append=len(question))
        shifted = scores[:, 0] - np.repeat(np.maximum.reduceat(scores[:, 0], starts), counts)
        logs = shifted - np.repeat(np.log(np.add.reduceat(np.exp(shifted), starts)), counts)
        return -logs * right, (np.exp(logs) - right)[:, None]
    if problem == REGRESSION:
        errors = scores - target.reshape(scores.shape)
        return 0.5 * np.square(errors[:, 0]), errors
    if problem == SINGLE and scores.shape[1] > 1:
        rows, classes = np.arange(len(scores)), target.astype(np.int64)
        shifted = scores - scores.max(1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        slopes = np.exp(logs)
        slopes[rows, classes] -= 1
        return -logs[rows, classes], slopes
    truth = target.reshape(scores.shape)
    losses = np.logaddexp(0, scores) - truth * scores
    return losses.sum(1), 0.5 * (1 + np.tanh(0.5 * scores)) - truth


def mix_of(
    problem: str, encoder: Tensor, words: Tensor, target: Sequence[Any], slack: float = CHANCE
) -> tuple[tuple[float, float, float], Floats]:
    """Fits by what the outputs of an encoder and of words are multiplied, and for numbers what is added.

    A part that the likelihood of these examples does not ask for gets 0; where one part is enough, words are taken,
    which cost microseconds, unless the encoder alone is likelier by more than `slack`.

    Args:
        problem: one of `PROBLEM_TYPES`, or `SPANS`.
        encoder: [N, K], as `words`: outputs for N examples that neither part was trained on.
        target: what is true of them, as `AdditiveTask.targets` says it; numbers on the scale of the file.
        slack: nats; negative where the examples are too few to tell, and an encoder knows more beforehand.

    Returns:
        For the encoder, for words, and what is added, all 0 or positive but the last; and the losses [N] of the
        examples with them: -log likelihoods in nats (of answers their sum alone), or squared errors of numbers.
    """
    parts = [one.double().numpy() for one in (encoder, words)]
    truth = np.asarray(target, dtype=np.float64)
    ours, theirs, both = (_weighed(problem, some, truth) for some in (parts[:1], parts[1:], parts))
    if theirs[0] - both[0] < CHANCE and theirs[0] <= ours[0] + slack:
        # 只用词：权重回到 1，温度留给校准
        return (0.0, 1.0, 0.0), theirs[2]
    if ours[0] - both[0] < CHANCE:
        return (1.0, 0.0, 0.0), ours[2]
    first, second, offset = both[1]
    return (first, second, offset), both[2]


def is_beyond_chance(ours: Floats, theirs: Floats) -> bool:
    """Tells whether losses [N] are smaller than others [N] of the same examples by more than chance, in 95 of 100."""
    gains = np.atleast_1d(theirs) - np.atleast_1d(ours)
    return bool(gains.sum() > ONE_SIDED * gains.std() * math.sqrt(len(gains)))


def _weighed(problem: str, parts: Sequence[Floats], truth: Floats) -> tuple[float, tuple[float, ...], Floats]:
    """Returns the least -log likelihood, the parts' weights, an offset last, and losses; errors count as normal."""
    from scipy.optimize import minimize, nnls

    if problem == REGRESSION:
        means = [float(part.mean()) for part in parts]
        columns = np.concatenate([part - mean for part, mean in zip(parts, means, strict=True)], axis=1)
        weights, distance = nnls(columns, truth - truth.mean())
        offset = float(truth.mean() - np.dot(weights, means))
        likelihood = 0.5 * len(truth) * math.log(max(distance**2 / len(truth), 1e-12))
        return likelihood, (*map(float, weights), offset), np.square(columns @ weights - truth + truth.mean())

    def losses(weights: Floats) -> tuple[Floats, Floats]:
        outputs = sum(weight * part for weight, part in zip(weights, parts, strict=True))
        return _losses(problem, np.asarray(outputs), truth)

    def loss(weights: Floats) -> tuple[float, Floats]:
        found, slopes = losses(weights)
        return float(found.sum()), np.array([(slopes * part).sum() for part in parts])

    start, bounds = np.full(len(parts), 1 / len(parts)), [(0.0, 20.0)] * len(parts)
    found: Any = minimize(loss, start, method="L-BFGS-B", jac=True, bounds=bounds)
    return float(found.fun), (*map(float, found.x), 0.0), losses(found.x)[0]
