"""A task in one file, as a user would add it: grades 1 to K, which have an order (Frank and Hall 2001).

The model has an output for each of "better than 1", …, "better than K - 1"; the grade is one more than how many of them
are likelier than not. Unlike a classifier it knows that 2 lies between 1 and 3, unlike a regressor it gives a grade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.texts import SCORED, ScoredText, shown
from bertsmith.finetune.metrics import bootstrap_interval
from bertsmith.finetune.tasks import register
from bertsmith.finetune.tasks.classify import TEXT_INPUTS, TextTask, text_card
from bertsmith.finetune.tasks.task import Evaluation, Mistake, Record, TaskSpec, worst
from bertsmith.inference.classify import MULTI, TextPipeline
from bertsmith.model import BertForSequenceClassification
from bertsmith.objectives import MultiLabelObjective
from bertsmith.settings import Checked, option


class Grade(TextPipeline, name="grade"):
    """Grades texts, or pairs of texts."""

    problem_type = MULTI

    @classmethod
    def is_for(cls, _architecture: str, _config: Any) -> bool:
        """Returns False: only `task.json` tells such a folder from that of a model for labels."""
        return False

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[int]:
        """Returns a grade for each text."""
        grades: list[int] = (1 + (self.logits(texts, pairs) > 0).sum(-1)).tolist()
        return grades


@dataclass(frozen=True)
class GradeOptions(Checked):
    """What can be chosen."""

    panel: ClassVar[str] = "Options of the task"

    best_grade: int = option(0, min=2, help="The best grade there is.", shown_default="that of the training file")


@register
@dataclass(frozen=True)
class GradingTask(TextTask[ScoredText, int]):
    """A grade for each text or pair.

    Attributes:
        best_grade: K, at least 2.
        paired: whether the model reads pairs of texts.
    """

    best_grade: int
    paired: bool = False

    example: ClassVar = ScoredText
    spec: ClassVar = TaskSpec(
        "grade",
        ("a grade", "评级"),
        BertForSequenceClassification,
        SCORED,
        Grade,
        TEXT_INPUTS,
        text_card("grades a text", "It knows the grades of the training file."),
        options=GradeOptions,
    )
    metric: ClassVar[str] = "accuracy"

    @classmethod
    def learned_from(cls, train: Sequence[ScoredText], options: GradeOptions) -> GradingTask:
        """Finds the best grade.

        Raises:
            InputError: there is one grade only.
        """
        best = options.best_grade or int(max(example.score for example in train))
        if best < 2:
            raise InputError("the training file has one grade only; there is nothing to learn")
        return cls(best, train[0].pair is not None)

    def config_fields(self) -> dict[str, Any]:
        """Returns an output for each grade but the best."""
        return {"id2label": {k: f"better than {k + 1}" for k in range(self.best_grade - 1)}, "problem_type": MULTI}

    def targets(self, examples: Sequence[ScoredText]) -> list[list[int]]:
        """Returns a 0 or 1 for each output."""
        for example in examples:
            if example.score not in range(1, self.best_grade + 1):
                raise InputError(f"{example.at}{example.score:g} is no grade from 1 to {self.best_grade}")
        return [[int(example.score > k) for k in range(1, self.best_grade)] for example in examples]

    @property
    def objective(self) -> MultiLabelObjective:
        """Each "better than" is a yes or a no by itself."""
        return MultiLabelObjective()

    def metrics(self, examples: Sequence[ScoredText], predictions: Sequence[int]) -> dict[str, float]:
        """Returns the share of right grades, and how far off they are on average."""
        distances = np.abs(np.subtract([example.score for example in examples], predictions))
        return {"accuracy": float((distances == 0).mean()), "distance": float(distances.mean())}

    def evaluate(self, examples: Sequence[ScoredText], predictions: Sequence[int]) -> Evaluation:
        """Adds an interval, and the wrong grades."""
        hits = [example.score == grade for example, grade in zip(examples, predictions, strict=True)]
        wrong = [
            Mistake(shown(example), f"{example.score:g}", str(grade), 1.0)
            for example, grade in zip(examples, predictions, strict=True)
            if example.score != grade
        ]
        return Evaluation(
            self.metrics(examples, predictions), {"accuracy": bootstrap_interval(hits)}, mistakes=worst(wrong)
        )

    @staticmethod
    def record(found: int) -> Record:
        """Returns the grade."""
        return {"prediction": found}
