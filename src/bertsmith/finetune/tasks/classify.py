"""The tasks of one class (Devlin et al. 2019, §4.1), or of any number of labels, for a text or a pair.

A new linear layer over the pooled `[CLS]` decides: one class by a softmax, several labels each by its own sigmoid.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.texts import (
    LABELLED,
    MULTILABELLED,
    LabelledText,
    MultiLabelledText,
    TextOrPair,
    labels_of,
    require_known,
    shown,
)
from bertsmith.finetune.metrics import (
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
    Weights,
    class_counts,
    class_metrics,
    class_scores,
    confusion_matrix,
    label_scores,
    multilabel_metrics,
    without_matrix,
)
from bertsmith.finetune.tasks.task import (
    CardText,
    Evaluation,
    InputFields,
    Mistake,
    NoOptions,
    PredictionT,
    Record,
    Rows,
    TaskSpec,
    WordsTask,
    alike,
    worst,
)
from bertsmith.inference.classify import MULTI, SINGLE, Classify, LabelsPrediction, MultiLabel, Prediction
from bertsmith.model import ModelForSequenceClassification
from bertsmith.objectives import ClassificationObjective, MultiLabelObjective
from bertsmith.settings import Checked, option

TEXT_INPUTS = InputFields(("Text", "文本"), most=2, pairs=True)
TextT = TypeVar("TextT", bound=TextOrPair)


def text_card(does: str, limit: str, *, arguments: str = "", call: str = "") -> CardText:
    """Returns what the card of a model over texts or pairs says."""
    made = f'from transformers import pipeline\n\npipeline("text-classification", "FOLDER"{arguments})'
    return CardText(
        "text-classification",
        does,
        limit,
        ours=('(["first text", "second text"])', '(["first text"], ["what it is compared with"])'),
        theirs=(f'{made}("first text"{call})', f'{made}({{"text": "first text", "text_pair": "second text"}}{call})'),
    )


class TextTask(WordsTask[TextT, PredictionT]):
    """What the tasks over a text or a pair share; a field `paired` says which of the two the model reads."""

    example: ClassVar[type[TextOrPair]]
    truth: ClassVar[str]
    """What of an example is predicted."""
    paired: bool

    @staticmethod
    @abstractmethod
    def record(found: Any) -> Record:
        """Returns a result of the pipeline as a record, without its input."""

    def predicted(self, pipeline: Any, examples: Sequence[TextT]) -> list[PredictionT]:
        """Returns what the pipeline says of each text or pair."""
        return list(pipeline(*self.columns(examples)))

    def columns(self, examples: Sequence[TextT]) -> tuple[list[str], list[str] | None]:
        """Returns all texts, and all second texts where the task reads pairs."""
        other = next((example for example in examples if (example.pair is not None) != self.paired), None)
        if other is not None:
            wanted, found = ("pairs of texts", "a single text") if self.paired else ("single texts", "a pair of texts")
            raise InputError(f"{other.at}{found}, and the model reads {wanted}; name the columns to read")
        return [one.text for one in examples], [one.pair or "" for one in examples] if self.paired else None

    def told(self, pipeline: Any, outputs: Tensor, _examples: Sequence[TextT]) -> list[PredictionT]:
        """Returns what the pipeline makes of outputs."""
        return list(pipeline.told(outputs))

    def shown(self, examples: Sequence[TextT]) -> list[tuple[str, str]]:
        """Returns each text or pair."""
        return [(shown(one), str(getattr(one, self.truth))) for one in examples]

    def said(self, pipeline: Any, outputs: Tensor) -> list[str]:
        """Returns what is predicted for each text."""
        return [str(self.record(found)["prediction"]) for found in pipeline.told(outputs)]

    def example_from(self, record: Record) -> TextT:
        """Returns a text with what a teacher says of it."""
        text, *pair = record["input"]
        made: Any = self.example
        found: TextT = made(text, pair[0] if pair else None, record.get("labels", record["prediction"]))
        return found

    @classmethod
    def records(cls, pipeline: Any, rows: Rows) -> Iterator[Record]:
        """Yields the results of the pipeline."""
        seconds = [row[1] for row in rows] if len(rows[0]) > 1 else None
        for row, found in zip(rows, pipeline([row[0] for row in rows], seconds), strict=True):
            yield {**cls.record(found), "input": row}


@dataclass(frozen=True)
class ClassificationOptions(Checked):
    """What can be chosen; see the attributes of `ClassificationTask`."""

    panel: ClassVar[str] = "Options of the task"

    balanced: bool = option(False, help="Weight each class in the loss by the inverse of its frequency.")
    metric: str = option("accuracy", help="Metric on dev: accuracy, macro_f1, matthews or f1 (two classes).")


@dataclass(frozen=True)
class ClassificationTask(TextTask[LabelledText, Prediction]):
    """One class for each text or pair.

    Attributes:
        labels: the classes, in the order of the model's outputs.
        class_weights: of each class in the loss; empty for all alike.
        metric: chooses the best epoch: `accuracy`, `macro_f1`, `matthews`, or `f1_` and the second of two classes.
        temperature: that makes the probabilities true on dev, see `metrics.calibration`.
        positive_threshold: above which the second of two classes has the best F1 on dev; None for more classes.
    """

    labels: tuple[str, ...]
    paired: bool = False
    class_weights: tuple[float, ...] = ()
    metric: str = "accuracy"
    temperature: float = 1.0
    positive_threshold: float | None = None

    example: ClassVar = LabelledText
    truth: ClassVar = "label"
    problem_type: ClassVar = SINGLE
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
        """Finds the classes of a training file."""
        labels = labels_of(train)
        f1s = {"f1": _f1_name(labels)} if len(labels) == 2 else {}
        known = {"accuracy": "accuracy", "macro_f1": "macro_f1", "matthews": "matthews", **f1s}
        if options.metric not in known:
            raise ConfigError(f"metric {options.metric!r} is not for {len(labels)} classes; use {', '.join(known)}")
        counts = Counter(example.label for example in train)
        weights = tuple(len(train) / (len(labels) * counts[label]) for label in labels) if options.balanced else ()
        return cls(tuple(labels), train[0].pair is not None, weights, known[options.metric])

    def blind_to(self, examples: Sequence[LabelledText]) -> list[str]:
        """Says where a correlation, or the F1 of a class, is of nothing."""
        found = {example.label for example in examples}
        if self.metric == "matthews" and len(found) < 2:
            return ["it has one class only"]
        is_f1 = self.metric not in ("accuracy", "macro_f1", "matthews")
        return [f"it has no text of {self.labels[1]!r}"] if is_f1 and self.labels[1] not in found else []

    @property
    def objective(self) -> ClassificationObjective:
        """Cross-entropy."""
        return ClassificationObjective(self.class_weights or None)

    def classes_of(self, example: LabelledText) -> tuple[str, ...]:
        """Returns its label."""
        return (example.label,)

    def targets(self, examples: Sequence[LabelledText]) -> list[int]:
        """Returns the number of each example's class."""
        require_known(examples, self.labels)
        return self._numbers(examples)

    def cautions(self, examples: Sequence[LabelledText]) -> list[str]:
        """Says besides where there is one class only, and where there are too many for a confusion matrix."""
        one = alike((example.label for example in examples), "all are {!r}: the figures say nothing of other classes")
        return [*super().cautions(examples), *one, *without_matrix(len(self.labels))]

    def calibrated(self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]) -> ClassificationTask:
        """Fits the temperature, and the threshold of the second of two classes."""
        truth, rows = np.array(self.targets(examples)), probability_rows(predictions, self.labels)
        threshold = best_cut(truth, rows[:, 1]) if len(self.labels) == 2 else None
        return replace(self, temperature=fit_temperature(rows, truth), positive_threshold=threshold)

    def weighed_score(
        self, examples: Sequence[LabelledText], predictions: Sequence[Prediction], weights: Sequence[float]
    ) -> float:
        """Returns the metric over weighed counts."""
        return self.selection_score(self.metrics(examples, predictions, weights))

    def metrics(
        self, examples: Sequence[LabelledText], predictions: Sequence[Prediction], weights: Weights = None
    ) -> dict[str, float]:
        """Returns accuracy, macro F1 and Matthews correlation; for two classes the F1 of the second as well."""
        truth, predicted = self.targets(examples), self._numbers(predictions)
        counts = class_counts(truth, predicted, len(self.labels), weights)
        found = class_metrics(*counts)
        if len(self.labels) == 2:
            found[_f1_name(self.labels)] = float(_f1_of_second(*counts)[0])
        # 起决定作用的指标排在最前：报告和模型卡都先看它
        return {self.metric: found[self.metric], **found}

    def evaluate(self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]) -> Evaluation:
        """Adds intervals, the table by class, the confusion, the calibration, and the surest wrong predictions."""
        truth, rows = np.array(self.targets(examples)), probability_rows(predictions, self.labels)
        predicted = self._numbers(predictions)
        statistics = {"macro_f1": macro_f1_of_counts, "matthews": matthews_of_counts}
        thresholds = {}
        if len(self.labels) == 2:
            statistics[_f1_name(self.labels)] = _f1_of_second
        if (own := self.positive_threshold) is not None:
            scores = (f1_of(truth, rows[:, 1] > least) for least in (0.5, own))
            thresholds = {self.labels[1]: ClassThreshold(own, *scores)}
        return Evaluation(
            self.metrics(examples, predictions),
            intervals={
                "accuracy": bootstrap_interval(np.equal(truth, predicted)),
                **confusion_intervals(truth, predicted, len(self.labels), statistics),
            },
            classes=dict(zip(self.labels, class_scores(truth.tolist(), predicted, len(self.labels)), strict=True)),
            confusion=confusion_matrix(truth.tolist(), predicted, len(self.labels)),
            mistakes=worst(
                [
                    Mistake(shown(example), example.label, guess.label, guess.probabilities[guess.label])
                    for example, guess in zip(examples, predictions, strict=True)
                    if example.label != guess.label
                ]
            ),
            calibration=calibration(rows, truth, self.temperature),
            thresholds=thresholds,
        )

    @staticmethod
    def record(found: Prediction) -> Record:
        """Returns the likeliest class, and the probability of every class."""
        sure = found.probabilities
        return {"prediction": found.label, "probability": sure[found.label], "probabilities": sure}

    def _numbers(self, labelled: Sequence[LabelledText | Prediction]) -> list[int]:
        place = {label: number for number, label in enumerate(self.labels)}
        return [place[one.label] for one in labelled]


def _f1_name(labels: Sequence[str]) -> str:
    return f"f1_{labels[1]}"


def _f1_of_second(
    hits: NDArray[np.float64], predicted: NDArray[np.float64], actual: NDArray[np.float64]
) -> NDArray[np.float64]:
    return f1_of_means(np.stack([hits[:, 1], predicted[:, 1], actual[:, 1]], 1))


@dataclass(frozen=True)
class MultiLabelTask(TextTask[MultiLabelledText, LabelsPrediction]):
    """Any number of labels for each text or pair.

    Attributes:
        labels: all of them, in the order of the model's outputs.
        temperature: that makes the probabilities true on dev, see `metrics.calibration`.
        thresholds: of each label, with the best F1 on dev; empty before the end of a run.
    """

    labels: tuple[str, ...]
    paired: bool = False
    threshold: float = 0.5
    temperature: float = 1.0
    thresholds: tuple[float, ...] = ()

    example: ClassVar = MultiLabelledText
    truth: ClassVar = "labels"
    problem_type: ClassVar = MULTI
    objective: ClassVar = MultiLabelObjective()
    spec: ClassVar = TaskSpec(
        "multilabel",
        ("labels, any number of them", "多标签：可以有任意多个"),
        ModelForSequenceClassification,
        MULTILABELLED,
        MultiLabel,
        TEXT_INPUTS,
        text_card(
            "decides for each label whether a text has it",
            "It knows the labels below and no others.",
            arguments=", top_k=None",
        ),
    )
    metric: ClassVar[str] = "micro_f1"

    @classmethod
    def learned_from(cls, train: Sequence[MultiLabelledText], _options: NoOptions) -> MultiLabelTask:
        """Finds the labels of a training file."""
        return cls(tuple(labels_of(train)), train[0].pair is not None)

    def classes_of(self, example: MultiLabelledText) -> tuple[str, ...]:
        """Returns its labels."""
        return example.labels

    def blind_to(self, examples: Sequence[MultiLabelledText]) -> list[str]:
        """Says where there is no label to find."""
        return [] if any(example.labels for example in examples) else ["no text has a label"]

    def cautions(self, examples: Sequence[MultiLabelledText]) -> list[str]:
        """Says besides where all have the same labels."""
        same = alike((one.labels for one in examples), "all have the same labels: the figures say nothing of others")
        return [*super().cautions(examples), *same]

    def targets(self, examples: Sequence[MultiLabelledText]) -> list[list[int]]:
        """Returns a 0 or 1 for each label of each example."""
        indicators: list[list[int]] = self._indicators(examples).tolist()
        return indicators

    def with_best_threshold(
        self, examples: Sequence[MultiLabelledText], predictions: Sequence[LabelsPrediction]
    ) -> MultiLabelTask:
        """Returns the task with the threshold that gives the best micro F1, the one nearest 0.5 of equals."""
        return replace(self, threshold=best_cut(self._indicators(examples), probability_rows(predictions, self.labels)))

    def calibrated(
        self, examples: Sequence[MultiLabelledText], predictions: Sequence[LabelsPrediction]
    ) -> MultiLabelTask:
        """Fits the temperature, and a threshold for each label; one that dev never has keeps that of all."""
        truth, rows = self._indicators(examples), probability_rows(predictions, self.labels)
        columns = zip(truth.T, rows.T, strict=True)
        thresholds = tuple(best_cut(true, sure, self.threshold) for true, sure in columns)
        return replace(self, temperature=fit_temperature(rows, truth), thresholds=thresholds)

    def metrics(
        self, examples: Sequence[MultiLabelledText], predictions: Sequence[LabelsPrediction]
    ) -> dict[str, float]:
        """Returns micro F1, macro F1, and the share of texts whose labels are all right."""
        decided = probability_rows(predictions, self.labels) > self.threshold
        return multilabel_metrics(self._indicators(examples), decided)

    def evaluate(self, examples: Sequence[MultiLabelledText], predictions: Sequence[LabelsPrediction]) -> Evaluation:
        """Adds intervals, the table by label, and the texts with the least likely true labels."""
        truth, probabilities = self._indicators(examples), probability_rows(predictions, self.labels)
        decided = (probabilities > self.threshold).astype(np.int64)
        right = (truth == decided).all(1)
        # 一条文本有多错：最没把握的那个判断离真值的距离
        distances = np.abs(truth - probabilities).max(1)
        wrong = [
            Mistake(
                shown(examples[row]),
                ", ".join(examples[row].labels),
                ", ".join(itertools.compress(self.labels, decided[row])),
                float(distances[row]),
            )
            for row in np.flatnonzero(~right).tolist()
        ]
        counts = np.stack([(truth * decided).sum(1), decided.sum(1), truth.sum(1)], 1)
        return Evaluation(
            self.metrics(examples, predictions),
            intervals={"micro_f1": bootstrap_interval(counts, f1_of_means), "exact_match": bootstrap_interval(right)},
            classes=dict(zip(self.labels, label_scores(truth, decided), strict=True)),
            mistakes=worst(wrong),
            calibration=calibration(probabilities, truth, self.temperature),
            thresholds={
                label: ClassThreshold(own, f1_of(true, sure > self.threshold), f1_of(true, sure > own))
                for label, own, true, sure in zip(self.labels, self.thresholds, truth.T, probabilities.T, strict=False)
            },
        )

    @staticmethod
    def record(found: LabelsPrediction) -> Record:
        """Returns the labels that are likelier than the threshold, and the probability of every label."""
        labels = found.labels
        return {"prediction": ",".join(labels), "labels": labels, "probabilities": found.probabilities}

    def _indicators(self, examples: Sequence[MultiLabelledText]) -> NDArray[np.int64]:
        require_known(examples, self.labels)
        place = {label: number for number, label in enumerate(self.labels)}
        table = np.zeros((len(examples), len(self.labels)), dtype=np.int64)
        for row, example in zip(table, examples, strict=True):
            row[[place[label] for label in example.labels]] = 1
        return table
