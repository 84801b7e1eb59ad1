"""Many runs of one task: the paper's grid, what Optuna tries, several seeds, and cross-validation.

Fine-tuning on small files is unstable (§4.1 of the paper restarts BERT-large several times for that reason): a single
score says little. So several runs are made, and the table of them is kept.

- every run lives in its own folder, `runs/NAME/`, and `fine_tune` returns at once for a finished one: a search killed
  anywhere resumes where it was
- only dev decides; of two equal runs the earlier one wins, so that the choice does not depend on where it was killed
- the weights of a run that is not the best so far are removed: the disk holds two models at most
- with a grid (or Optuna) and several seeds, the first seed is taken for it, then its best settings with the others
- Optuna (Akiba et al. 2019) keeps its study in a journal in the folder. The run's seed and the trial's number seed the
  sampler of each trial: a search that was killed suggests the same as one that was not
- a part of a cross-validation only scores: the best epoch of each run is chosen on dev, or on a tenth of the other
  parts. The model that is kept is a last run, on the whole file
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.errors import ConfigError, InputError, RunFolderError, TrainingError
from bertsmith.files import from_json, read_json, working_in, write_json
from bertsmith.finetune.report import write_report
from bertsmith.finetune.run import FineTuningResult, fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.splits import fold_numbers, groups_of
from bertsmith.finetune.tasks.task import ExampleT, PredictionT, Task
from bertsmith.finetune.trials import RUNS, SearchResult, Trial, claim_search, keep_weights, remove_weights, spreads
from bertsmith.seeding import torch_seed

STUDY = "optuna.journal"
"""File of a search that holds the study."""

STUDY_NAME = "finetune"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `log` draws their logarithms evenly."""

    low: float
    high: float
    log: bool = False


Space = Mapping[str, Range | tuple[Any, ...]]
"""Field of `FineTuningSettings` → what it may be: a range (of whole numbers where its ends are), or one of several."""


def usual_space(learning_rate: float, *, fixed: tuple[str, ...] = ()) -> Space:
    """Returns what matters most in fine-tuning (appendix A.3, and more), around a usual rate."""
    space: Space = {
        "learning_rate": Range(learning_rate / 5, learning_rate * 3, log=True),
        "batch_size": (8, 16, 32),
        "epochs": Range(2, 6),
        "warmup_share": Range(0.0, 0.2),
        "layer_decay": (0.8, 0.9, 0.95, 1.0),
    }
    return {name: choice for name, choice in space.items() if name not in fixed}


class Tuner:
    """Optuna's study of a search, in its file."""

    def __init__(self, path: Path, space: Space, settings: FineTuningSettings, *, maximized: str) -> None:
        try:
            import optuna
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            raise ConfigError("--search optuna needs Optuna: pip install 'bertsmith[tune]'") from None
        if not space:
            raise ConfigError("--search optuna: every setting it varies is given; leave one of them out")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._settings = optuna, settings
        self._distributions = {name: self._distribution(choice) for name, choice in space.items()}
        # 日志文件只追加不改写：被杀在哪里，都能从它重放
        self._study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name=STUDY_NAME,
            direction="maximize",
            load_if_exists=True,
        )
        self._study.set_metric_names([maximized])

    def _distribution(self, choice: Range | tuple[Any, ...]) -> Any:
        kinds = self._optuna.distributions
        if not isinstance(choice, Range):
            return kinds.CategoricalDistribution(choice)
        if isinstance(choice.low, int) and isinstance(choice.high, int):
            return kinds.IntDistribution(choice.low, choice.high, log=choice.log)
        return kinds.FloatDistribution(choice.low, choice.high, log=choice.log)

    def _trials(self) -> list[Any]:
        """Returns the trials that have all their settings: one that was killed while it was drawn is drawn anew."""
        trials = self._study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.params.keys() == self._distributions.keys()]

    def settings_of(self, number: int) -> FineTuningSettings | None:
        """Returns the settings of a trial, new or begun or finished before; None for one that failed before."""
        trials = self._trials()
        if number < len(trials):
            if trials[number].state == self._optuna.trial.TrialState.FAIL:
                return None
            found = trials[number].params
        else:
            # 采样器由种子和序号决定：中断过的搜索与一口气跑完的给出同样的建议
            seed = torch_seed(self._settings.seed, "finetune/optuna", number) % 2**32
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
            found = self._study.ask(fixed_distributions=self._distributions).params
        # 三位有效数字足够：运行的配方和报告里好读
        chosen: dict[str, Any] = {
            name: float(f"{one:.3g}") if isinstance(one, float) else one for name, one in found.items()
        }
        return replace(self._settings, **chosen)

    def tell(self, number: int, value: float | None) -> None:
        """Tells what a trial came to, larger being better; None for one that could not be trained."""
        state = self._optuna.trial.TrialState
        trial = self._trials()[number]
        if trial.state == state.RUNNING:
            self._study.tell(trial.number, value, state=state.FAIL if value is None else None)


Grid = Mapping[str, Sequence[Any]]
"""Field of `FineTuningSettings` → the values to try."""

PAPER_GRID: Grid = {"batch_size": (16, 32), "learning_rate": (5e-5, 3e-5, 2e-5), "epochs": (2, 3, 4)}
"""The 18 settings of appendix A.3."""


def paper_grid(learning_rate: float) -> Grid:
    """Returns the paper's grid around a rate: adapters and small models want its proportions, not its rates."""
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
    console: Console | None = None,
    **how: Any,
) -> SearchResult:
    """Fine-tunes with every setting of a grid, or from several seeds, or both, and keeps the best model.

    The arguments, `how` included, are those of `fine_tune`; `dev` chooses the best epoch and the best run. `run` is the
    folder of the search (`model/` of the best run, `runs/`, `result.json`): the same call resumes where it was
    interrupted, or returns the result that is there. `settings` are those of every run where `grid`, or `space` with
    its `trials`, says nothing else; they, or the best of them, are trained from `seeds` seeds, `settings.seed` and
    those after it.

    Raises:
        ConfigError: the grid is empty or has an unknown or impossible setting, there is nothing to compare, or Optuna
            is not installed.
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
    suggested: dict[str, Any] = {}
    if space is not None:
        told = {n: list(astuple(one)) if isinstance(one, Range) else list(one) for n, one in space.items()}
        suggested = {"space": told, "trials": trials}
    with working_in(folder, f"{RUNS}/*/metrics.jsonl"):
        claim_search(folder, task, model_folder, settings, grid=tried, **suggested, seeds=seeds)
        console = console or Console(quiet=True)

        def fine_tuned(cell: FineTuningSettings, place: Path) -> FineTuningResult:
            return fine_tune(task, model_folder, train, dev, place, cell, console=console, **how)

        varied = [*(grid or space or {}), *(["seed"] if seeds > 1 else [])]
        # 最好的那组设置已用第一个种子跑过，只补其余的种子
        total = (len(cells) if space is None else trials) + seeds - 1
        started = _Search(task, folder, fine_tuned, console, varied, total)
        if (folder / "result.json").exists():
            return started.finished()
        if space is None:
            for cell in cells:
                started.add(cell, started.name_of(cell))
        else:
            started.try_suggested(Tuner(folder / STUDY, space, settings, maximized=task.metric), trials)
        return started.finish([settings.seed + number for number in range(seeds)])


def grid_cells(grid: Grid, settings: FineTuningSettings) -> list[FineTuningSettings]:
    """Returns the settings of every combination of a grid's values, the last name varying fastest."""
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
    def __init__(
        self,
        task: Task[Any, Any],
        folder: Path,
        fine_tuned: Callable[[FineTuningSettings, Path], FineTuningResult],
        console: Console,
        varied: list[str],
        total: int,
    ) -> None:
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

    def try_suggested(self, tuner: Tuner, trials: int) -> None:
        """Makes the runs that are missing of those that Optuna suggests one after the other."""
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
        assert self.best is not None
        chosen = self.settings[self.best.name]
        again = [replace(chosen, seed=seed) for seed in seeds[1:]]
        repeated = [self.best, *(self.add(one, self.name_of(one)) for one in again)]
        keep_weights(self.folder, self.best.name)
        result = SearchResult(
            next(iter(self.best.dev)),
            self.rows,
            self.best.name,
            spreads([row.dev for row in repeated]),
            spreads([row.test for row in repeated]),
        )
        write_json(self.folder / "result.json", result)
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

    def name_of(self, settings: FineTuningSettings) -> str:
        """Returns a readable name: the settings in which the runs differ, such as `batch16-lr5e-05-epochs2`."""
        return "-".join(f"{_SHORT.get(name, name)}{value}" for name, value in self._differences(settings).items())


WHOLE = "all"
"""Name of the run on the whole training file."""

DEV_PARTS = 10
"""Without a dev file, one part in this many of what a run learns from chooses its epoch."""


def cross_validate(
    task: Task[ExampleT, PredictionT],
    model_folder: str | Path,
    train: Sequence[ExampleT],
    dev: Sequence[ExampleT] | None,
    run: str | Path,
    settings: FineTuningSettings,
    *,
    folds: int,
    test: Sequence[ExampleT] | None = None,
    console: Console | None = None,
    **how: Any,
) -> SearchResult:
    """Fine-tunes K times, each time without one part of the training file, which scores; then once on the whole.

    The arguments, `how` included, are those of `fine_tune`. The result has a row for each part and for the last run;
    its `fold_spread` is over the parts.
    """
    folder, console = Path(run), console or Console(quiet=True)
    parts = fold_numbers(task, train, folds, settings.seed)
    with working_in(folder, f"{RUNS}/*/metrics.jsonl"):
        claim_search(folder, task, model_folder, settings, folds=folds, own_dev=dev is None)

        def fine_tuned(name: str, kept: Sequence[ExampleT], scored: Sequence[ExampleT] | None) -> FineTuningResult:
            learned, chooses = (kept, dev) if dev is not None else dev_of(task, kept, settings.seed)
            place = folder / RUNS / name
            return fine_tune(task, model_folder, learned, chooses, place, settings, test=scored, console=console, **how)

        rows = []
        for number in range(folds):
            name = f"fold-{number + 1}"
            console.print(f"fold {number + 1} of {folds}", highlight=False)
            kept, scored = _divided(train, parts, number)
            rows.append(Trial.of(name, {"run": name}, fine_tuned(name, kept, scored)))
            # 各折的模型只为打分：分数记下了，权重就不必占地方
            remove_weights(folder / RUNS / name)
        console.print("the whole training file", highlight=False)
        whole = Trial.of(WHOLE, {"run": WHOLE}, fine_tuned(WHOLE, train, test))
        keep_weights(folder, WHOLE)
        metric = next(iter(whole.dev))
        found = SearchResult(metric, [*rows, whole], WHOLE, {}, {}, spreads([row.test for row in rows]))
        write_json(folder / "result.json", found)
        spread = found.fold_spread[metric]
        console.print(
            f"{folds} folds: {metric} {spread.mean:.4f} ± {spread.deviation:.4f}, from {spread.low:.4f} to"
            f" {spread.high:.4f}",
            highlight=False,
        )
        write_report(folder)
        return found


def dev_of(task: Task[ExampleT, Any], examples: Sequence[ExampleT], seed: int) -> tuple[list[ExampleT], list[ExampleT]]:
    """Returns what a run learns from, and the part that chooses its epoch: a tenth, or more where groups are few."""
    groups = groups_of(task, examples)
    count = min(DEV_PARTS, len(set(groups)))
    if count < 2:
        raise InputError("without a fold, all of the training file belongs together; give --dev to choose epochs")
    parts = fold_numbers(task, examples, count, seed + 1, groups)
    return _divided(examples, parts, 0)


def _divided(examples: Sequence[ExampleT], parts: Sequence[int], held: int) -> tuple[list[ExampleT], list[ExampleT]]:
    """Returns the examples of all other parts, and those of the one that is held out."""
    pairs = list(zip(examples, parts, strict=True))
    return [one for one, part in pairs if part != held], [one for one, part in pairs if part == held]
