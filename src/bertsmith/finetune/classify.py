"""The tasks over whole texts and pairs: one class, several labels, a number (Devlin et al. 2019, §4.1).

All train one new linear layer over the pooled `[CLS]`, and everything below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.finetune.bootstrap import (
    bootstrap_interval,
    correlation_columns,
    correlation_of_means,
    f1_of_means,
)
from bertsmith.finetune.metrics import (
    accuracy,
    class_scores,
    confusion_matrix,
    matthews_correlation,
    multilabel_scores,
    pearson,
    spearman,
)
from bertsmith.finetune.readers import LabelledText, MultiLabelledText, ScoredText, labels_of
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.task import Evaluation, Mistake, Unit, new_model
from bertsmith.inference.classify import (
    MULTI,
    REGRESSION,
    SINGLE,
    Classify,
    LabelsPrediction,
    MultiLabel,
    Prediction,
    Regress,
)
from bertsmith.inference.engine import RunsOn
from bertsmith.model import BertForSequenceClassification
from bertsmith.objectives import ClassificationObjective, LabelledBatch, MultiLabelObjective, RegressionObjective
from bertsmith.objectives.measure import Measure
from bertsmith.tokenizer import WordPieceTokenizer

SHOWN_MISTAKES = 20


@dataclass(frozen=True)
class ClassificationTask:
    """One class for each text or pair.

    Attributes:
        labels: the classes, in the order of the model's outputs.
        paired: whether the model reads pairs of texts.
        class_weights: of each class in the loss; empty for all alike.
    """

    labels: tuple[str, ...]
    paired: bool = False
    class_weights: tuple[float, ...] = ()

    name: ClassVar[str] = "classify"
    metric: ClassVar[str] = "accuracy"

    @classmethod
    def of(cls, train: Sequence[LabelledText], *, balanced: bool = False) -> ClassificationTask:
        """Finds the classes of a training file.

        Args:
            train: labelled texts.
            balanced: weigh each class by one over its frequency, so that rare ones count as much as common ones.

        Raises:
            InputError: there is one class only.
        """
        labels = labels_of(train)
        paired = train[0].pair is not None
        if not balanced:
            return cls(tuple(labels), paired)
        counts = {label: sum(example.label == label for example in train) for label in labels}
        return cls(tuple(labels), paired, tuple(len(train) / (len(labels) * counts[label]) for label in labels))

    def describe(self) -> dict[str, Any]:
        """Returns the labels, their weights, and whether texts come in pairs."""
        return {"labels": list(self.labels), "paired": self.paired, "class_weights": list(self.class_weights)}

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> ClassificationTask:
        """Reads what `describe` returned."""
        return cls(tuple(values["labels"]), bool(values["paired"]), tuple(values["class_weights"]))

    def build(self, folder: Path, settings: FineTuningSettings) -> BertForSequenceClassification:
        """Returns the encoder of a folder under a new layer with one output a class."""
        names = dict(enumerate(self.labels))
        return new_model(BertForSequenceClassification, folder, settings, id2label=names, problem_type=SINGLE)

    def load(self, folder: Path) -> BertForSequenceClassification:
        """Returns a trained classifier."""
        return BertForSequenceClassification.from_pretrained(folder)

    def encode(self, tokenizer: WordPieceTokenizer, examples: Sequence[LabelledText], max_length: int) -> list[Unit]:
        """Returns one sequence for each text or pair, with the number of its class."""
        return encode_texts(
            tokenizer, examples, self.paired, max_length, [self._number(example) for example in examples]
        )

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Returns N sequences with labels [N] int64."""
        return LabelledBatch(tokens_of(units), torch.tensor([unit.label for unit in units]))

    def measure(self, model: BertForSequenceClassification, batch: LabelledBatch) -> Measure:
        """Returns the cross-entropy."""
        return ClassificationObjective(self.class_weights or None)(model, batch)

    def predict(
        self,
        model: BertForSequenceClassification,
        tokenizer: WordPieceTokenizer,
        examples: Sequence[LabelledText],
        runs_on: RunsOn,
    ) -> list[Prediction]:
        """Classifies the texts."""
        return Classify(model, tokenizer, runs_on)(*columns_of(examples, self.paired))

    def tuned(self, _examples: Sequence[LabelledText], _predictions: Sequence[Prediction]) -> ClassificationTask:
        """Returns the task itself: the likeliest class needs no threshold."""
        return self

    def figures(self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Returns accuracy, macro F1 and Matthews correlation; for two classes the F1 of the second as well."""
        truth, predicted = self._numbers(examples, predictions)
        scores = [score.f1 for score in class_scores(truth, predicted, len(self.labels))]
        figures = {
            "accuracy": accuracy(truth, predicted),
            "macro_f1": float(np.mean(scores)),
            "matthews": matthews_correlation(truth, predicted, len(self.labels)),
        }
        if len(self.labels) == 2:
            figures[f"f1_{self.labels[1]}"] = scores[1]
        return figures

    def evaluate(self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]) -> Evaluation:
        """Adds intervals, the table by class, the confusion matrix, and the surest wrong predictions."""
        truth, predicted = self._numbers(examples, predictions)
        wrong = [
            Mistake(shown(example), example.label, prediction.label, prediction.probabilities[prediction.label])
            for example, prediction in zip(examples, predictions, strict=True)
            if example.label != prediction.label
        ]
        return Evaluation(
            self.figures(examples, predictions),
            intervals={"accuracy": bootstrap_interval(np.equal(truth, predicted))},
            classes=dict(zip(self.labels, class_scores(truth, predicted, len(self.labels)), strict=True)),
            confusion=confusion_matrix(truth, predicted, len(self.labels)).tolist(),
            mistakes=worst(wrong),
        )

    def _number(self, example: LabelledText) -> int:
        if example.label not in self.labels:
            raise InputError(
                f"label {example.label!r} does not occur in the training file ({', '.join(self.labels[:8])})"
            )
        return self.labels.index(example.label)

    def _numbers(
        self, examples: Sequence[LabelledText], predictions: Sequence[Prediction]
    ) -> tuple[list[int], list[int]]:
        truth = [self._number(example) for example in examples]
        return truth, [self.labels.index(prediction.label) for prediction in predictions]


@dataclass(frozen=True)
class MultiLabelTask:
    """Any number of labels for each text or pair.

    Attributes:
        labels: all of them, in the order of the model's outputs.
        paired: whether the model reads pairs of texts.
        threshold: labels likelier than this are predicted.
    """

    labels: tuple[str, ...]
    paired: bool = False
    threshold: float = 0.5

    name: ClassVar[str] = "multilabel"
    metric: ClassVar[str] = "micro_f1"

    @classmethod
    def of(cls, train: Sequence[MultiLabelledText]) -> MultiLabelTask:
        """Finds the labels of a training file.

        Raises:
            InputError: no text has one.
        """
        return cls(tuple(labels_of(train)), train[0].pair is not None)

    def describe(self) -> dict[str, Any]:
        """Returns the labels, the threshold, and whether texts come in pairs."""
        return {"labels": list(self.labels), "paired": self.paired, "threshold": self.threshold}

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> MultiLabelTask:
        """Reads what `describe` returned."""
        return cls(tuple(values["labels"]), bool(values["paired"]), float(values["threshold"]))

    def build(self, folder: Path, settings: FineTuningSettings) -> BertForSequenceClassification:
        """Returns the encoder of a folder under a new layer with one output a label."""
        names = dict(enumerate(self.labels))
        return new_model(BertForSequenceClassification, folder, settings, id2label=names, problem_type=MULTI)

    def load(self, folder: Path) -> BertForSequenceClassification:
        """Returns a trained model."""
        return BertForSequenceClassification.from_pretrained(folder)

    def encode(
        self, tokenizer: WordPieceTokenizer, examples: Sequence[MultiLabelledText], max_length: int
    ) -> list[Unit]:
        """Returns one sequence for each text or pair, with a 0 or 1 for each label."""
        return encode_texts(tokenizer, examples, self.paired, max_length, self._indicators(examples).tolist())

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Returns N sequences with labels [N, K] float32."""
        return LabelledBatch(tokens_of(units), torch.tensor([unit.label for unit in units], dtype=torch.float32))

    def measure(self, model: BertForSequenceClassification, batch: LabelledBatch) -> Measure:
        """Returns the binary cross-entropy."""
        return MultiLabelObjective()(model, batch)

    def predict(
        self,
        model: BertForSequenceClassification,
        tokenizer: WordPieceTokenizer,
        examples: Sequence[MultiLabelledText],
        runs_on: RunsOn,
    ) -> list[LabelsPrediction]:
        """Labels the texts."""
        return MultiLabel(model, tokenizer, runs_on, threshold=self.threshold)(*columns_of(examples, self.paired))

    def tuned(self, examples: Sequence[MultiLabelledText], predictions: Sequence[LabelsPrediction]) -> MultiLabelTask:
        """Returns the task with the threshold, in steps of 0.05, that gives the best micro F1; nearest 0.5 if equal."""
        truth = self._indicators(examples)
        candidates = sorted(np.round(np.arange(0.05, 1.0, 0.05), 2).tolist(), key=lambda value: abs(value - 0.5))
        # 排好序再取最大：分数相同时留下离 0.5 最近的阈值
        best = max(
            candidates,
            key=lambda value: multilabel_scores(truth, self._decided(predictions, value)).micro_f1,
        )
        return replace(self, threshold=float(best))

    def figures(
        self, examples: Sequence[MultiLabelledText], predictions: Sequence[LabelsPrediction]
    ) -> dict[str, float]:
        """Returns micro F1, macro F1, and the share of texts whose labels are all right."""
        scores = multilabel_scores(self._indicators(examples), self._decided(predictions, self.threshold))
        return {"micro_f1": scores.micro_f1, "macro_f1": scores.macro_f1, "exact_match": scores.exact_match}

    def evaluate(self, examples: Sequence[MultiLabelledText], predictions: Sequence[LabelsPrediction]) -> Evaluation:
        """Adds intervals, the table by label, and the texts with the least likely true labels."""
        truth, decided = self._indicators(examples), self._decided(predictions, self.threshold)
        probabilities = self._probabilities(predictions)
        # 一条文本有多错：最没把握的那个判断离真值的距离
        distances = np.abs(truth - probabilities).max(1)
        wrong = [
            Mistake(shown(example), ", ".join(example.labels), ", ".join(self._named(row)), float(distance))
            for example, row, distance, same in zip(
                examples, decided, distances, (truth == decided).all(1), strict=True
            )
            if not same
        ]
        counts = np.stack([(truth * decided).sum(1), decided.sum(1), truth.sum(1)], 1)
        return Evaluation(
            self.figures(examples, predictions),
            intervals={
                "micro_f1": bootstrap_interval(counts, f1_of_means),
                "exact_match": bootstrap_interval((truth == decided).all(1)),
            },
            classes=dict(zip(self.labels, multilabel_scores(truth, decided).labels, strict=True)),
            mistakes=worst(wrong),
        )

    def _indicators(self, examples: Sequence[MultiLabelledText]) -> NDArray[np.int64]:
        unknown = {label for example in examples for label in example.labels} - set(self.labels)
        if unknown:
            raise InputError(f"label {sorted(unknown)[0]!r} does not occur in the training file")
        return np.array([[int(label in example.labels) for label in self.labels] for example in examples])

    def _probabilities(self, predictions: Sequence[LabelsPrediction]) -> NDArray[np.float64]:
        return np.array([[prediction.probabilities[label] for label in self.labels] for prediction in predictions])

    def _decided(self, predictions: Sequence[LabelsPrediction], threshold: float) -> NDArray[np.int64]:
        return (self._probabilities(predictions) > threshold).astype(np.int64)

    def _named(self, row: NDArray[np.int64]) -> list[str]:
        return [label for label, chosen in zip(self.labels, row, strict=True) if chosen]


@dataclass(frozen=True)
class RegressionTask:
    """A number for each text or pair, such as how alike two sentences are (§4.1, STS-B).

    Attributes:
        mean: of the training numbers, where the new layer starts.
        paired: whether the model reads pairs of texts.
    """

    mean: float = 0.0
    paired: bool = False

    name: ClassVar[str] = "regress"
    metric: ClassVar[str] = "pearson"

    @classmethod
    def of(cls, train: Sequence[ScoredText]) -> RegressionTask:
        """Measures the numbers of a training file.

        Raises:
            InputError: there is none, or all are the same.
        """
        scores = np.array([example.score for example in train])
        if len(scores) == 0 or scores.std() == 0:
            raise InputError("the training file's scores are all the same; there is nothing to learn")
        return cls(float(scores.mean()), train[0].pair is not None)

    def describe(self) -> dict[str, Any]:
        """Returns the mean, and whether texts come in pairs."""
        return {"mean": self.mean, "paired": self.paired}

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> RegressionTask:
        """Reads what `describe` returned."""
        return cls(float(values["mean"]), bool(values["paired"]))

    def build(self, folder: Path, settings: FineTuningSettings) -> BertForSequenceClassification:
        """Returns the encoder of a folder under a new layer with one output, at the mean of the numbers."""
        model = new_model(
            BertForSequenceClassification, folder, settings, id2label={0: "score"}, problem_type=REGRESSION
        )
        # 输出从训练目标的均值起步：不必先花许多步把偏置挪过去
        torch.nn.init.constant_(model.classifier.linear.bias, self.mean)
        return model

    def load(self, folder: Path) -> BertForSequenceClassification:
        """Returns a trained model."""
        return BertForSequenceClassification.from_pretrained(folder)

    def encode(self, tokenizer: WordPieceTokenizer, examples: Sequence[ScoredText], max_length: int) -> list[Unit]:
        """Returns one sequence for each text or pair, with its number."""
        return encode_texts(tokenizer, examples, self.paired, max_length, [example.score for example in examples])

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Returns N sequences with labels [N] float32."""
        return LabelledBatch(tokens_of(units), torch.tensor([unit.label for unit in units], dtype=torch.float32))

    def measure(self, model: BertForSequenceClassification, batch: LabelledBatch) -> Measure:
        """Returns the mean squared error."""
        return RegressionObjective()(model, batch)

    def predict(
        self,
        model: BertForSequenceClassification,
        tokenizer: WordPieceTokenizer,
        examples: Sequence[ScoredText],
        runs_on: RunsOn,
    ) -> list[float]:
        """Predicts the numbers."""
        numbers: list[float] = Regress(model, tokenizer, runs_on)(*columns_of(examples, self.paired)).tolist()
        return numbers

    def tuned(self, _examples: Sequence[ScoredText], _predictions: Sequence[float]) -> RegressionTask:
        """Returns the task itself: a number needs no threshold."""
        return self

    def figures(self, examples: Sequence[ScoredText], predictions: Sequence[float]) -> dict[str, float]:
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
        # 把偏差换算到 [0, 1]，与其他任务的把握程度放在同一张表里
        scale = distances.max() or 1.0
        mistakes = [
            Mistake(shown(example), f"{example.score:g}", f"{predicted:.3g}", float(distance / scale))
            for example, predicted, distance in zip(examples, predictions, distances, strict=True)
        ]
        return Evaluation(
            self.figures(examples, predictions),
            intervals={"pearson": bootstrap_interval(correlation_columns(truth, predictions), correlation_of_means)},
            mistakes=worst(mistakes),
        )


AnyText = LabelledText | MultiLabelledText | ScoredText


def encode_texts(
    tokenizer: WordPieceTokenizer, examples: Sequence[AnyText], paired: bool, max_length: int, labels: Sequence[Any]
) -> list[Unit]:
    """Returns one sequence `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` for each example, with its label."""
    encoded = tokenizer(*columns_of(examples, paired), max_length=max_length)
    return [
        Unit([ids], [types], label)
        for ids, types, label in zip(encoded["input_ids"], encoded["token_type_ids"], labels, strict=True)
    ]


def columns_of(examples: Sequence[AnyText], paired: bool) -> tuple[list[str], list[str] | None]:
    """Returns all texts, and all second texts where there are any.

    Raises:
        InputError: some examples are pairs, others, or those the model was trained on, are not.
    """
    if any((example.pair is not None) != paired for example in examples):
        wanted, found = ("pairs of texts", "single texts") if paired else ("single texts", "pairs of texts")
        raise InputError(f"the model reads {wanted}, and a file has {found}; name the columns to read")
    return [example.text for example in examples], [example.pair or "" for example in examples] if paired else None


def tokens_of(units: Sequence[Unit]) -> RaggedBatch:
    """Lays the sequences of units end to end."""
    return RaggedBatch.from_sequences(
        [ids for unit in units for ids in unit.input_ids], [types for unit in units for types in unit.token_type_ids]
    )


def shown(example: AnyText) -> str:
    """Returns a text, or both texts of a pair, for a report."""
    return example.text if example.pair is None else f"{example.text} ⏐ {example.pair}"


def worst(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """Returns the surest of the wrong predictions, surest first."""
    return sorted(mistakes, key=lambda mistake: -mistake.confidence)[:SHOWN_MISTAKES]
