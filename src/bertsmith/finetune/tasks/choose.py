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
    Task,
    TaskSpec,
    auto_model,
    worst,
)
from bertsmith.inference.classify import Choice, Choose, encode_choices
from bertsmith.model import ModelForMultipleChoice
from bertsmith.objectives import ChoiceObjective
from bertsmith.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChoiceTask(Task[ChoiceExample, Choice]):
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

    @classmethod
    def learned_from(cls, train: Sequence[ChoiceExample], _options: NoOptions) -> ChoiceTask:
        """Returns the task; nothing is read off a training file."""
        if all(len(example.choices) < 2 for example in train):
            raise InputError("no question of the training file has two choices or more; there is nothing to learn")
        return cls()

    def encode(self, tokenizer: Tokenizer, examples: Sequence[ChoiceExample], max_length: int) -> list[EncodedExample]:
        """Returns the choices of each question as sequences, labelled with how many there are and which is right."""
        # 三个文件都先编码再训练：标错的答案在训练之前就报
        for example in examples:
            if not 0 <= example.label < len(example.choices):
                place = f"{example.context[:40]!r}: the right choice {example.label}"
                raise InputError(f"{place} is none of {len(example.choices)}, from 0")
        contexts, choices = _columns(examples)
        encoded = encode_choices(tokenizer, contexts, choices, max_length)
        bounds = pairwise([0, *accumulate(map(len, choices))])
        return [
            EncodedExample(
                encoded["input_ids"][start:end], encoded["token_type_ids"][start:end], (end - start, example.label)
            )
            for example, (start, end) in zip(examples, bounds, strict=True)
        ]

    @property
    def objective(self) -> ChoiceObjective:
        """Cross-entropy over the choices of each question."""
        return ChoiceObjective()

    def predicted(self, pipeline: Choose, examples: Sequence[ChoiceExample]) -> list[Choice]:
        """Chooses for every question."""
        return pipeline(*_columns(examples))

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


def _columns(examples: Sequence[ChoiceExample]) -> tuple[list[str], list[tuple[str, ...]]]:
    return [example.context for example in examples], [example.choices for example in examples]


def _hits(examples: Sequence[ChoiceExample], predictions: Sequence[Choice]) -> list[bool]:
    return [example.label == prediction.index for example, prediction in zip(examples, predictions, strict=True)]
