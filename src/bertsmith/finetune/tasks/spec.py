"""What a task declares of itself, once, in its own file: everything that others would otherwise list by its name.

The command line, the readers of files, the learning rate, predictions for whole files, the model card, the lab's form
and the server's endpoints read it from here, through `registry`. What a task *does* is in `task.Task`; what it *is* is
a `TaskSpec`, the class attribute `spec` of each task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from bertsmith.finetune.datasets.reader import Reader
from bertsmith.inference.pipeline import Pipeline
from bertsmith.model import PretrainedModel

Bilingual = tuple[str, str]
"""The same in English and in Chinese."""


@dataclass(frozen=True)
class NoOptions:
    """The options of a task that has none."""

    panel: ClassVar[str] = "Options of the task"


@dataclass(frozen=True)
class InputFields:
    """What one input of the model consists of.

    Attributes:
        first: what the first text is called.
        second: what the second one is called; None where there is none.
        lines: what any number of further texts are called, such as choices; None where there are none.
        least: fields of a line of a file of inputs, with tabs between, at least.
        most: at most.
        pairs: whether an input is one text or two, as the model was trained; `first` is then that of a lone text.
    """

    first: Bilingual
    second: Bilingual | None = None
    lines: Bilingual | None = None
    least: int = 1
    most: int = 1
    pairs: bool = False


@dataclass(frozen=True)
class CardText:
    """What the model card says about a task.

    Attributes:
        hub_task: the hub's name of the task.
        does: completes "This model …".
        limit: what it does with an input that does not fit, as a sentence.
        ours: the arguments of a call of the pipeline; the second form is for pairs of texts.
        theirs: a call with the field's libraries, `FOLDER` for the model; the second form is for pairs of texts.
    """

    hub_task: str
    does: str
    limit: str
    ours: tuple[str, str]
    theirs: tuple[str, str]


WINDOWS_LIMIT = (
    "Longer inputs are read in overlapping windows; what is farther apart than a window is never seen together."
)
"""The limit of a task that cuts long inputs."""


FRESH_RATE = 1e-3
"""Suits adapters, and layers over features that stay as they are."""

_RATE_FACTORS: tuple[tuple[float, float], ...] = ((128, 6.0), (256, 4.0), (512, 2.0), (math.inf, 1.0))
"""Greatest hidden size → how many times the rate of base models suits."""

# 归一化在前的小模型经得起大步；归一化在后的（BERT 原来的块）会被带坏
_FAMILY_RATE_FACTORS = {"modernbert": ((256, 12.0), *_RATE_FACTORS[2:])}
"""Family → the same, where it differs (docs/notes/measurements.md, "The rate of small models")."""


@dataclass(frozen=True)
class TaskSpec:
    """The declarations of a task.

    Attributes:
        name: the word on the command line and in `task.json`, such as `classify`; also the name of its pipeline.
        title: what it is, for people.
        architecture: the model that it trains.
        reader: of its labelled files.
        pipeline: the class that predicts with a trained model; it says which fields of the task it is told, and at
            which endpoint a server offers it, see `inference.pipeline`.
        inputs: what a prediction is made of.
        card: what the model card says.
        options: a dataclass of `bertsmith.options` with what the user can choose; its fields are options of
            `bertsmith finetune`, and `Task.learned_from` receives it.
        learning_rate: a peak to begin with; the paper's unless the task trains few and fresh weights.
        batch_size: examples in a step to begin with.
        predicts_number: whether a mistake is a distance rather than a wrong choice.
        is_explained: whether its scores can be attributed to words, see `bertsmith.interpret`.
        has_baselines: whether simpler models can be trained for comparison, by `Task.add_baselines`.
    """

    name: str
    title: Bilingual
    architecture: type[PretrainedModel]
    reader: Reader[Any]
    pipeline: type[Pipeline]
    inputs: InputFields
    card: CardText
    options: type = NoOptions
    learning_rate: float = 5e-5
    batch_size: int = 16
    predicts_number: bool = False
    is_explained: bool = True
    has_baselines: bool = False

    def usual_rate(self, adapter: str | None, *, hidden_size: int, family: str = "bert") -> float:
        """Returns a peak learning rate to begin with.

        Small models were found to do best at the upper end of the rates tried, up to 3e-4 (Turc et al. 2019, §4.1).

        Args:
            adapter: its kind; None or empty for none.
            hidden_size: of the model.
            family: its `model_type`.
        """
        # 适配器和新写的层本来就用大学习率：与模型大小无关
        if adapter or self.learning_rate >= FRESH_RATE:
            return max(FRESH_RATE, self.learning_rate)
        factors = _FAMILY_RATE_FACTORS.get(family, _RATE_FACTORS)
        return self.learning_rate * next(factor for width, factor in factors if hidden_size <= width)
