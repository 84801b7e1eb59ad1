"""What a search came to: its runs, the best of them on dev, and how scores move with the seed or from fold to fold.

`result.json` of a search holds this; the runs' own results stay in their folders.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import RunFolderError
from bertsmith.files import claim_folder, read_json
from bertsmith.finetune.further import FURTHER
from bertsmith.finetune.run import FORMAT, FineTuningResult
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.task import Task
from bertsmith.hub import noted_start

RUNS = "runs"
"""Folder of a search in which every run has a folder of its own."""

WEIGHTS = ("model", "adapter")
"""Folders of a run that hold weights."""


@dataclass(frozen=True)
class Trial:
    """One run of a search: its folder in `runs/`, the settings in which runs differ, its best epoch, its metrics.

    The task's metric stands first; `test` is empty where there is no test file.
    """

    name: str
    settings: dict[str, Any]
    epoch: int
    dev: dict[str, float]
    test: dict[str, float]
    seconds: float

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any], result: FineTuningResult) -> Trial:
        """Takes the metrics of a finished run."""
        test = {} if result.test is None else result.test.metrics
        return cls(name, dict(settings), result.epoch, result.dev.metrics, test, round(result.seconds, 2))


@dataclass(frozen=True)
class Spread:
    """A metric over `seeds` ≥ 2 seeds, or parts of a cross-validation; `deviation` is that of a sample."""

    mean: float
    deviation: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Describes two values or more."""
        # ddof=1：种子只是总体中的一个样本，除以 n 会低估波动
        deviation = float(np.std(values, ddof=1))
        return cls(float(np.mean(values)), deviation, float(min(values)), float(max(values)), len(values))


@dataclass(frozen=True)
class SearchResult:
    """What a search came to.

    Attributes:
        best: name of the run with the best metric on dev, the earliest of equal ones; its weights are kept.
        dev_spread: metric → how it moves with the seed, under one setting; empty for a single seed, like `test_spread`.
        fold_spread: metric → how it moves over the parts of a cross-validation; empty where there is none.
    """

    metric: str
    rows: list[Trial]
    best: str
    dev_spread: dict[str, Spread]
    test_spread: dict[str, Spread]
    fold_spread: dict[str, Spread] = field(default_factory=dict)

    @property
    def best_row(self) -> Trial:
        """The row of the best run."""
        return next(row for row in self.rows if row.name == self.best)

    def __post_init__(self) -> None:
        if self.best not in {row.name for row in self.rows}:
            raise ValueError(f"the best run {self.best!r} is no row")

    @classmethod
    def load(cls, path: Path) -> SearchResult:
        """Reads the `result.json` of a search."""
        return read_json(path, cls, RunFolderError, "remove it and run the same command again")


def spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Returns metric → spread over runs, of those that all have; empty for fewer than two runs."""
    if len(runs) < 2:
        return {}
    # 有的指标只在两种问题都有的那几份上才有
    return {name: Spread.of([run[name] for run in runs]) for name in runs[0] if all(name in run for run in runs)}


def claim_search(
    folder: Path, task: Task[Any, Any], model_folder: str | Path, settings: FineTuningSettings, **compared: Any
) -> None:
    """Makes sure that a folder is empty, or belongs to this very search."""
    request = {
        "format": FORMAT,
        **noted_start(model_folder, folder / "search.json"),
        "task": {"task": task.name, **task.describe()},
        "settings": asdict(settings),
        **compared,
    }
    claim_folder(folder, "search.json", request, beside=FURTHER)


def remove_weights(run: Path) -> None:
    """Removes the weights of a run; its `result.json` stays, so that it is never trained again."""
    for name in WEIGHTS:
        shutil.rmtree(run / name, ignore_errors=True)


def keep_weights(folder: Path, run: str) -> None:
    """Moves the weights of a run up to the folder of the search; does nothing where an earlier start did it."""
    for name in WEIGHTS:
        source, target = folder / RUNS / run / name, folder / name
        # 改名是一步到位的：被打断在哪里，都不会留下半个模型
        if source.exists() and not target.exists():
            os.replace(source, target)
