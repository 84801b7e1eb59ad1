"""The task of multiple choice: which of several continuations or answers is right (Devlin et al. 2019, §4.4).

The new parameters are one vector; its product with the pooled `[CLS]` scores a choice. All choices of a question stay
in one batch, because the softmax is over them. Questions of one file may have different numbers of choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.texts import CHOICES, ChoiceExample
from bertsmith.finetune.metrics import bootstrap_interval
from bertsmith.finetune.metrics.ranking import mean_reciprocal_rank
from bertsmith.finetune.tasks.task import (
    CardText,
    EncodedExample,
    Evaluation,
    InputFields,
    Mistake,
    NoOptions,
    Record,
    Rows,
    TaskSpec,
    WordsTask,
    alike,
    auto_model,
    worst,
)
from bertsmith.inference.classify import Choice, Choose, choice_rows
from bertsmith.inference.words import CHOICES as CHOICE_SCORES
from bertsmith.model import ModelForMultipleChoice
from bertsmith.objectives import ChoiceObjective
from bertsmith.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChoiceTask(WordsTask[ChoiceExample, Choice]):
    """One right choice for each question."""

    spec: ClassVar = TaskSpec(
        "choose",
        ("multiple choice", "多项选择"),
        ModelForMultipleChoice,
        CHOICES,
        Choose,
        InputFields(("Context", "上文"), lines=("Choices, one a line", "选项，每行一个"), least=3, most=10**6),
        CardText(
            "multiple-choice",
            "chooses among several continuations or answers",
            "One of the choices is always taken, also where none is right.",
            ('(["a context"], [["first choice", "second choice"]])',),
            auto_model("AutoModelForMultipleChoice"),
        ),
    )
    metric: ClassVar[str] = "accuracy"
    problem: ClassVar[str] = CHOICE_SCORES
    objective: ClassVar = ChoiceObjective()

    @classmethod
    def learned_from(cls, train: Sequence[ChoiceExample], _options: NoOptions) -> ChoiceTask:
        """Returns the task; nothing is read off a training file."""
        if all(len(example.choices) < 2 for example in train):
            raise InputError("no question of the training file has two choices or more; there is nothing to learn")
        return cls()

    def encode(self, tokenizer: Tokenizer, examples: Sequence[ChoiceExample], max_length: int) -> list[EncodedExample]:
        """Returns the choices of each question as sequences, labelled with how many there are and which is right."""
        self.targets(examples)
        encoded = tokenizer(*self.columns(examples), max_length=max_length)
        bounds = pairwise([0, *accumulate(self.rows(examples))])
        return [
            EncodedExample(
                encoded["input_ids"][start:end], encoded["token_type_ids"][start:end], (end - start, example.label)
            )
            for example, (start, end) in zip(examples, bounds, strict=True)
        ]

    def rows(self, examples: Sequence[ChoiceExample]) -> list[int]:
        """Returns how many choices each question has."""
        return [len(example.choices) for example in examples]

    def targets(self, examples: Sequence[ChoiceExample]) -> list[int]:
        """Returns for each choice the number of its question, doubled, and 1 more where it is the right one."""
        # 三个文件都先看目标再训练：标错的答案在训练之前就报
        for example in examples:
            if not 0 <= example.label < len(example.choices):
                place = f"{example.context[:40]!r}: the right choice {example.label}"
                raise InputError(f"{place} is none of {len(example.choices)}, from 0")
        return [
            2 * number + (choice == one.label)
            for number, one in enumerate(examples)
            for choice, _ in enumerate(one.choices)
        ]

    @staticmethod
    def sequences_of(example: ChoiceExample) -> list[tuple[str, ...]]:
        """Returns every choice with the context."""
        return [(example.context, choice) for choice in example.choices]

    def cautions(self, examples: Sequence[ChoiceExample]) -> list[str]:
        """Says besides where the place of a choice gives it away."""
        place = alike(
            (one.label + 1 for one in examples),
            "the right choice is always number {!r}: a model can learn the position instead of the text",
        )
        return [*super().cautions(examples), *place]

    def columns(self, examples: Sequence[ChoiceExample]) -> tuple[list[str], list[str]]:
        """Returns the context of every choice, and the choices."""
        return choice_rows([one.context for one in examples], [one.choices for one in examples])

    def told(self, pipeline: Choose, outputs: Tensor, examples: Sequence[ChoiceExample]) -> list[Choice]:
        """Returns the choices."""
        return pipeline.told(outputs, self.rows(examples))

    def shown(self, examples: Sequence[ChoiceExample]) -> list[tuple[str, str]]:
        """Returns every choice beside its context, and whether it is right."""
        return [
            (f"{one.context} ⏐ {choice}", "right" if number == one.label else "wrong")
            for one in examples
            for number, choice in enumerate(one.choices)
        ]

    def said(self, _pipeline: Choose, outputs: Tensor) -> list[str]:
        """Returns the scores; they mean something beside those of the other choices."""
        return [f"{score:.3f}" for score in outputs[:, 0].tolist()]

    def apart(
        self,
        pipeline: Choose,
        examples: Sequence[ChoiceExample],
        outputs: tuple[Tensor, Tensor],
        weights: tuple[float, float],
        count: int,
    ) -> list[tuple[str, ...]]:
        """Compares scores from the mean of those of their question: a softmax sees no other difference."""
        counts = self.rows(examples)
        first, second = (torch.cat([row - row.mean() for row in one.split(counts)]) for one in outputs)
        return super().apart(pipeline, examples, (first, second), weights, count)

    def metrics(self, examples: Sequence[ChoiceExample], predictions: Sequence[Choice]) -> dict[str, float]:
        """Returns accuracy, and the mean of 1 over the rank of the right choice."""
        ranked = [prediction.probabilities for prediction in predictions]
        right = [np.arange(len(example.choices)) == example.label for example in examples]
        return {"accuracy": float(np.mean(_hits(examples, predictions))), "mrr": mean_reciprocal_rank(ranked, right)}

    def evaluate(self, examples: Sequence[ChoiceExample], predictions: Sequence[Choice]) -> Evaluation:
        """Adds the interval of the accuracy, and the surest wrong choices."""
        wrong = [
            Mistake(one.context, one.choices[one.label], one.choices[found.index], found.probabilities[found.index])
            for one, found in zip(examples, predictions, strict=True)
            if found.index != one.label
        ]
        return Evaluation(
            self.metrics(examples, predictions),
            intervals={"accuracy": bootstrap_interval(_hits(examples, predictions))},
            mistakes=worst(wrong),
        )

    @classmethod
    def records(cls, pipeline: Choose, rows: Rows) -> Iterator[Record]:
        """Yields the likeliest choice, and the probability of every choice."""
        found = pipeline([row[0] for row in rows], [row[1:] for row in rows])
        for row, choice in zip(rows, found, strict=True):
            yield {
                "prediction": row[1 + choice.index],
                "probability": choice.probabilities[choice.index],
                "probabilities": list(choice.probabilities),
                "input": row,
            }


def _hits(examples: Sequence[ChoiceExample], predictions: Sequence[Choice]) -> list[bool]:
    return [example.label == prediction.index for example, prediction in zip(examples, predictions, strict=True)]
