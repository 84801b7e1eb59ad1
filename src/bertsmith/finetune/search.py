"""Many runs of one task: the paper's grid, what Optuna tries, and the same settings from several seeds.

Fine-tuning on small files is unstable (§4.1 of the paper restarts BERT-large several times for that reason): a single
score says little. So a grid is tried, or several seeds, and the table is kept.

Notable:
- every run lives in its own folder, `runs/NAME/`, and `fine_tune` returns at once for a finished one: a search killed
  anywhere goes on where it was
- only dev decides; of two equal runs the earlier one wins, so that the choice does not depend on where it was killed
- the weights of a run that is not the best so far are removed: the disk holds two models at most, however long the
  grid; its `result.json` stays, so that it is never trained again
- with a grid (or Optuna) and several seeds, the first seed is taken for it, then its best settings with the others
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.errors import ConfigError, RunFolderError, TrainingError
from bertsmith.files import locked
from bertsmith.finetune.report.run_report import write_report
from bertsmith.finetune.run import FineTuningResult, fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.task import ExampleT, PredictionT, Task
from bertsmith.finetune.trials import RUNS, SearchResult, Trial, claim_search, keep_weights, remove_weights, spreads
from bertsmith.finetune.tuning import STUDY, Space, Tuner, describe_space
from bertsmith.json_files import from_json, read_json
from bertsmith.train.tracking import RunListener

Grid = Mapping[str, Sequence[Any]]
"""Field of `FineTuningSettings` → the values to try."""

PAPER_GRID: Grid = {"batch_size": (16, 32), "learning_rate": (5e-5, 3e-5, 2e-5), "epochs": (2, 3, 4)}
"""The 18 settings of appendix A.3."""


def paper_grid(learning_rate: float) -> Grid:
    """Returns the paper's grid around a rate: adapters and small models want its proportions, not its rates.

    Args:
        learning_rate: the highest; 5e-5 gives the paper's.
    """
    rates = (float(f"{learning_rate * rate / 5e-5:.3g}") for rate in PAPER_GRID["learning_rate"])
    return {**PAPER_GRID, "learning_rate": tuple(rates)}


_SHORT = {"batch_size": "batch", "learning_rate": "lr"}


def search(
    task: Task[ExampleT, PredictionT],
    model_folder: str | Path,
    train: Sequence[ExampleT],
    dev: Sequence[ExampleT],
    run: str | Path,
    settings: FineTuningSettings,
    *,
    grid: Grid | None = None,
    space: Space | None = None,
    trials: int = 0,
    seeds: int = 1,
    test: Sequence[ExampleT] | None = None,
    teacher: str | None = None,
    console: Console | None = None,
    device: torch.device | str = "cpu",
    listeners: Sequence[RunListener] = (),
) -> SearchResult:
    """Fine-tunes with every setting of a grid, or from several seeds, or both, and keeps the best model.

    Args:
        task: what is learned.
        model_folder: a model folder with its tokenizer.
        train: labelled examples.
        dev: labelled examples, by which the best epoch and the best run are chosen.
        run: the folder of the search: `model/` of the best run, `runs/`, `result.json`, `report.html`. The same call
            goes on where it was interrupted, or returns the result that is there.
        settings: of every run, where the grid says nothing else; its seed is the first.
        grid: which values to try of which settings; None for these settings only.
        space: instead of a grid, what Optuna may choose from, see `tuning`.
        trials: how many settings Optuna tries.
        seeds: from how many seeds, `settings.seed` and those after it, to train the settings, or the grid's best.
        test: labelled examples that choose nothing.
        teacher: as in `fine_tune`.
        console: shows progress; silent when None.
        device: where the models live.
        listeners: are told of every run, one after the other.

    Raises:
        ConfigError: the grid is empty or has an unknown or impossible setting, there is nothing to compare, or Optuna
            is not installed.
        InputError: a file is empty, or an example does not fit the task.
        RunFolderError: the folder holds something else, or a search with other settings, or cannot be written.
        CheckpointError: the model folder is not usable.
        TrainingStopped: SIGINT or SIGTERM came; the same call goes on.
    """
    folder = Path(run)
    cells = grid_cells(grid or {}, settings)
    if seeds < 1:
        raise ConfigError(f"seeds {seeds}: give 1 or more")
    if space is not None and (grid is not None or trials < 2):
        raise ConfigError("Optuna needs two trials or more, and no grid beside it")
    if space is None and len(cells) * seeds < 2:
        raise ConfigError("one setting and one seed is no search; give a grid or two seeds")
    tried = {name: list(values) for name, values in (grid or {}).items()}
    suggested = {} if space is None else {"space": describe_space(space), "trials": trials}
    claim_search(folder, task, model_folder, settings, grid=tried, **suggested, seeds=seeds)
    with locked(folder):
        console = console or Console(quiet=True)

        def fine_tuned(cell: FineTuningSettings, place: Path) -> FineTuningResult:
            how: dict[str, Any] = {"test": test, "teacher": teacher, "console": console, "device": device}
            return fine_tune(task, model_folder, train, dev, place, cell, listeners=listeners, **how)

        varied = [*(grid or space or {}), *(["seed"] if seeds > 1 else [])]
        # 最好的那组设置已用第一个种子跑过，只补其余的种子
        total = (len(cells) if space is None else trials) + seeds - 1
        started = _Search(task, folder, fine_tuned, console, varied, total)
        if (folder / "result.json").exists():
            return started.finished()
        if space is None:
            started.try_all(cells)
        else:
            started.try_suggested(Tuner(folder / STUDY, space, settings, maximized=task.metric), trials)
        return started.finish([settings.seed + number for number in range(seeds)])


def grid_cells(grid: Grid, settings: FineTuningSettings) -> list[FineTuningSettings]:
    """Returns the settings of every combination of a grid's values, the last name varying fastest.

    Raises:
        ConfigError: a name is no setting, or is the seed; a value is missing, given twice, or out of range.
    """
    known = {field.name for field in fields(FineTuningSettings)} - {"seed"}
    for name, values in grid.items():
        if name == "seed":
            raise ConfigError("a grid does not hold the seed; say how many seeds")
        if name not in known:
            raise ConfigError(f"the grid's {name!r} is no setting; use some of {', '.join(sorted(known))}")
        if not values or len(set(values)) < len(values):
            raise ConfigError(f"the grid's {name} {list(values)} must hold different values, at least one")
    combinations = itertools.product(*grid.values())
    return [replace(settings, **dict(zip(grid, values, strict=True))) for values in combinations]


class _Search:
    """One search in its folder."""

    def __init__(
        self,
        task: Task[Any, Any],
        folder: Path,
        fine_tuned: Callable[[FineTuningSettings, Path], FineTuningResult],
        console: Console,
        varied: list[str],
        total: int,
    ) -> None:
        """Takes `fine_tuned`, which makes a run in a folder of its own, or reads the one that is there."""
        self.task, self.folder, self.fine_tuned, self.console = task, folder, fine_tuned, console
        self.varied, self.total = varied, total
        self.rows: list[Trial] = []
        self.best: Trial | None = None
        self.settings: dict[str, FineTuningSettings] = {}

    def finished(self) -> SearchResult:
        """Returns the result that is there, if it is of the same files and model."""
        found = SearchResult.load(self.folder / "result.json")
        first = self.folder / RUNS / found.rows[0].name
        if not (first / "result.json").exists():
            raise RunFolderError(
                f"{self.folder}: its {RUNS}/ are gone, which say of what files it is; choose another --out"
            )
        # 首个运行的文件夹记着数据和模型的指纹：换了文件的同一条命令在这里被拒绝，而不是得到旧结果
        asked = read_json(first / "finetune.json", dict[str, Any], RunFolderError, "choose another --out")
        self.fine_tuned(from_json(FineTuningSettings, asked["settings"]), first)
        if not (self.folder / "report.html").exists():
            write_report(self.folder)
        return found

    def try_all(self, cells: Sequence[FineTuningSettings]) -> None:
        """Makes the runs of a grid that are missing."""
        for cell in cells:
            self.add(cell, self._name(cell))

    def try_suggested(self, tuner: Tuner, trials: int) -> None:
        """Makes the runs that are missing of those that Optuna suggests one after the other.

        Raises:
            TrainingError: not one of them could be trained.
        """
        failure = None
        for number in range(trials):
            settings = tuner.settings_of(number)
            if settings is None:
                continue
            try:
                row = self.add(settings, f"trial-{number:03d}")
            except TrainingError as error:
                # 学习率太高而发散也是一个结果：记作失败，采样器会避开那一带
                self.console.print(f"trial {number}: {error}", highlight=False, markup=False)
                tuner.tell(number, None)
                failure = error
                continue
            tuner.tell(number, self.task.selection_score(row.dev))
        if self.best is None and failure is not None:
            raise failure

    def finish(self, seeds: list[int]) -> SearchResult:
        """Makes the runs of the other seeds, keeps the best model, and writes the result."""
        assert self.best is not None
        chosen = self.settings[self.best.name]
        again = [replace(chosen, seed=seed) for seed in seeds[1:]]
        repeated = [self.best, *(self.add(one, self._name(one)) for one in again)]
        keep_weights(self.folder, self.best.name)
        result = SearchResult(
            next(iter(self.best.dev)),
            self.rows,
            self.best.name,
            spreads([row.dev for row in repeated]),
            spreads([row.test for row in repeated]),
        )
        result.save(self.folder / "result.json")
        write_report(self.folder)
        return result

    def add(self, settings: FineTuningSettings, name: str) -> Trial:
        """Makes a run, or reads it, and removes the weights of the worse of it and the best so far."""
        number = len(self.rows) + 1
        self.console.print(f"run {number}/{self.total}: {name}", highlight=False, markup=False)
        row = Trial.of(name, self._differences(settings), self.fine_tuned(settings, self.folder / RUNS / name))
        self.rows.append(row)
        self.settings[name] = settings
        # 表里的第一个指标就是决定取舍的那个：向量任务的指标随 dev 文件的种类而变
        metric, before = next(iter(row.dev)), self.best
        # 严格大于才换：持平时较早的胜出，重跑时每一步的选择都与第一次相同
        if before is None or self.task.selection_score(row.dev) > self.task.selection_score(before.dev):
            self.best = row
        assert self.best is not None
        for loser in {row.name, before.name if before else row.name} - {self.best.name}:
            remove_weights(self.folder / RUNS / loser)
        self.console.print(
            f"run {number}/{self.total}: dev {metric} {row.dev[metric]:.4f}, best {self.best.dev[metric]:.4f}"
            f" ({self.best.name})",
            highlight=False,
            markup=False,
        )
        return row

    def _differences(self, settings: FineTuningSettings) -> dict[str, Any]:
        return {name: getattr(settings, name) for name in self.varied}

    def _name(self, settings: FineTuningSettings) -> str:
        """Returns a readable name: the settings in which the runs differ, such as `batch16-lr5e-05-epochs2`."""
        return "-".join(f"{_SHORT.get(name, name)}{value}" for name, value in self._differences(settings).items())
