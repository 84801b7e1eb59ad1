"""What a study is: arms that differ in one thing. The classes of `tables` are the list of studies.

start   a pre-training run; arms that differ in fine-tuning alone share it
arm     a row of the table: a start, the point of its run, and how its labels are learned
study   arms, what the paper found, and what is compared with what
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal

from bertsmith.settings import named

Equal = Literal["time", "steps"]
"""What runs that are compared share."""

FINE_TUNED: Mapping[str, Mapping[str, Any]] = {"": {}}
"""The usual way to learn a task: the whole model is trained."""


@dataclass(frozen=True)
class Base:
    """What all arms of a study share, where they say nothing else; `models` of a study of finished ones."""

    family: str
    size: str
    sequence_length: int
    vocab_size: int
    has_tags: bool = False
    models: tuple[Start, ...] = ()


@dataclass(frozen=True)
class Start:
    """A pre-training run on a share in (0, 1] of the documents, or a finished `model`; `vocab_size` 0 is the base's."""

    settings: tuple[tuple[str, Any], ...] = ()
    vocab_size: int = 0
    share: float = 1.0
    equal: Equal = "time"
    model: str = ""

    @property
    def name(self) -> str:
        """A name for its folder."""
        parts = [f"{name}={value}" for name, value in self.settings]
        parts += [f"pieces={self.vocab_size}"] * bool(self.vocab_size)
        parts += [f"text={self.share:g}"] * (self.share < 1)
        parts += ["equal-steps"] * (self.equal == "steps")
        parts += [f"model={self.model[-80:]}"] * bool(self.model)
        return re.sub(r"[^\w=+.-]+", "_", ",".join(parts)) or "base"


def start(equal: Equal = "time", **settings: Any) -> Start:
    """Returns a start with some settings of the recipe."""
    return Start(tuple(settings.items()), equal=equal)


@dataclass(frozen=True)
class Arm:
    """A row of a study.

    Attributes:
        readings: how the labels of tasks are learned: what is added to the name of the column → options of the task
            `features`, which takes the place of tagging; without options the whole model is fine-tuned.
        place: where it stands on the axis of the study's curve; None where a fact of the run says it.
    """

    name: str
    start: Start
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: FINE_TUNED)
    point: float = 1.0
    place: float | None = None
    group: str = ""


@dataclass(frozen=True)
class Row:
    """What a run of an arm came to, or why it failed.

    Attributes:
        figures: column → value, such as `loss` in nats, `accuracy`, or a task's metric on its test file.
        facts: of the pre-training run: `parameters`, `steps`, `tokens`, `operations`, and `place` on the axis.
    """

    arm: str
    group: str
    seed: int
    figures: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


class Study(ABC):
    """A table of the paper, or one that it leaves out.

    Attributes:
        axis: the fact or the place that its curve is drawn over, with its title; None for rows of dots.
        pretrains: whether its arms begin with pre-training; of finished models, `Base.models`, otherwise.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    found: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    points: ClassVar[int] = 0
    axis: ClassVar[tuple[str, str] | None] = None
    needs_tags: ClassVar[bool] = False
    pretrains: ClassVar[bool] = True

    @abstractmethod
    def arms(self, base: Base) -> list[Arm]:
        """Returns the rows; the first of each group is what the others of the group are compared with."""

    def remarks(self, rows: Sequence[Row]) -> list[str]:  # noqa: ARG002
        """Returns what else the figures say, in sentences."""
        return []


def studies() -> dict[str, Study]:
    """Returns every study by its name."""
    # 类在导入时才登记为子类
    import_module("bertsmith_school.study.tables")
    return {kind.name: kind() for kind in sorted(Study.__subclasses__(), key=lambda kind: kind.name)}


def study_named(name: str) -> Study:
    """Returns a study."""
    return named(name, studies(), "study")
