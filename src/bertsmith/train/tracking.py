"""Following a run from outside: a listener is told when it starts, its figures, what it wrote, and how it ended.

    class Printer:
        def started(self, run): print(run.name, run.settings)
        def figures(self, kind, step, values): print(kind, step, values)
        def artefact(self, path): print(path)
        def ended(self, outcome): print(outcome)

    pretrain(folder, corpus, tokenizer, recipe, listeners=[Printer()])

MLflow, TensorBoard and Weights & Biases are such listeners (`TRACKERS`), each by its own client, which is imported when
the tracker is asked for. `metrics.jsonl` is not one of them: the run itself depends on it. A listener only watches. One
that raises an error is left out from there on, with one warning, and the run continues.
"""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol

from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import make_folder, read_json, write_json
from bertsmith.settings import Checked, named, option
from bertsmith.train.monitor import TrainingStopped

Outcome = Literal["finished", "stopped", "failed"]
"""How a start of a run ends: at the last step; by a signal, to resume later; by an error."""

NONE = "none"
"""The word of the command line for no tracker at all."""


@dataclass(frozen=True)
class StartedRun:
    """What a listener is told of a run when it starts, or resumes.

    Attributes:
        folder: the run folder. A listener that must know the run again after a kill keeps a file in `folder/tracking`.
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
        """The run begins, or resumes after a stop or a kill; comes before everything else."""

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
                    f"{self._run.folder}: {type(listener).__name__} failed ({reason}); the run continues without"
                    " it, and all figures are in metrics.jsonl",
                    RuntimeWarning,
                    stacklevel=2,
                )


class MLflow:
    """A run as a run of MLflow: its settings as parameters, its figures as metrics, its files as artefacts.

    Where: the variables of MLflow, `MLFLOW_TRACKING_URI` (a server, or `sqlite:///mlflow.db` in this folder without it)
    and `MLFLOW_EXPERIMENT_NAME` (`bertsmith` without it). Only MLflow's client is used, no global state: several runs
    in one process do not meet.
    """

    STATUS: ClassVar = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
    PARAMETERS_AT_ONCE = 100
    """Most parameters that MLflow takes in a request."""

    def __init__(self, with_model: bool = False) -> None:
        import mlflow.entities
        import mlflow.tracking

        self._mlflow: Any = mlflow
        self._with_model = with_model

    def started(self, run: StartedRun) -> None:
        """Makes a run there, or resumes the one that this folder has already."""
        self._client = self._mlflow.tracking.MlflowClient()
        self._last_steps: dict[str, int] = {}
        note = make_folder(run.folder / "tracking") / "mlflow.json"
        self._run_id = self._noted(note)
        self._resumed = bool(self._run_id)
        if self._resumed:
            self._client.update_run(self._run_id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "bertsmith"
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        tags = {"bertsmith.kind": run.kind, "bertsmith.folder": str(run.folder.resolve())}
        self._run_id = self._client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        write_json(note, {"run_id": self._run_id, "uri": self._client.tracking_uri})
        parameters = [self._mlflow.entities.Param(key, str(value)) for key, value in run.settings.items()]
        for first in range(0, len(parameters), self.PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run_id, params=parameters[first : first + self.PARAMETERS_AT_ONCE])

    def _noted(self, note: Path) -> str:
        """Returns the run that the folder belongs to, if it is still there; else nothing."""
        noted = read_json(note, dict[str, str], RunFolderError, "remove it") if note.exists() else {}
        if noted.get("uri") != self._client.tracking_uri:
            return ""
        try:
            found: str = self._client.get_run(noted.get("run_id", "")).info.run_id
        except self._mlflow.MlflowException as error:
            # 只有“没有这个运行”才另起一个；连不上服务器是另一回事，照常报出
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return ""
            raise
        return found

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each curve, in one request."""
        now = int(time.time() * 1000)
        points = [self._mlflow.entities.Metric(f"{kind}/{name}", value, now, step) for name, value in values.items()]
        # 被杀之后重走的步早已记过：MLflow 删不掉旧点，再记一遍曲线就有两个值
        if new := [point for point in points if step > self._last_step(point.key)]:
            self._client.log_batch(self._run_id, metrics=new)

    def _last_step(self, key: str) -> int:
        """Returns the last step that a curve had when this start began; -1 where it had none."""
        if self._resumed and key not in self._last_steps:
            history = self._client.get_metric_history(self._run_id, key)
            self._last_steps[key] = max((point.step for point in history), default=-1)
        return self._last_steps.get(key, -1)

    def artefact(self, path: Path) -> None:
        """Uploads a file, or the model folder where that was asked for."""
        if path.is_file():
            self._client.log_artifact(self._run_id, str(path))
        elif self._with_model:
            self._client.log_artifacts(self._run_id, str(path), path.name)

    def ended(self, outcome: Outcome) -> None:
        """Ends the run there."""
        self._client.set_terminated(self._run_id, self.STATUS[outcome])


class TensorBoard:
    """Curves such as `train/mlm_loss` in `RUN/tensorboard`, by the writer `tensorboardX`; every start adds a file."""

    def __init__(self, _with_model: bool = False) -> None:
        from tensorboardX import SummaryWriter

        self._open: Callable[..., Any] = SummaryWriter

    def started(self, run: StartedRun) -> None:
        """Opens the file."""
        # 从较早的状态续训时，旧文件里之后的点作废：否则同一步会有两个值
        self._writer = self._open(str(run.folder / "tensorboard"), purge_step=run.step + 1 if run.step else None)

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each curve."""
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)
        self._writer.flush()

    def artefact(self, _path: Path) -> None:
        """Does nothing: TensorBoard shows figures only."""

    def ended(self, _outcome: Outcome) -> None:
        """Ends the file."""
        self._writer.close()


class WeightsAndBiases:
    """A run as a run of Weights & Biases: its settings as config, its figures as history, its files beside.

    Where: the variables of its client, such as `WANDB_PROJECT` (`bertsmith` without it) and `WANDB_MODE=offline`, which
    writes into `RUN/tracking` alone, for `wandb sync` later.
    """

    def __init__(self, with_model: bool = False) -> None:
        import wandb

        self._wandb: Any = wandb
        self._with_model = with_model

    def started(self, run: StartedRun) -> None:
        """Makes a run there, or resumes the one that this folder has already."""
        note = make_folder(run.folder / "tracking") / "wandb.json"
        if not note.exists():
            write_json(note, {"id": uuid.uuid4().hex[:12]})
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "bertsmith",
            name=run.name,
            # 编号记在运行文件夹里：续训时接着同一个运行，而不是另起一个
            id=read_json(note, dict[str, str], RunFolderError, "remove it")["id"],
            resume="allow",
            dir=str(note.parent),
            job_type=run.kind,
            config=dict(run.settings),
            settings=self._wandb.Settings(console="off", silent=True),
        )

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each curve; points of steps that were told before are dropped there."""
        self._run.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def artefact(self, path: Path) -> None:
        """Uploads a file, or the model folder where that was asked for."""
        if path.is_file():
            self._run.save(str(path), base_path=str(path.parent), policy="now")
        elif self._with_model:
            model = self._wandb.Artifact(f"{path.name}-{self._run.id}", type="model")
            model.add_dir(str(path))
            self._run.log_artifact(model)

    def ended(self, outcome: Outcome) -> None:
        """Sends what is left, and ends the run there."""
        self._run.finish(exit_code=0 if outcome == "finished" else 1)


TRACKERS: dict[str, Callable[[bool], RunListener]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
"""Name → listener; a new entry becomes a value of `--track`. It is made with whether to upload the model folder."""


def tracker_named(name: str, *, with_model: bool = False) -> RunListener:
    """Returns a tracker of `TRACKERS`; `ConfigError` where there is none of that name, or its library is missing."""
    make = named(name, TRACKERS, "tracker")
    try:
        return make(with_model)
    except ImportError as error:
        raise ConfigError(f"--track {name}: {error}; pip install 'bertsmith[track]'") from None


def usual_trackers() -> list[RunListener]:
    """Returns what follows a pre-training run where nothing was chosen: TensorBoard where its writer is installed."""
    try:
        return [tracker_named("tensorboard")]
    except ConfigError:
        return []


def _tracker(name: str) -> str:
    if name not in (NONE, *TRACKERS):
        raise ConfigError(f"--track {name!r} is unknown; use {', '.join(TRACKERS)} or {NONE}")
    return name


@dataclass(frozen=True)
class TrackingOptions(Checked):
    """Who follows the run."""

    panel: ClassVar[str] = "Tracking"

    track: tuple[str, ...] = option(
        (),
        parse_each=_tracker,
        shown_default="tensorboard for pre-training, where tensorboardX is installed",
        help="Tracker: mlflow, wandb or tensorboard; may be repeated; none turns it off.",
    )
    track_model: bool = option(False, help="Upload the finished model folder to MLflow or W&B too.")

    def _check_together(self) -> None:
        if NONE in self.track and len(self.track) > 1:
            raise ConfigError("--track none: leave out the other trackers, or this one")
        if self.track_model and not set(self.track) & {"mlflow", "wandb"}:
            raise ConfigError("--track-model: say with --track mlflow or --track wandb who gets the model")

    def listeners(self) -> list[RunListener] | None:
        """Returns the trackers; None where nothing was chosen."""
        if not self.track:
            return None
        return [tracker_named(name, with_model=self.track_model) for name in dict.fromkeys(self.track) if name != NONE]
