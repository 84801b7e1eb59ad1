"""The task of multiple choice: which of several continuations or answers is right (Devlin et al. 2019, §4.4).

The new parameters are one vector; its product with the pooled `[CLS]` scores a choice. All choices of a question stay
in one batch, because the softmax is over them. Questions of one file may have different numbers of choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.choices import ChoiceExample
from bertsmith.finetune.metrics.bootstrap import bootstrap_interval
from bertsmith.finetune.metrics.classification import mean_reciprocal_rank
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.task import Evaluation, Mistake, Unit, new_model, tokens_of, worst
from bertsmith.inference.choose import Choice, Choose, encode_choices
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import BertForMultipleChoice
from bertsmith.objectives import ChoiceObjective, LabelledBatch
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.tokenizer import WordPieceTokenizer


@dataclass(frozen=True)
class ChoiceTask:
    """One right choice for each question."""

    name: ClassVar[str] = "choose"
    metric: ClassVar[str] = "accuracy"

    @classmethod
    def of(cls, train: Sequence[ChoiceExample]) -> ChoiceTask:
        """Returns the task; nothing is read off a training file.

        Raises:
            InputError: no question leaves a choice.
        """
        if all(len(example.choices) < 2 for example in train):
            raise InputError("no question of the training file has two choices or more; there is nothing to learn")
        return cls()

    def describe(self) -> dict[str, Any]:
        """Returns nothing: the weights are all there is."""
        return {}

    @classmethod
    def from_description(cls, _values: dict[str, Any]) -> ChoiceTask:
        """Reads what `describe` returned."""
        return cls()

    def build(self, folder: Path, settings: FineTuningSettings) -> BertForMultipleChoice:
        """Returns the encoder of a folder under a new vector."""
        # 选项没有固定的类别：清掉起始文件夹里别的任务留下的标签名
        return new_model(BertForMultipleChoice, folder, settings, id2label={}, problem_type=None)

    def load(self, folder: Path) -> BertForMultipleChoice:
        """Returns a trained model."""
        return BertForMultipleChoice.from_pretrained(folder)

    def encode(self, tokenizer: WordPieceTokenizer, examples: Sequence[ChoiceExample], max_length: int) -> list[Unit]:
        """Returns one unit for each question, its choices as sequences, labelled with the number of the right one."""
        for example in examples:
            _require_right(example)
        contexts, choices = [example.context for example in examples], [example.choices for example in examples]
        encoded = encode_choices(tokenizer, contexts, choices, max_length)
        bounds = pairwise([0, *accumulate(map(len, choices))])
        return [
            Unit(encoded["input_ids"][start:end], encoded["token_type_ids"][start:end], example.label)
            for example, (start, end) in zip(examples, bounds, strict=True)
        ]

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Returns the sequences of Q questions, with labels [Q, 2] int64: how many choices, and the right one."""
        return LabelledBatch(tokens_of(units), torch.tensor([(len(unit.input_ids), unit.label) for unit in units]))

    def measure(self, model: BertForMultipleChoice, batch: LabelledBatch) -> LossOutput:
        """Returns the cross-entropy over the choices of each question."""
        counts, right = batch.labels.unbind(1)
        if bool((counts == counts[0]).all()):
            return ChoiceObjective()(model, LabelledBatch(batch.tokens, right))
        # 选项数不同：逐条打分，再补成矩形；负无穷的空位在 softmax 里概率为零，也没有梯度
        scores = model(batch.tokens, 1).float().squeeze(-1).split(counts.tolist())
        logits = pad_sequence(list(scores), batch_first=True, padding_value=-torch.inf)
        loss = F.cross_entropy(logits, right)
        hits = int((logits.detach().argmax(-1) == right).sum())
        count = len(right)
        return LossOutput(loss, {"loss": (float(loss.detach()) * count, count), "accuracy": (hits, count)})

    def predict(
        self,
        model: BertForMultipleChoice,
        tokenizer: WordPieceTokenizer,
        examples: Sequence[ChoiceExample],
        inference: InferenceConfig,
    ) -> list[Choice]:
        """Chooses for every question."""
        contexts, choices = [example.context for example in examples], [example.choices for example in examples]
        return Choose(model, tokenizer, inference)(contexts, choices)

    def tuned(self, _examples: Sequence[ChoiceExample], _predictions: Sequence[Choice]) -> ChoiceTask:
        """Returns the task itself: the likeliest choice needs no threshold."""
        return self

    def figures(self, examples: Sequence[ChoiceExample], predictions: Sequence[Choice]) -> dict[str, float]:
        """Returns accuracy, and the mean of 1 over the rank of the right choice."""
        ranked = [prediction.probabilities for prediction in predictions]
        right = [np.arange(len(example.choices)) == example.label for example in examples]
        return {
            "accuracy": float(np.mean(_hits(examples, predictions))),
            "mrr": mean_reciprocal_rank(ranked, right),
        }

    def evaluate(self, examples: Sequence[ChoiceExample], predictions: Sequence[Choice]) -> Evaluation:
        """Adds the interval of the accuracy, and the surest wrong choices."""
        wrong = [
            Mistake(
                example.context,
                example.choices[example.label],
                example.choices[prediction.index],
                prediction.probabilities[prediction.index],
            )
            for example, prediction in zip(examples, predictions, strict=True)
            if prediction.index != example.label
        ]
        return Evaluation(
            self.figures(examples, predictions),
            intervals={"accuracy": bootstrap_interval(_hits(examples, predictions))},
            mistakes=worst(wrong),
        )


def _hits(examples: Sequence[ChoiceExample], predictions: Sequence[Choice]) -> list[bool]:
    return [example.label == prediction.index for example, prediction in zip(examples, predictions, strict=True)]


def _require_right(example: ChoiceExample) -> None:
    if not 0 <= example.label < len(example.choices):
        raise InputError(
            f"{example.context[:40]!r}: the right choice {example.label} is none of {len(example.choices)}, from 0"
        )
