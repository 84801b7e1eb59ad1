"""The task of several labels for a text or a pair, each decided by itself (one output a label, a sigmoid each)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.texts import MULTILABELLED, MultiLabelledText, labels_of
from bertsmith.finetune.metrics.bootstrap import bootstrap_interval, f1_of_means
from bertsmith.finetune.metrics.calibration import (
    ClassThreshold,
    best_cut,
    calibration,
    f1_of,
    fit_temperature,
    probability_rows,
)
from bertsmith.finetune.metrics.classification import multilabel_scores
from bertsmith.finetune.tasks.spec import NoOptions, TaskSpec
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
from bertsmith.inference.classify import MULTI, LabelsPrediction, MultiLabel
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import ModelForSequenceClassification
from bertsmith.objectives import MultiLabelObjective
from bertsmith.tokenizer import Tokenizer


@dataclass(frozen=True)
class MultiLabelTask(Task[MultiLabelledText, LabelsPrediction]):
    """Any number of labels for each text or pair.

    Attributes:
        labels: all of them, in the order of the model's outputs.
        paired: whether the model reads pairs of texts.
        threshold: labels likelier than this are predicted.
        temperature: that makes the probabilities true on dev, see `metrics.calibration`.
        thresholds: of each label, with the best F1 on dev; empty before the end of a run.
    """

    labels: tuple[str, ...]
    paired: bool = False
    threshold: float = 0.5
    temperature: float = 1.0
    thresholds: tuple[float, ...] = ()

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
        """Finds the labels of a training file.

        Raises:
            InputError: no text has one.
        """
        return cls(tuple(labels_of(train)), train[0].pair is not None)

    def config_fields(self) -> dict[str, Any]:
        """Returns one output for each label."""
        return {"id2label": dict(enumerate(self.labels)), "problem_type": MULTI}

    def encode(
        self, tokenizer: Tokenizer, examples: Sequence[MultiLabelledText], max_length: int
    ) -> list[EncodedExample]:
        """Returns one sequence for each text or pair, with a 0 or 1 for each label."""
        return encode_texts(tokenizer, examples, self.paired, max_length, self._indicators(examples).tolist())

    def check_dev(self, dev: Sequence[MultiLabelledText]) -> None:
        """Makes sure that the dev file can tell good epochs from bad ones.

        Raises:
            InputError: no text of it has a label.
        """
        if not any(example.labels for example in dev):
            raise InputError("no text of the dev file has a label; no epoch can be chosen by it")

    @property
    def objective(self) -> MultiLabelObjective:
        """Binary cross-entropy."""
        return MultiLabelObjective()

    def example_from(self, record: Record) -> MultiLabelledText:
        """Returns a text with the labels that are likely enough."""
        text, *pair = record["input"]
        return MultiLabelledText(text, pair[0] if pair else None, tuple(record["labels"]))

    def predict(
        self,
        model: ModelForSequenceClassification,
        tokenizer: Tokenizer,
        examples: Sequence[MultiLabelledText],
        inference: InferenceConfig,
    ) -> list[LabelsPrediction]:
        """Labels the texts."""
        return MultiLabel(model, tokenizer, inference, threshold=self.threshold)(*columns_of(examples, self.paired))

    def with_best_threshold(
        self, examples: Sequence[MultiLabelledText], predictions: Sequence[LabelsPrediction]
    ) -> MultiLabelTask:
        """Returns the task with the threshold that gives the best micro F1, the one nearest 0.5 of equals."""
        return replace(self, threshold=best_cut(self._indicators(examples), self._probabilities(predictions)))

    def calibrated(
        self, examples: Sequence[MultiLabelledText], predictions: Sequence[LabelsPrediction]
    ) -> MultiLabelTask:
        """Fits the temperature, and a threshold for each label; one that dev never has keeps that of all."""
        truth, rows = self._indicators(examples), self._probabilities(predictions)
        columns = zip(truth.T, rows.T, strict=True)
        thresholds = tuple(best_cut(true, sure, self.threshold) for true, sure in columns)
        return replace(self, temperature=fit_temperature(rows, truth), thresholds=thresholds)

    def metrics(
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
            self.metrics(examples, predictions),
            intervals={
                "micro_f1": bootstrap_interval(counts, f1_of_means),
                "exact_match": bootstrap_interval((truth == decided).all(1)),
            },
            classes=dict(zip(self.labels, multilabel_scores(truth, decided).labels, strict=True)),
            mistakes=worst(wrong),
            calibration=calibration(probabilities, truth, self.temperature),
            thresholds={
                label: ClassThreshold(own, f1_of(true, sure > self.threshold), f1_of(true, sure > own))
                for label, own, true, sure in zip(self.labels, self.thresholds, truth.T, probabilities.T, strict=False)
            },
        )

    @staticmethod
    def records(pipeline: MultiLabel, rows: Rows) -> Iterator[Record]:
        """Yields the labels that are likelier than the threshold, and the probability of every label."""
        for row, found in zip(rows, pipeline(*columns_of_rows(rows)), strict=True):
            yield {
                "prediction": ",".join(found.labels),
                "labels": found.labels,
                "probabilities": found.probabilities,
                "input": row,
            }

    def _indicators(self, examples: Sequence[MultiLabelledText]) -> NDArray[np.int64]:
        require_known(examples, [example.labels for example in examples], self.labels)
        place = {label: number for number, label in enumerate(self.labels)}
        table = np.zeros((len(examples), len(self.labels)), dtype=np.int64)
        for row, example in enumerate(examples):
            table[row, [place[label] for label in example.labels]] = 1
        return table

    def _probabilities(self, predictions: Sequence[LabelsPrediction]) -> NDArray[np.float64]:
        return probability_rows(predictions, self.labels)

    def _decided(self, predictions: Sequence[LabelsPrediction], threshold: float) -> NDArray[np.int64]:
        return (self._probabilities(predictions) > threshold).astype(np.int64)

    def _named(self, row: NDArray[np.int64]) -> list[str]:
        return [label for label, chosen in zip(self.labels, row, strict=True) if chosen]
