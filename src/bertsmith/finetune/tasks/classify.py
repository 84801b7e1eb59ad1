"""The task of one class for a text or a pair: a new linear layer over the pooled `[CLS]` (Devlin et al. 2019, §4.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.texts import LabelledText, labels_of
from bertsmith.finetune.metrics.bootstrap import (
    bootstrap_interval,
    confusion_intervals,
    f1_of_means,
    macro_f1_of_counts,
    matthews_of_counts,
)
from bertsmith.finetune.metrics.classification import (
    accuracy,
    binary_f1,
    class_scores,
    confusion_matrix,
    macro_f1,
    matthews_correlation,
)
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.task import Evaluation, Mistake, Unit, new_model, tokens_of, worst
from bertsmith.finetune.tasks.texts import columns_of, encode_texts, require_known, shown
from bertsmith.inference.classify import SINGLE, Classify, Prediction
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import BertForSequenceClassification
from bertsmith.objectives import ClassificationObjective, LabelledBatch
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.tokenizer import WordPieceTokenizer


@dataclass(frozen=True)
class ClassificationTask:
    """One class for each text or pair.

    Attributes:
        labels: the classes, in the order of the model's outputs.
        paired: whether the model reads pairs of texts.
        class_weights: of each class in the loss; empty for all alike.
        metric: the figure that chooses the best epoch: `accuracy`, `macro_f1`, `matthews`, or `f1_` and the second of
            two classes.
    """

    labels: tuple[str, ...]
    paired: bool = False
    class_weights: tuple[float, ...] = ()
    metric: str = "accuracy"

    name: ClassVar[str] = "classify"

    @classmethod
    def of(
        cls, train: Sequence[LabelledText], *, balanced: bool = False, metric: str = "accuracy"
    ) -> ClassificationTask:
        """Finds the classes of a training file.

        Args:
            train: labelled texts.
            balanced: weigh each class by one over its frequency, so that rare ones count as much as common ones.
            metric: as in the class; `f1` stands for that of the second of two classes.

        Raises:
            InputError: there is one class only.
            ConfigError: the metric is none of these.
        """
        labels = labels_of(train)
        f1s = {"f1": _f1_name(labels)} if len(labels) == 2 else {}
        known = {"accuracy": "accuracy", "macro_f1": "macro_f1", "matthews": "matthews", **f1s}
        if metric not in known:
            raise ConfigError(f"metric {metric!r} is not for {len(labels)} classes; use {', '.join(known)}")
        counts = Counter(example.label for example in train)
        weights = tuple(len(train) / (len(labels) * counts[label]) for label in labels) if balanced else ()
        return cls(tuple(labels), train[0].pair is not None, weights, known[metric])

    def describe(self) -> dict[str, Any]:
        """Returns the labels, their weights, whether texts come in pairs, and what chooses."""
        return {
            "labels": list(self.labels),
            "paired": self.paired,
            "class_weights": list(self.class_weights),
            "metric": self.metric,
        }

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> ClassificationTask:
        """Reads what `describe` returned."""
        return cls(
            tuple(values["labels"]),
            bool(values["paired"]),
            tuple(values["class_weights"]),
            values.get("metric", cls.metric),
        )

    def check_dev(self, dev: Sequence[LabelledText]) -> None:
        """Makes sure that the dev file can tell good epochs from bad ones.

        Raises:
            InputError: the metric would be the same whatever the model says.
        """
        found = {example.label for example in dev}
        if self.metric == "matthews" and len(found) < 2:
            raise InputError("the dev file has one class only; no epoch can be chosen by matthews")
        if self.metric not in ("accuracy", "macro_f1", "matthews") and self.labels[1] not in found:
            raise InputError(f"the dev file has no text of {self.labels[1]!r}; no epoch can be chosen by {self.metric}")

    def build(self, folder: Path, settings: FineTuningSettings) -> BertForSequenceClassification:
        """Returns the encoder of a folder under a new layer with one output a class."""
        names = dict(enumerate(self.labels))
        return new_model(BertForSequenceClassification, folder, settings, id2label=names, problem_type=SINGLE)

    def load(self, folder: Path) -> BertForSequenceClassification:
        """Returns a trained classifier."""
        return BertForSequenceClassification.from_pretrained(folder)

    def encode(self, tokenizer: WordPieceTokenizer, examples: Sequence[LabelledText], max_length: int) -> list[Unit]:
        """Returns one sequence for each text or pair, with the number of its class."""
        return encode_texts(tokenizer, examples, self.paired, max_length, self.numbers(examples))

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Returns N sequences with labels [N] int64."""
        return LabelledBatch(tokens_of(units), torch.tensor([unit.label for unit in units]))

    def measure(self, model: BertForSequenceClassification, batch: LabelledBatch) -> LossOutput:
        """Returns the cross-entropy."""
        return ClassificationObjective(self.class_weights or None)(model, batch)

    def predict(
        self,
        model: BertForSequenceClassification,
        tokenizer: WordPieceTokenizer,
        examples: Sequence[LabelledText],
        inference: InferenceConfig,
    ) -> list[Prediction]:
        """Classifies the texts."""
        return Classify(model, tokenizer, inference)(*columns_of(examples, self.paired))

    def tuned(self, _examples: Sequence[LabelledText], _predictions: Sequence[Prediction]) -> ClassificationTask:
        """Returns the task itself: the likeliest class needs no threshold."""
        return self

    def figures(self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Returns accuracy, macro F1 and Matthews correlation; for two classes the F1 of the second as well."""
        truth, predicted = self.numbers(examples), self._predicted(predictions)
        figures = {
            "accuracy": accuracy(truth, predicted),
            "macro_f1": macro_f1(truth, predicted, len(self.labels)),
            "matthews": matthews_correlation(truth, predicted, len(self.labels)),
        }
        if len(self.labels) == 2:
            figures[_f1_name(self.labels)] = binary_f1(truth, predicted)
        # 起决定作用的指标排在最前：报告和模型卡都先看它
        return {self.metric: figures[self.metric], **figures}

    def evaluate(self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]) -> Evaluation:
        """Adds intervals, the table by class, the confusion matrix, and the surest wrong predictions."""
        truth, predicted = self.numbers(examples), self._predicted(predictions)
        confusion = confusion_matrix(truth, predicted, len(self.labels))
        statistics = {"macro_f1": macro_f1_of_counts, "matthews": matthews_of_counts}
        if len(self.labels) == 2:
            statistics[_f1_name(self.labels)] = _f1_of_second
        wrong = [
            Mistake(shown(example), example.label, prediction.label, prediction.probabilities[prediction.label])
            for example, prediction in zip(examples, predictions, strict=True)
            if example.label != prediction.label
        ]
        return Evaluation(
            self.figures(examples, predictions),
            intervals={
                "accuracy": bootstrap_interval(np.equal(truth, predicted)),
                **confusion_intervals(confusion, statistics),
            },
            classes=dict(zip(self.labels, class_scores(truth, predicted, len(self.labels)), strict=True)),
            confusion=confusion.tolist(),
            mistakes=worst(wrong),
        )

    def numbers(self, examples: Sequence[LabelledText]) -> list[int]:
        """Returns the number of each example's class.

        Raises:
            InputError: one has a class that the training file lacks.
        """
        require_known(examples, [(example.label,) for example in examples], self.labels)
        return [self.labels.index(example.label) for example in examples]

    def _predicted(self, predictions: Sequence[Prediction]) -> list[int]:
        return [self.labels.index(prediction.label) for prediction in predictions]


def _f1_name(labels: Sequence[str]) -> str:
    return f"f1_{labels[1]}"


def _f1_of_second(
    hits: NDArray[np.float64], predicted: NDArray[np.float64], actual: NDArray[np.float64]
) -> NDArray[np.float64]:
    return f1_of_means(np.stack([hits[:, 1], predicted[:, 1], actual[:, 1]], 1))
