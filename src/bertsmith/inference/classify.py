"""Pipelines over the pooled `[CLS]`: the class of a text or pair, its labels, or a number.

They read the same architecture; `config.problem_type` says which of them a folder is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference.checks import parts, require_fit, require_list, require_two_segments
from bertsmith.inference.engine import DEFAULT, Engine, InferenceConfig, SequenceRunner
from bertsmith.inference.precision import Precision
from bertsmith.inference.task_file import inference_config_of, paired_of, task_values
from bertsmith.model import BertForSequenceClassification, ModelConfig
from bertsmith.tokenizer import WordPieceTokenizer

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
"""The names that `config.problem_type` has in the field."""

PipelineT = TypeVar("PipelineT", bound="TextPipeline")

_PIPELINE_OF = {None: "classify", SINGLE: "classify", MULTI: "multilabel", REGRESSION: "regress"}


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


class TextScorer:
    """What the four pipelines share: how texts become sequences, and what is read of them."""

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: WordPieceTokenizer,
        inference: InferenceConfig = DEFAULT,
        *,
        paired: bool | None = None,
    ) -> None:
        """Takes what decides the sequences.

        Args:
            config: of the model.
            tokenizer: of the model.
            inference: how long a sequence may be.
            paired: whether the model was trained on pairs; None where that is not known.

        Raises:
            CheckpointError: tokenizer and model do not fit.
        """
        require_fit(tokenizer, config)
        self.config = config
        self.paired = paired
        self.labels = [config.id2label[index] for index in range(len(config.id2label))]
        self.max_length = inference.length_for(config)
        self.tokenizer = tokenizer

    def logits(self, engine: SequenceRunner, texts: Sequence[str], pairs: Sequence[str] | None) -> Tensor:
        """Returns [N, num_labels] float32; longer texts are cut.

        Raises:
            InputError: a single string was given, or the numbers of texts differ, or the model was trained on pairs and
                gets single texts, or the other way round.
            ConfigError: pairs were given, and the model knows a single segment.
        """
        require_list(texts, pairs)
        if pairs is not None:
            require_two_segments(self.config, "pairs of texts")
        # 训练时读两段、现在只给一段，照样算得出一个数，却没有意义
        if self.paired is not None and self.paired != (pairs is not None):
            trained, wanted = ("pairs of texts", "give") if self.paired else ("single texts", "leave out")
            raise InputError(f"the model was trained on {trained}; {wanted} the second texts")
        rows = [torch.empty(0, len(self.labels))]
        for part in parts(len(texts)):
            second = None if pairs is None else list(pairs[part])
            encoded = self.tokenizer(list(texts[part]), second, max_length=self.max_length)
            rows.append(engine.run(encoded["input_ids"], encoded["token_type_ids"], sequence_logits))
        return torch.cat(rows)


def sequence_logits(model: BertForSequenceClassification, batch: RaggedBatch) -> Tensor:
    """Reads [N, num_labels], the logits of each sequence."""
    logits: Tensor = model(batch)
    return logits


class TextPipeline:
    """What the three pipelines over texts or pairs of texts are alike in.

    Attributes:
        labels: the names of the outputs.
        max_length: most ids in a sequence; longer texts are cut.
    """

    task: ClassVar[str]

    def __init__(
        self,
        model: BertForSequenceClassification,
        tokenizer: WordPieceTokenizer,
        inference: InferenceConfig = DEFAULT,
        *,
        paired: bool | None = None,
    ) -> None:
        """Takes a model.

        Args:
            model: with the problem type of this pipeline.
            tokenizer: of the model.
            inference: where and how it runs.
            paired: whether it was trained on pairs, and then reads nothing else; None reads what it is given.

        Raises:
            CheckpointError: tokenizer and model do not fit.
            ConfigError: the model is for another pipeline.
        """
        _require_problem(model, self.task)
        self.scorer = TextScorer(model.config, tokenizer, inference, paired=paired)
        self.engine: SequenceRunner = Engine(model, inference)
        self.labels = self.scorer.labels
        self.max_length = self.scorer.max_length

    @classmethod
    def load(
        cls: type[PipelineT],
        folder: str | Path,
        *,
        precision: Precision | None = None,
        device: torch.device | str | None = None,
    ) -> PipelineT:
        """Loads a folder that `bertsmith finetune` has written, or any other of the same problem type."""
        told = cls._told(folder)
        model, tokenizer = BertForSequenceClassification.from_pretrained(folder), WordPieceTokenizer.load(folder)
        inference = inference_config_of(folder, precision=precision, device=device)
        return cls(model, tokenizer, inference, paired=paired_of(folder), **told)

    @classmethod
    def _told(cls, _folder: str | Path) -> dict[str, Any]:
        """Returns what else the folder says of the pipeline."""
        return {}


class Classify(TextPipeline):
    """Predicts the class of texts, or of pairs of texts."""

    task = "classify"

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
        return [
            Prediction(self.labels[int(np.argmax(row))], dict(zip(self.labels, row, strict=True)))
            for row in self.scorer.logits(self.engine, texts, pairs).softmax(-1).tolist()
        ]


class MultiLabel(TextPipeline):
    """Predicts all labels of texts, or of pairs of texts; every label is decided by itself."""

    task = "multilabel"

    def __init__(
        self,
        model: BertForSequenceClassification,
        tokenizer: WordPieceTokenizer,
        inference: InferenceConfig = DEFAULT,
        *,
        threshold: float = 0.5,
        paired: bool | None = None,
    ) -> None:
        """Takes a model as `TextPipeline` does, and how likely a label must be, in [0, 1]."""
        super().__init__(model, tokenizer, inference, paired=paired)
        if not 0.0 <= threshold <= 1.0:
            raise ConfigError(f"threshold {threshold} is outside [0, 1]")
        self.threshold = threshold

    @classmethod
    def _told(cls, folder: str | Path) -> dict[str, Any]:
        with task_values(folder) as values:
            return {"threshold": float(values.get("threshold", 0.5))}

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[LabelsPrediction]:
        """Labels texts; arguments and errors as in `Classify`."""
        return [
            LabelsPrediction(
                tuple(label for label, value in zip(self.labels, row, strict=True) if value > self.threshold),
                dict(zip(self.labels, row, strict=True)),
            )
            for row in self.scorer.logits(self.engine, texts, pairs).sigmoid().tolist()
        ]


class Regress(TextPipeline):
    """Predicts a number for texts, or for pairs of texts, such as how alike the two are."""

    task = "regress"

    def __init__(
        self,
        model: BertForSequenceClassification,
        tokenizer: WordPieceTokenizer,
        inference: InferenceConfig = DEFAULT,
        *,
        paired: bool | None = None,
    ) -> None:
        """Takes a model with one output; see `TextPipeline`."""
        super().__init__(model, tokenizer, inference, paired=paired)
        if len(self.labels) != 1:
            raise ConfigError(f"the model gives {len(self.labels)} numbers for a text; only one can be read")

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Returns [N] numbers; arguments and errors as in `Classify`."""
        return self.scorer.logits(self.engine, texts, pairs)[:, 0].double().numpy()


def _require_problem(model: BertForSequenceClassification, wanted: str) -> None:
    """Makes sure that a model's outputs mean what a pipeline takes them for."""
    problem = model.config.problem_type
    if problem not in _PIPELINE_OF:
        raise CheckpointError(f"problem_type {problem!r} of the model is none of {SINGLE}, {MULTI}, {REGRESSION}")
    found = _PIPELINE_OF[problem]
    # 单输出、未注明类型的文件夹（交叉编码器）也当作回归：一个输出做不了分类
    if problem is None and len(model.config.id2label) == 1:
        found = "regress"
    if found != wanted:
        raise ConfigError(f"the model is for the pipeline {found!r}, not {wanted!r}; ask for that one")
