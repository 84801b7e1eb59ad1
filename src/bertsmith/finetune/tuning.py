"""Settings that Optuna suggests (Akiba et al. 2019), one trial after the other, from what the trials before came to.

The study lies in the search's folder, in Optuna's own journal: `optuna-dashboard` and `optuna.load_study` read it. A
trial that was killed is taken up with the settings it had. Each trial has a sampler of its own, seeded by the run's
seed and the trial's number: a search that was killed suggests the same as one that was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.errors import ConfigError
from bertsmith.finetune.settings import FineTuningSettings
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
    """Returns what matters most in fine-tuning (appendix A.3, and more), around a usual rate.

    Args:
        learning_rate: that such a model is usually given; from a fifth to three times of it is tried.
        fixed: settings that are not to be varied.
    """
    space: Space = {
        "learning_rate": Range(learning_rate / 5, learning_rate * 3, log=True),
        "batch_size": (8, 16, 32),
        "epochs": Range(2, 6),
        "warmup_share": Range(0.0, 0.2),
        "layer_decay": (0.8, 0.9, 0.95, 1.0),
    }
    return {name: choice for name, choice in space.items() if name not in fixed}


def describe_space(space: Space) -> dict[str, Any]:
    """Returns a space as JSON, as it is kept with the request of a search."""
    return {
        name: [choice.low, choice.high, choice.log] if isinstance(choice, Range) else list(choice)
        for name, choice in space.items()
    }


class Tuner:
    """Optuna's study of a search, in its file."""

    def __init__(self, path: Path, space: Space, settings: FineTuningSettings, *, maximized: str) -> None:
        """Opens the study, or begins it.

        Args:
            path: its journal.
            space: what may be chosen.
            settings: of every trial, but for the space.
            maximized: name of the figure that is told.

        Raises:
            ConfigError: Optuna is not installed, or nothing may be chosen.
        """
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

    def settings_of(self, number: int) -> FineTuningSettings | None:
        """Returns the settings of a trial, new or begun or finished before; None for one that failed before."""
        trials = self._study.get_trials(deepcopy=False)
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
        if self._study.get_trials(deepcopy=False)[number].state == state.RUNNING:
            self._study.tell(number, value, state=state.FAIL if value is None else None)
