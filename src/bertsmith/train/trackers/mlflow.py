"""A run as a run of MLflow: its settings as parameters, its figures as metrics, its files as artefacts.

Where: the variables of MLflow, `MLFLOW_TRACKING_URI` (a server, or `sqlite:///mlflow.db` in this folder without it)
and `MLFLOW_EXPERIMENT_NAME` (`bertsmith` without it). Only MLflow's client is used, no global state: several runs in
one process do not meet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from bertsmith.errors import RunFolderError
from bertsmith.files import make_folder
from bertsmith.json_files import read_json, write_json
from bertsmith.train.tracking import Outcome, StartedRun

STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
"""MLflow's word for each outcome."""

PARAMETERS_AT_ONCE = 100
"""Most parameters that MLflow takes in a request."""


class MLflow:
    """Tells a run to MLflow."""

    def __init__(self, with_model: bool = False) -> None:
        self._with_model = with_model

    def started(self, run: StartedRun) -> None:
        """Makes a run there, or goes on with the one that this folder has already."""
        self._client = MlflowClient()
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
        parameters = [Param(key, str(value)) for key, value in run.settings.items()]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run_id, params=parameters[first : first + PARAMETERS_AT_ONCE])

    def _noted(self, note: Path) -> str:
        """Returns the run that the folder belongs to, if it is still there; else nothing."""
        if not note.exists():
            return ""
        noted = read_json(note, dict[str, str], RunFolderError, "remove it")
        if noted.get("uri") != self._client.tracking_uri:
            return ""
        try:
            found: str = self._client.get_run(noted.get("run_id", "")).info.run_id
        except MlflowException as error:
            # 只有“没有这个运行”才另起一个；连不上服务器是另一回事，照常报出
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return ""
            raise
        return found

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each curve, in one request."""
        now = int(time.time() * 1000)
        points = [Metric(f"{kind}/{name}", value, now, step) for name, value in values.items()]
        # 被杀之后重走的步早已记过：MLflow 删不掉旧点，再记一遍曲线就有两个值
        new = [point for point in points if step > self._last_step(point.key)]
        if new:
            self._client.log_batch(self._run_id, metrics=new)

    def _last_step(self, key: str) -> int:
        """Returns the last step that a curve had when this start began; -1 where it had none."""
        if not self._resumed:
            return -1
        if key not in self._last_steps:
            history = self._client.get_metric_history(self._run_id, key)
            self._last_steps[key] = max((point.step for point in history), default=-1)
        return self._last_steps[key]

    def artefact(self, path: Path) -> None:
        """Uploads a file, or the model folder where that was asked for."""
        if path.is_file():
            self._client.log_artifact(self._run_id, str(path))
        elif self._with_model:
            self._client.log_artifacts(self._run_id, str(path), path.name)

    def ended(self, outcome: Outcome) -> None:
        """Ends the run there."""
        self._client.set_terminated(self._run_id, STATUS[outcome])


TRACKER = MLflow
