"""The parts that need no encoder, for every task whose outputs can be added up: the majority, and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from bertsmith.errors import ConfigError
from bertsmith.finetune.chain import train_chain
from bertsmith.finetune.linear import Fit
from bertsmith.finetune.spans import train_spans
from bertsmith.finetune.tasks.answer import AnsweringTask
from bertsmith.finetune.tasks.choose import ChoiceTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.finetune.tasks.task import AdditiveTask, WordsTask
from bertsmith.finetune.words import train_words
from bertsmith.inference.chain import Chain
from bertsmith.inference.linear import LinearModel
from bertsmith.inference.words import Words


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
