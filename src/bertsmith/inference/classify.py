"""Pipelines over the pooled `[CLS]`: the class of a text or pair, its labels, or a number.

They read the same architecture; `config.problem_type` says which of them a folder is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference.checks import parts, require_list, require_pairs
from bertsmith.inference.engine import DEFAULT, InferenceConfig
from bertsmith.inference.pipeline import Pipeline, label_names
from bertsmith.inference.task_file import TaskFile
from bertsmith.model import ModelConfig, ModelForSequenceClassification
from bertsmith.tokenizer import Tokenizer

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
"""The names that `config.problem_type` has in the field."""

_PIPELINE_OF = {SINGLE: "classify", MULTI: "multilabel", REGRESSION: "regress"}


@dataclass(frozen=True)
class Prediction:
    """The likeliest class of a text, and the probability of every class; they add up to 1."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class LabelsPrediction:
    """All labels of a text that are likelier than the threshold, and the probability of every label by itself."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]


@dataclass(frozen=True)
class TextSettings(TaskFile):
    """What `task.json` tells a pipeline over texts or pairs.

    Attributes:
        paired: whether the model was trained on pairs; None where that is not known.
    """

    paired: bool | None = None


@dataclass(frozen=True)
class ClassSettings(TextSettings):
    """What `task.json` tells `Classify`.

    Attributes:
        temperature: by which logits are divided where true probabilities are asked for; positive.
        positive_threshold: for two classes, how likely the second must be where thresholds are asked for.
    """

    temperature: float = 1.0
    positive_threshold: float | None = None


class TextPipeline(Pipeline):
    """What the pipelines over texts or pairs of texts share: what they take, and what the model's outputs must mean.

    Attributes:
        problem_type: what `config.problem_type` says of such a model.
        paired: whether the model was trained on pairs; None where that is not known.
    """

    architectures = (ModelForSequenceClassification,)
    settings: ClassVar[type[TaskFile]] = TextSettings
    endpoints = ("/predict",)
    problem_type: ClassVar[str]

    labels: list[str]

    def __init__(
        self,
        model: ModelForSequenceClassification,
        tokenizer: Tokenizer,
        inference: InferenceConfig = DEFAULT,
        *,
        paired: bool | None = None,
    ) -> None:
        """Takes a model whose `problem_type` is one of the pipeline's.

        Args:
            model: a sequence classifier.
            tokenizer: of the model.
            inference: where and how.
            paired: as in the class.

        Raises:
            CheckpointError: tokenizer and model do not fit, or the problem type is unknown.
            ConfigError: the model is for another pipeline.
        """
        self.require_problem(model.config)
        super().__init__(model, tokenizer, inference)
        self.labels = label_names(model.config)
        self.paired = paired

    @classmethod
    def is_for(cls, architecture: str, config: ModelConfig) -> bool:
        """Tells by the problem type whether the outputs of a folder mean what this pipeline takes them for."""
        if config.problem_type in (MULTI, REGRESSION):
            return super().is_for(architecture, config) and config.problem_type == cls.problem_type
        # 只有一个输出、又没有注明类型的，是交叉编码器，归 `rank`
        is_classifier = cls.problem_type == SINGLE and len(config.id2label) != 1
        return super().is_for(architecture, config) and is_classifier

    @classmethod
    def require_problem(cls, config: ModelConfig) -> None:
        """Makes sure that a model's outputs mean what the pipeline takes them for.

        Raises:
            CheckpointError: the problem type is unknown.
            ConfigError: the model is for another pipeline.
        """
        problem = config.problem_type
        if problem is None:
            # 单输出、未注明类型的文件夹（交叉编码器）也当作回归：一个输出做不了分类
            problem = REGRESSION if len(config.id2label) == 1 else SINGLE
        if problem not in _PIPELINE_OF:
            raise CheckpointError(f"problem_type {problem!r} of the model is none of {', '.join(_PIPELINE_OF)}")
        if problem != cls.problem_type:
            raise ConfigError(
                f"the model is for the pipeline {_PIPELINE_OF[problem]!r}, not {cls.name!r}; ask for that one"
            )

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Tensor:
        """Returns [N, num_labels] float32; longer texts are cut.

        Raises:
            InputError: a single string was given, or the numbers of texts differ, or the model was trained on pairs and
                gets single texts, or the other way round.
            ConfigError: pairs were given, and the model knows a single segment.
        """
        require_list(texts, pairs)
        if pairs is not None:
            require_pairs(self.config, "pairs of texts")
        # 训练时读两段、现在只给一段，照样算得出一个数，却没有意义
        if self.paired is not None and self.paired != (pairs is not None):
            trained, wanted = ("pairs of texts", "give") if self.paired else ("single texts", "leave out")
            raise InputError(f"the model was trained on {trained}; {wanted} the second texts")
        return sequence_logits(self, texts, pairs)

    def smallest_input(self) -> tuple[Any, ...]:
        """Returns a text, or a pair where the model was trained on pairs."""
        return (["a"], ["a"]) if self.paired else (["a"],)


class Classify(TextPipeline, name="classify"):
    """Predicts the class of texts, or of pairs of texts.

    Attributes:
        temperature: as in `ClassSettings`.
        positive_threshold: as in `ClassSettings`.
        is_calibrated: probabilities are given at the temperature that fine-tuning found; may be set.
        uses_thresholds: the second of two classes is decided by its threshold; may be set.
    """

    problem_type = SINGLE
    settings = ClassSettings
    is_calibrated = False
    uses_thresholds = False

    def __init__(
        self,
        model: ModelForSequenceClassification,
        tokenizer: Tokenizer,
        inference: InferenceConfig = DEFAULT,
        *,
        paired: bool | None = None,
        temperature: float = 1.0,
        positive_threshold: float | None = None,
    ) -> None:
        """Takes a model as `TextPipeline` does, and what `ClassSettings` has."""
        super().__init__(model, tokenizer, inference, paired=paired)
        self.temperature, self.positive_threshold = checked_temperature(temperature), positive_threshold

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Prediction]:
        """Classifies texts; longer ones are cut to what the model reads.

        Args:
            texts: N texts.
            pairs: N second texts, where the classifier was trained on pairs.

        Returns:
            N predictions in the same order.

        Raises:
            InputError: a single string was given, the numbers of texts differ, or the model was trained on pairs and
                gets single texts, or the other way round.
            ConfigError: pairs were given, and the model knows a single segment.
        """
        logits = self.logits(texts, pairs)
        best = logits.argmax(-1)
        if self.uses_thresholds:
            if self.positive_threshold is None:
                raise ConfigError("the folder has no threshold of a class; only a model of two classes has one")
            # 阈值是在原来的概率上找的：温度只改说法，不改判断
            best = (logits.softmax(-1)[:, 1] > self.positive_threshold).long()
        rows = (logits / (self.temperature if self.is_calibrated else 1.0)).softmax(-1).tolist()
        return [
            Prediction(self.labels[place], dict(zip(self.labels, row, strict=True)))
            for place, row in zip(best.tolist(), rows, strict=True)
        ]


@dataclass(frozen=True)
class LabelSettings(TextSettings):
    """What `task.json` tells `MultiLabel`.

    Attributes:
        threshold: how likely a label must be, in [0, 1].
        temperature: by which logits are divided where true probabilities are asked for; positive.
        thresholds: how likely each label must be where thresholds of their own are asked for; empty for none.
    """

    threshold: float = 0.5
    temperature: float = 1.0
    thresholds: tuple[float, ...] = ()


class MultiLabel(TextPipeline, name="multilabel"):
    """Predicts all labels of texts, or of pairs of texts; every label is decided by itself.

    Attributes:
        is_calibrated: probabilities are given at the temperature that fine-tuning found; may be set.
        uses_thresholds: every label is decided by the threshold that fine-tuning found for it; may be set.
    """

    problem_type = MULTI
    settings = LabelSettings
    is_calibrated = False
    uses_thresholds = False

    def __init__(
        self,
        model: ModelForSequenceClassification,
        tokenizer: Tokenizer,
        inference: InferenceConfig = DEFAULT,
        *,
        threshold: float = 0.5,
        paired: bool | None = None,
        temperature: float = 1.0,
        thresholds: Sequence[float] = (),
    ) -> None:
        """Takes a model as `TextPipeline` does, and what `LabelSettings` has."""
        super().__init__(model, tokenizer, inference, paired=paired)
        if not 0.0 <= threshold <= 1.0:
            raise ConfigError(f"threshold {threshold} is outside [0, 1]")
        self.threshold, self.temperature = threshold, checked_temperature(temperature)
        self.thresholds = tuple(thresholds)
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise ConfigError(f"{len(self.thresholds)} thresholds for {len(self.labels)} labels; fine-tune again")

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[LabelsPrediction]:
        """Labels texts; arguments and errors as in `Classify`."""
        if self.uses_thresholds and not self.thresholds:
            raise ConfigError("the folder has no thresholds of its labels; fine-tune again to get them")
        least = self.thresholds if self.uses_thresholds else (self.threshold,) * len(self.labels)
        logits = self.logits(texts, pairs)
        shown = (logits / (self.temperature if self.is_calibrated else 1.0)).sigmoid().tolist()
        return [
            LabelsPrediction(
                tuple(label for label, value, cut in zip(self.labels, row, least, strict=True) if value > cut),
                dict(zip(self.labels, told, strict=True)),
            )
            for row, told in zip(logits.sigmoid().tolist(), shown, strict=True)
        ]


class Regress(TextPipeline, name="regress"):
    """Predicts a number for texts, or for pairs of texts, such as how alike the two are."""

    problem_type = REGRESSION

    def __init__(
        self,
        model: ModelForSequenceClassification,
        tokenizer: Tokenizer,
        inference: InferenceConfig = DEFAULT,
        *,
        paired: bool | None = None,
    ) -> None:
        """Takes a model with one output, as `TextPipeline` does."""
        super().__init__(model, tokenizer, inference, paired=paired)
        if len(self.labels) != 1:
            raise ConfigError(f"the model gives {len(self.labels)} numbers for a text; only one can be read")

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Returns [N] numbers; arguments and errors as in `Classify`."""
        return self.logits(texts, pairs)[:, 0].double().numpy()


def checked_temperature(temperature: float) -> float:
    """Returns a temperature.

    Raises:
        ConfigError: it is not positive.
    """
    if not 0.0 < temperature < float("inf"):
        raise ConfigError(f"temperature {temperature} must be positive")
    return temperature


def sequence_logits(pipeline: Pipeline, texts: Sequence[str], pairs: Sequence[str] | None) -> Tensor:
    """Returns [N, num_labels] float32, the logits of N texts or pairs; longer ones are cut."""
    rows = [torch.empty(0, len(pipeline.config.id2label))]
    for part in parts(len(texts)):
        second = None if pairs is None else list(pairs[part])
        encoded = pipeline.tokenizer(list(texts[part]), second, max_length=pipeline.max_length)
        rows.append(pipeline.engine.run(encoded["input_ids"], encoded["token_type_ids"], read_logits))
    return torch.cat(rows)


def read_logits(model: ModelForSequenceClassification, batch: RaggedBatch) -> Tensor:
    """Reads [N, num_labels], the logits of each sequence of a batch."""
    logits: Tensor = model(batch)
    return logits
