"""The task of a number for a text or a pair, such as how alike two sentences are (Devlin et al. 2019, §4.1, STS-B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.texts import ScoredText
from bertsmith.finetune.metrics.bootstrap import bootstrap_interval, correlation_columns, correlation_of_means
from bertsmith.finetune.metrics.classification import pearson, spearman
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.task import Evaluation, Mistake, Unit, new_model, tokens_of, worst
from bertsmith.finetune.tasks.texts import columns_of, encode_texts, shown
from bertsmith.inference.classify import REGRESSION, Regress
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import BertForSequenceClassification
from bertsmith.objectives import LabelledBatch, RegressionObjective
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.tokenizer import WordPieceTokenizer


@dataclass(frozen=True)
class RegressionTask:
    """A number for each text or pair, such as how alike two sentences are (§4.1, STS-B).

    Attributes:
        mean: of the training numbers, where the new layer starts.
        paired: whether the model reads pairs of texts.
        spread: standard deviation of the training numbers, the unit of the new layer; positive.
    """

    mean: float = 0.0
    paired: bool = False
    spread: float = 1.0

    name: ClassVar[str] = "regress"
    metric: ClassVar[str] = "pearson"

    @classmethod
    def of(cls, train: Sequence[ScoredText]) -> RegressionTask:
        """Measures the numbers of a training file.

        Raises:
            InputError: there is none, or all are the same, or as good as that in float32.
        """
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

    def describe(self) -> dict[str, Any]:
        """Returns mean and spread, and whether texts come in pairs."""
        return {"mean": self.mean, "paired": self.paired, "spread": self.spread}

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> RegressionTask:
        """Reads what `describe` returned."""
        return cls(float(values["mean"]), bool(values["paired"]), float(values.get("spread", 1.0)))

    def build(self, folder: Path, settings: FineTuningSettings) -> BertForSequenceClassification:
        """Returns the encoder of a folder under a new layer with one output, in the units of the numbers."""
        model = new_model(
            BertForSequenceClassification, folder, settings, id2label={0: "score"}, problem_type=REGRESSION
        )
        # 输出从训练目标的均值起步，权重以其离散程度为单位：否则 AdamW 每步至多挪一个学习率，永远够不到上千的数
        with torch.no_grad():
            model.classifier.linear.weight.mul_(self.spread)
            model.classifier.linear.bias.fill_(self.mean)
        return model

    @property
    def units(self) -> dict[str, float]:
        """The unit of the new layer, as `TrainerSettings.units` takes it."""
        return {"classifier.*": self.spread}

    def standing(self, figures: dict[str, float]) -> float:
        """Returns Pearson's correlation to three digits, and below them how small the error is."""
        # 相关系数不看尺度：输出全挤在均值附近也能接近 1，所以千分位上持平的几轮里，取误差最小的
        return round(figures["pearson"], 3) + 4e-4 / (1 + figures["rmse"] / self.spread)

    def check_dev(self, dev: Sequence[ScoredText]) -> None:
        """Makes sure that the dev file can tell good epochs from bad ones.

        Raises:
            InputError: its numbers are all the same.
        """
        if len({example.score for example in dev}) < 2:
            raise InputError("the dev file's scores are all the same; no epoch can be chosen by them")

    def load(self, folder: Path) -> BertForSequenceClassification:
        """Returns a trained model."""
        return BertForSequenceClassification.from_pretrained(folder)

    def encode(self, tokenizer: WordPieceTokenizer, examples: Sequence[ScoredText], max_length: int) -> list[Unit]:
        """Returns one sequence for each text or pair, with its number."""
        return encode_texts(tokenizer, examples, self.paired, max_length, [example.score for example in examples])

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Returns N sequences with labels [N] float32."""
        return LabelledBatch(tokens_of(units), torch.tensor([unit.label for unit in units], dtype=torch.float32))

    def measure(self, model: BertForSequenceClassification, batch: LabelledBatch) -> LossOutput:
        """Returns the mean squared error, in units of the spread."""
        return RegressionObjective(self.spread)(model, batch)

    def predict(
        self,
        model: BertForSequenceClassification,
        tokenizer: WordPieceTokenizer,
        examples: Sequence[ScoredText],
        inference: InferenceConfig,
    ) -> list[float]:
        """Predicts the numbers."""
        numbers: list[float] = Regress(model, tokenizer, inference)(*columns_of(examples, self.paired)).tolist()
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
        mistakes = [
            Mistake(shown(example), f"{example.score:g}", f"{predicted:.3g}", float(distance))
            for example, predicted, distance in zip(examples, predictions, distances, strict=True)
        ]
        return Evaluation(
            self.figures(examples, predictions),
            intervals={"pearson": bootstrap_interval(correlation_columns(truth, predictions), correlation_of_means)},
            mistakes=worst(mistakes),
        )
