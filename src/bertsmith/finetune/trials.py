"""What a search came to: its runs, the best of them on dev, and how far scores move with the seed.

`result.json` of a search holds this; the runs' own results stay in their folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import RunFolderError
from bertsmith.files import write_text
from bertsmith.finetune.run import FineTuningResult

RUNS = "runs"
"""Folder of a search in which every run has a folder of its own."""


@dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        name: of its folder in `runs/`.
        settings: those in which the runs differ, by name.
        epoch: its best one.
        dev: its figures on the dev file, the task's metric first.
        test: its figures on the test file; empty where there is none.
        seconds: spent training.
    """

    name: str
    settings: dict[str, Any]
    epoch: int
    dev: dict[str, float]
    test: dict[str, float]
    seconds: float

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any], result: FineTuningResult) -> Trial:
        """Takes the figures of a finished run."""
        test = {} if result.test is None else result.test.figures
        return cls(name, dict(settings), result.epoch, result.dev.figures, test, round(result.seconds, 2))


@dataclass(frozen=True)
class Spread:
    """A figure over several seeds.

    Attributes:
        mean: over the seeds.
        deviation: the sample standard deviation, with `seeds` - 1 below.
        low: the smallest.
        high: the largest.
        seeds: how many, at least 2.
    """

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
        metric: the figure that decides, on dev.
        rows: all runs, in the order in which they were made.
        best: name of the run with the best metric on dev, the earliest of equal ones; its weights are kept.
        dev_spread: figure → how it moves with the seed, under one setting; empty for a single seed.
        test_spread: the same on the test file.
    """

    metric: str
    rows: list[Trial]
    best: str
    dev_spread: dict[str, Spread]
    test_spread: dict[str, Spread]

    @property
    def best_row(self) -> Trial:
        """The row of the best run."""
        return next(row for row in self.rows if row.name == self.best)

    def save(self, path: Path) -> None:
        """Writes the result as JSON."""
        write_text(path, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> SearchResult:
        """Reads what `save` wrote.

        Raises:
            RunFolderError: the file is damaged.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            result = cls(
                values["metric"],
                [Trial(**row) for row in values["rows"]],
                values["best"],
                {name: Spread(**spread) for name, spread in values["dev_spread"].items()},
                {name: Spread(**spread) for name, spread in values["test_spread"].items()},
            )
            if result.best not in {row.name for row in result.rows}:
                raise ValueError(f"the best run {result.best!r} is no row")
            return result
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{path}: damaged ({error}); remove it and run the same command again") from None


def spreads(figures: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Returns figure → spread over runs; empty for less than two runs, or where they have no figures."""
    if len(figures) < 2:
        return {}
    return {name: Spread.of([run[name] for run in figures]) for name in figures[0]}
