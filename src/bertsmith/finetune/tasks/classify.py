"""The task of one class for a text or a pair: a new linear layer over the pooled `[CLS]` (Devlin et al. 2019, §4.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.texts import LABELLED, LabelledText, labels_of
from bertsmith.finetune.metrics.bootstrap import (
    bootstrap_interval,
    confusion_intervals,
    f1_of_means,
    macro_f1_of_counts,
    matthews_of_counts,
)
from bertsmith.finetune.metrics.calibration import (
    ClassThreshold,
    best_cut,
    calibration,
    f1_of,
    fit_temperature,
    probability_rows,
)
from bertsmith.finetune.metrics.classification import (
    accuracy,
    binary_f1,
    class_scores,
    confusion_matrix,
    macro_f1,
    matthews_correlation,
)
from bertsmith.finetune.tasks.spec import TaskSpec
from bertsmith.finetune.tasks.task import EncodedExample, Evaluation, Mistake, Record, Rows, Task, worst
from bertsmith.finetune.tasks.texts import (
    TEXT_INPUTS,
    columns_of,
    columns_of_rows,
    encode_texts,
    require_known,
    shown,
    text_card,
)
from bertsmith.inference.classify import SINGLE, Classify, Prediction
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import ModelForSequenceClassification
from bertsmith.objectives import ClassificationObjective
from bertsmith.options import option
from bertsmith.tokenizer import Tokenizer


@dataclass(frozen=True)
class ClassificationOptions:
    """What can be chosen; see the attributes of `ClassificationTask`."""

    panel: ClassVar[str] = "Options of the task"

    balanced: bool = option(False, help="Weight each class in the loss by the inverse of its frequency.")
    metric: str = option("accuracy", help="Metric on dev: accuracy, macro_f1, matthews or f1 (two classes).")


@dataclass(frozen=True)
class ClassificationTask(Task[LabelledText, Prediction]):
    """One class for each text or pair.

    Attributes:
        labels: the classes, in the order of the model's outputs.
        paired: whether the model reads pairs of texts.
        class_weights: of each class in the loss; empty for all alike.
        metric: the metric that chooses the best epoch: `accuracy`, `macro_f1`, `matthews`, or `f1_` and the second of
            two classes.
        temperature: that makes the probabilities true on dev, see `metrics.calibration`.
        positive_threshold: above which the second of two classes has the best F1 on dev; None for more classes.
    """

    labels: tuple[str, ...]
    paired: bool = False
    class_weights: tuple[float, ...] = ()
    metric: str = "accuracy"
    temperature: float = 1.0
    positive_threshold: float | None = None

    spec: ClassVar = TaskSpec(
        "classify",
        ("classification: one class of several", "分类：多个类别里选一个"),
        ModelForSequenceClassification,
        LABELLED,
        Classify,
        TEXT_INPUTS,
        text_card("assigns one label to a text", "Every text gets one of the labels, also one that none of them fits."),
        options=ClassificationOptions,
        has_baselines=True,
    )

    @classmethod
    def learned_from(cls, train: Sequence[LabelledText], options: ClassificationOptions) -> ClassificationTask:
        """Finds the classes of a training file.

        Raises:
            InputError: there is one class only.
            ConfigError: the metric is none of those that the options name.
        """
        labels = labels_of(train)
        f1s = {"f1": _f1_name(labels)} if len(labels) == 2 else {}
        known = {"accuracy": "accuracy", "macro_f1": "macro_f1", "matthews": "matthews", **f1s}
        if options.metric not in known:
            raise ConfigError(f"metric {options.metric!r} is not for {len(labels)} classes; use {', '.join(known)}")
        counts = Counter(example.label for example in train)
        weights = tuple(len(train) / (len(labels) * counts[label]) for label in labels) if options.balanced else ()
        return cls(tuple(labels), train[0].pair is not None, weights, known[options.metric])

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

    def config_fields(self) -> dict[str, Any]:
        """Returns one output for each class."""
        return {"id2label": dict(enumerate(self.labels)), "problem_type": SINGLE}

    def encode(self, tokenizer: Tokenizer, examples: Sequence[LabelledText], max_length: int) -> list[EncodedExample]:
        """Returns one sequence for each text or pair, with the number of its class."""
        return encode_texts(tokenizer, examples, self.paired, max_length, self.numbers(examples))

    @property
    def objective(self) -> ClassificationObjective:
        """Cross-entropy."""
        return ClassificationObjective(self.class_weights or None)

    def example_from(self, record: Record) -> LabelledText:
        """Returns a text with its likeliest class."""
        text, *pair = record["input"]
        return LabelledText(text, pair[0] if pair else None, record["prediction"])

    def class_of(self, example: LabelledText) -> str:
        """Returns its label."""
        return example.label

    def predict(
        self,
        model: ModelForSequenceClassification,
        tokenizer: Tokenizer,
        examples: Sequence[LabelledText],
        inference: InferenceConfig,
    ) -> list[Prediction]:
        """Classifies the texts."""
        return Classify(model, tokenizer, inference)(*columns_of(examples, self.paired))

    def calibrated(self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]) -> ClassificationTask:
        """Fits the temperature, and the threshold of the second of two classes."""
        truth, rows = np.array(self.numbers(examples)), probability_rows(predictions, self.labels)
        threshold = best_cut(truth, rows[:, 1]) if len(self.labels) == 2 else None
        return replace(self, temperature=fit_temperature(rows, truth), positive_threshold=threshold)

    def metrics(self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Returns accuracy, macro F1 and Matthews correlation; for two classes the F1 of the second as well."""
        truth, predicted = self.numbers(examples), self._predicted(predictions)
        found = {
            "accuracy": accuracy(truth, predicted),
            "macro_f1": macro_f1(truth, predicted),
            "matthews": matthews_correlation(truth, predicted),
        }
        if len(self.labels) == 2:
            found[_f1_name(self.labels)] = binary_f1(truth, predicted)
        # 起决定作用的指标排在最前：报告和模型卡都先看它
        return {self.metric: found[self.metric], **found}

    def evaluate(self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]) -> Evaluation:
        """Adds intervals, the table by class, the confusion, the calibration, and the surest wrong predictions."""
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
            self.metrics(examples, predictions),
            intervals={
                "accuracy": bootstrap_interval(np.equal(truth, predicted)),
                **confusion_intervals(confusion, statistics),
            },
            classes=dict(zip(self.labels, class_scores(truth, predicted, len(self.labels)), strict=True)),
            confusion=confusion.tolist(),
            mistakes=worst(wrong),
            calibration=calibration(probability_rows(predictions, self.labels), np.array(truth), self.temperature),
            thresholds=self._thresholds(np.array(truth), predictions),
        )

    def _thresholds(self, truth: NDArray[np.int64], predictions: Sequence[Prediction]) -> dict[str, ClassThreshold]:
        if self.positive_threshold is None:
            return {}
        sure = probability_rows(predictions, self.labels)[:, 1]
        at_half, at_own = f1_of(truth, sure > 0.5), f1_of(truth, sure > self.positive_threshold)
        return {self.labels[1]: ClassThreshold(self.positive_threshold, at_half, at_own)}

    @staticmethod
    def records(pipeline: Classify, rows: Rows) -> Iterator[Record]:
        """Yields the likeliest class, and the probability of every class."""
        for row, found in zip(rows, pipeline(*columns_of_rows(rows)), strict=True):
            probabilities = found.probabilities
            yield {
                "prediction": found.label,
                "probability": probabilities[found.label],
                "probabilities": probabilities,
                "input": row,
            }

    def check_baselines(
        self, train: Sequence[LabelledText], dev: Sequence[LabelledText], test: Sequence[LabelledText] | None
    ) -> None:
        """As in `baselines.classification.Files`."""
        from bertsmith.finetune.baselines.classification import Files

        Files(self, train, dev, test)

    def add_baselines(
        self,
        run: Path,
        train: Sequence[LabelledText],
        dev: Sequence[LabelledText],
        test: Sequence[LabelledText] | None,
        **how: Any,
    ) -> None:
        """Adds those of `baselines.classification.BASELINES`."""
        from bertsmith.finetune.baselines.classification import Files, add_baselines

        add_baselines(run, Files(self, train, dev, test), **how)

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
