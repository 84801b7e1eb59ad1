"""The task of a number for a text or a pair, such as how alike two sentences are (Devlin et al. 2019, §4.1, STS-B)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.texts import SCORED, ScoredText, shown
from bertsmith.finetune.metrics import bootstrap_interval, correlation_columns, correlation_of_means
from bertsmith.finetune.metrics.ranking import pearson, spearman
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.classify import TEXT_INPUTS, TextTask, text_card
from bertsmith.finetune.tasks.task import (
    SAME_SCORES,
    Evaluation,
    Mistake,
    NoOptions,
    Record,
    Task,
    TaskSpec,
    alike,
    last_layer,
    worst,
)
from bertsmith.inference.classify import REGRESSION, Regress
from bertsmith.model import ModelForSequenceClassification, PretrainedModel
from bertsmith.objectives import RegressionObjective


@dataclass(frozen=True)
class RegressionTask(TextTask[ScoredText, float]):
    """A number for each text or pair, learned as its distance from `mean` in units of `spread` (standard deviation)."""

    mean: float = 0.0
    paired: bool = False
    spread: float = 1.0

    example: ClassVar = ScoredText
    truth: ClassVar = "score"
    labels = ("score",)
    problem_type: ClassVar = REGRESSION
    objective: ClassVar = RegressionObjective()
    """Mean squared error, in units of the spread: guessing the mean gives 1."""
    spec: ClassVar = TaskSpec(
        "regress",
        ("a number", "回归：给出一个数"),
        ModelForSequenceClassification,
        SCORED,
        Regress,
        TEXT_INPUTS,
        text_card(
            "gives a text a number",
            "The numbers are on the scale of the training file and are not held to its range.",
            call=', function_to_apply="none"',
        ),
        predicts_number=True,
    )
    metric: ClassVar[str] = "pearson"

    @classmethod
    def learned_from(cls, train: Sequence[ScoredText], _options: NoOptions) -> RegressionTask:
        """Measures the numbers of a training file."""
        scores = np.array([example.score for example in train])
        # 相同的小数，标准差未必正好是 0
        if len(set(scores.tolist())) < 2:
            raise InputError("the training file's scores are all the same; there is nothing to learn")
        mean, spread = float(scores.mean()), float(scores.std())
        # 模型算的是单精度：离散程度比均值小得太多的数，它分不清
        if not 1e-5 * abs(mean) < spread:
            raise InputError(
                f"the training file's scores lie too close together to be learned ({mean:g} give or take {spread:.1g});"
                f" subtract {mean:g} from all"
            )
        return cls(mean, train[0].pair is not None, spread)

    def selection_score(self, metrics: dict[str, float]) -> float:
        """Returns Pearson's correlation to three digits, and below them how small the error is."""
        # 相关系数不看尺度：输出全挤在均值附近也能接近 1，所以千分位上持平的几轮里，取误差最小的
        return round(metrics["pearson"], 3) + 4e-4 / (1 + metrics["rmse"] / self.spread)

    def weighed_score(
        self, examples: Sequence[ScoredText], predictions: Sequence[float], weights: Sequence[float]
    ) -> float:
        """Returns it from the moments of weighed examples."""
        truth, found = np.array([example.score for example in examples]), np.array(predictions)
        covariance = np.cov(truth, found, bias=True, aweights=weights)
        scale = math.sqrt(covariance[0, 0] * covariance[1, 1])
        error = math.sqrt(np.average((truth - found) ** 2, weights=weights))
        return self.selection_score({"pearson": covariance[0, 1] / scale if scale else 0.0, "rmse": error})

    def blind_to(self, examples: Sequence[ScoredText]) -> list[str]:
        """Says where there is nothing to correlate with."""
        return alike((example.score for example in examples), SAME_SCORES)

    def targets(self, examples: Sequence[ScoredText]) -> list[float]:
        """Returns the number of each example in units of the spread, from the mean."""
        # 目标先标准化：否则 AdamW 每步至多挪一个学习率，永远够不到上千的数，梯度也步步被截断
        return [(example.score - self.mean) / self.spread for example in examples]

    def build(self, folder: Path, settings: FineTuningSettings) -> PretrainedModel:
        """Returns a model to train; a head that is kept gives numbers like those of its file, and learns these here."""
        model = super().build(folder, settings)
        if not self.fresh_because(folder, settings):
            last = last_layer(model)
            with torch.no_grad():
                last.weight.div_(self.spread)
                last.bias.sub_(self.mean).div_(self.spread)
        return model

    @contextmanager
    def on_scale(self, model: PretrainedModel) -> Iterator[None]:
        """Folds spread and mean into the last layer, so that it gives scores; afterwards restores it bit for bit."""
        weight, bias = last_layer(model).weight, last_layer(model).bias
        learned = [parameter.detach().clone() for parameter in (weight, bias)]
        with torch.no_grad():
            weight.mul_(self.spread)
            bias.mul_(self.spread).add_(self.mean)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, before in zip((weight, bias), learned, strict=True):
                    parameter.copy_(before)

    def from_teacher(self, teacher: Task[Any, Any], rows: Tensor) -> Tensor:  # noqa: ARG002
        """Returns the teacher's numbers, which are like those of its file, in units of the spread."""
        return (rows - self.mean) / self.spread

    def metrics(self, examples: Sequence[ScoredText], predictions: Sequence[float]) -> dict[str, float]:
        """Returns Pearson's and Spearman's correlation, and the root of the mean squared error."""
        truth = [example.score for example in examples]
        return {
            "pearson": pearson(truth, predictions),
            "spearman": spearman(truth, predictions),
            "rmse": float(np.sqrt(np.mean(np.subtract(truth, predictions) ** 2))),
        }

    def evaluate(self, examples: Sequence[ScoredText], predictions: Sequence[float]) -> Evaluation:
        """Adds the interval of the correlation, and the predictions that are farthest off."""
        truth = np.array([example.score for example in examples])
        distances = np.abs(truth - np.array(predictions))
        mistakes = [
            Mistake(shown(example), f"{example.score:g}", f"{predicted:.3g}", float(distance))
            for example, predicted, distance in zip(examples, predictions, distances, strict=True)
        ]
        return Evaluation(
            self.metrics(examples, predictions),
            intervals={"pearson": bootstrap_interval(correlation_columns(truth, predictions), correlation_of_means)},
            mistakes=worst(mistakes),
        )

    @staticmethod
    def record(found: float) -> Record:
        """Returns the number."""
        return {"prediction": float(found)}
