"""What a study is: arms that differ in one thing. The files of `tables` are the list of studies.

start   a pre-training run; arms that differ in fine-tuning alone share it
arm     a row of the table: a start, the point of its run, and how its labels are learned
study   arms, what the paper found, and what is compared with what
"""

from __future__ import annotations

import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal

from bertsmith.options import named
from bertsmith.study.results import Row

Equal = Literal["time", "steps"]
"""What runs that are compared share."""

FINE_TUNED: Mapping[str, Mapping[str, Any]] = {"": {}}
"""The usual way to learn a task: the whole model is trained."""


@dataclass(frozen=True)
class Base:
    """What all arms of a study share, where they say nothing else.

    Attributes:
        family: of the models.
        size: of the models.
        sequence_length: in pieces.
        vocab_size: pieces.
        has_tags: some task is tagging.
    """

    family: str
    size: str
    sequence_length: int
    vocab_size: int
    has_tags: bool = False


@dataclass(frozen=True)
class Start:
    """A pre-training run.

    Attributes:
        settings: of the recipe, as name and value, where they are not those of the base.
        vocab_size: pieces; 0 for those of the base.
        share: of the training documents that are read, in (0, 1].
        equal: what it shares with the runs that it is compared with.
    """

    settings: tuple[tuple[str, Any], ...] = ()
    vocab_size: int = 0
    share: float = 1.0
    equal: Equal = "time"

    @property
    def name(self) -> str:
        """A name for its folder."""
        parts = [f"{name}={value}" for name, value in self.settings]
        parts += [f"pieces={self.vocab_size}"] * bool(self.vocab_size)
        parts += [f"text={self.share:g}"] * (self.share < 1)
        parts += ["equal-steps"] * (self.equal == "steps")
        return re.sub(r"[^\w=+.-]+", "_", ",".join(parts)) or "base"


def start(equal: Equal = "time", **settings: Any) -> Start:
    """Returns a start with some settings of the recipe."""
    return Start(tuple(settings.items()), equal=equal)


@dataclass(frozen=True)
class Arm:
    """A row of a study.

    Attributes:
        name: for people.
        start: what it begins from.
        readings: how the labels of tasks are learned: what is added to the name of the column → options of the task
            `features`, which takes the place of tagging; without options the whole model is fine-tuned.
        point: the share of the pre-training after which the model is taken.
        place: where it stands on the axis of the study's curve; None where a fact of the run says it.
        group: the part of the table that it belongs to; arms are compared within it.
    """

    name: str
    start: Start
    readings: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: FINE_TUNED)
    point: float = 1.0
    place: float | None = None
    group: str = ""


class Study(ABC):
    """A table of the paper, or one that it leaves out.

    Attributes:
        name: the word on the command line.
        title: of the page.
        source: where the paper, or another one, has it.
        found: what was found there, in a sentence.
        columns: the figures on held-out text that it compares.
        points: how many models are kept along each run.
        axis: the fact or the place that its curve is drawn over, with its title; None for rows of dots.
        needs_tags: it makes sense with a tagging task only.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    found: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    points: ClassVar[int] = 0
    axis: ClassVar[tuple[str, str] | None] = None
    needs_tags: ClassVar[bool] = False

    @abstractmethod
    def arms(self, base: Base) -> list[Arm]:
        """Returns the rows; the first of each group is what the others of the group are compared with."""

    def remarks(self, rows: Sequence[Row]) -> list[str]:  # noqa: ARG002
        """Returns what else the figures say, in sentences."""
        return []


def studies() -> dict[str, Study]:
    """Returns every study by its name; the files of `tables` are the list."""
    package: Any = import_module("bertsmith.study.tables")
    # 类在导入时才登记为子类：先把每个文件都导入
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return {kind.name: kind() for kind in sorted(Study.__subclasses__(), key=lambda kind: kind.name)}


def study_named(name: str) -> Study:
    """Returns a study.

    Raises:
        ConfigError: there is none of that name.
    """
    return named(name, studies(), "study")
