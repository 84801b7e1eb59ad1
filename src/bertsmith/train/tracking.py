"""Following a run from outside: a listener is told when it starts, its figures, what it wrote, and how it ended.

    class Printer:
        def started(self, run): print(run.name, run.settings)
        def figures(self, kind, step, values): print(kind, step, values)
        def artefact(self, path): print(path)
        def ended(self, outcome): print(outcome)

    pretrain(folder, corpus, tokenizer, recipe, listeners=[Printer()])

TensorBoard, MLflow and Weights & Biases are such listeners, each in a file of `train.trackers`. `metrics.jsonl` is not
one of them: the run itself depends on it. A listener only watches. One that raises an error is left out from there on,
with one warning, and the run goes on.
"""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol

import bertsmith.train.trackers as package
from bertsmith.errors import ConfigError
from bertsmith.options import option
from bertsmith.train.stopping import TrainingStopped

Outcome = Literal["finished", "stopped", "failed"]
"""How a start of a run ends: at the last step; by a signal, to go on later; by an error."""

NONE = "none"
"""The word of the command line for no tracker at all."""


@dataclass(frozen=True)
class StartedRun:
    """What a listener is told of a run when it starts, or goes on.

    Attributes:
        folder: the run folder. A listener that must know the run again after a kill keeps a file in `folder/tracking`.
        kind: `pretrain` or `finetune`.
        settings: name → value, flat; numbers, words and None.
        step: steps taken before this start. Figures of later steps that were told before a kill come again, the same.
    """

    folder: Path
    kind: Literal["pretrain", "finetune"]
    settings: Mapping[str, Any]
    step: int = 0

    @property
    def name(self) -> str:
        """The name of the folder, with its parent's where the folder is one trial of a search."""
        folder = self.folder.resolve()
        return f"{folder.parent.parent.name}/{folder.name}" if folder.parent.name == "runs" else folder.name


class RunListener(Protocol):
    """What `pretrain` and `fine_tune` call, in the process of the first rank, in this order."""

    def started(self, run: StartedRun) -> None:
        """The run begins, or goes on after a stop or a kill; comes before everything else."""

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """New figures: `train` (averages since the last ones), `heldout` (pre-training), `dev`, `test`."""

    def artefact(self, path: Path) -> None:
        """A file, or the model folder, is finished; comes after all figures."""

    def ended(self, outcome: Outcome) -> None:
        """This start of the run is over; nothing comes after it."""


class Tracking:
    """Tells several listeners, within a `with` block that is one start of a run; none of them can end the run."""

    def __init__(self, listeners: Sequence[RunListener], run: StartedRun) -> None:
        self._listeners = list(listeners)
        self._run = run

    def __enter__(self) -> Tracking:
        self._tell("started", self._run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stopped = isinstance(error, (TrainingStopped, KeyboardInterrupt))
        self._tell("ended", "finished" if error is None else "stopped" if stopped else "failed")

    def figures(self, row: Mapping[str, Any]) -> None:
        """Tells a row of `metrics.jsonl`."""
        values = {name: float(value) for name, value in row.items() if name not in ("kind", "step")}
        self._tell("figures", row["kind"], row["step"], values)

    def artefact(self, path: Path) -> None:
        """Tells of a file or folder that is finished."""
        self._tell("artefact", path)

    def _tell(self, event: str, *told: Any) -> None:
        for listener in list(self._listeners):
            try:
                getattr(listener, event)(*told)
            except Exception as error:
                # 记录服务坏了不值得赔上几个小时的训练；也不再试：每次重试都可能卡住几分钟
                self._listeners.remove(listener)
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                warnings.warn(
                    f"{self._run.folder}: {type(listener).__name__} failed ({reason}); the run goes on without it, and"
                    " all figures are in metrics.jsonl",
                    RuntimeWarning,
                    stacklevel=2,
                )


def tracker_names() -> list[str]:
    """Returns the names of the trackers: the files of `train.trackers`."""
    return [module.name for module in pkgutil.iter_modules(package.__path__)]


def tracker_named(name: str, *, with_model: bool = False) -> RunListener:
    """Returns a tracker.

    Args:
        name: `mlflow`, `tensorboard` or `wandb`.
        with_model: upload the finished model folder, too; TensorBoard has no place for it.

    Raises:
        ConfigError: there is none of that name, or its library is not installed.
    """
    if name not in tracker_names():
        raise ConfigError(f"tracker {name!r} is unknown; use {', '.join(tracker_names())}")
    try:
        found: RunListener = import_module(f"{package.__name__}.{name}").TRACKER(with_model)
    except ImportError as error:
        raise ConfigError(f"--track {name}: {error}; pip install 'bertsmith[track]'") from None
    return found


def usual_trackers() -> list[RunListener]:
    """Returns what follows a pre-training run where nothing was chosen: TensorBoard where its writer is installed."""
    try:
        return [tracker_named("tensorboard")]
    except ConfigError:
        return []


def _tracker(name: str) -> str:
    """Checks a word of `--track`."""
    if name != NONE and name not in tracker_names():
        raise ConfigError(f"--track {name!r} is unknown; use {', '.join(tracker_names())} or {NONE}")
    return name


@dataclass(frozen=True)
class TrackingOptions:
    """Who follows the run.

    Attributes:
        track: names of trackers; `none` alone for nobody; empty for the usual ones of the command.
        track_model: whether they get the finished model folder as well.
    """

    panel: ClassVar[str] = "Tracking"

    track: tuple[str, ...] = option(
        (),
        parse_each=_tracker,
        shown_default="tensorboard for pre-training, where tensorboardX is installed",
        help="Tracker: mlflow, wandb or tensorboard; may be repeated; none turns it off.",
    )
    track_model: bool = option(False, help="Upload the finished model folder to MLflow or W&B too.")

    def __post_init__(self) -> None:
        """Checks that the words fit together."""
        if NONE in self.track and len(self.track) > 1:
            raise ConfigError("--track none: leave out the other trackers, or this one")
        if self.track_model and not set(self.track) & {"mlflow", "wandb"}:
            raise ConfigError("--track-model: say with --track mlflow or --track wandb who gets the model")

    def listeners(self) -> list[RunListener] | None:
        """Returns the trackers; None where nothing was chosen.

        Raises:
            ConfigError: the library of one is not installed.
        """
        if not self.track:
            return None
        return [tracker_named(name, with_model=self.track_model) for name in dict.fromkeys(self.track) if name != NONE]
