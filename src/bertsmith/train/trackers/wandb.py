"""A run as a run of Weights & Biases: its settings as config, its figures as history, its files beside.

Where: the variables of its client, such as `WANDB_PROJECT` (`bertsmith` without it) and `WANDB_MODE=offline`, which
writes into `RUN/tracking` alone, for `wandb sync` later.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from bertsmith.errors import RunFolderError
from bertsmith.files import make_folder
from bertsmith.json_files import read_json, write_json
from bertsmith.train.tracking import Outcome, StartedRun


class WeightsAndBiases:
    """Tells a run to Weights & Biases."""

    def __init__(self, with_model: bool = False) -> None:
        self._with_model = with_model

    def started(self, run: StartedRun) -> None:
        """Makes a run there, or goes on with the one that this folder has already."""
        folder = make_folder(run.folder / "tracking")
        note = folder / "wandb.json"
        if not note.exists():
            write_json(note, {"id": uuid.uuid4().hex[:12]})
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "bertsmith",
            name=run.name,
            # 编号记在运行文件夹里：续训时接着同一个运行，而不是另起一个
            id=read_json(note, dict[str, str], RunFolderError, "remove it")["id"],
            resume="allow",
            dir=str(folder),
            job_type=run.kind,
            config=dict(run.settings),
            settings=wandb.Settings(console="off", silent=True),
        )

    def figures(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each curve; points of steps that were told before are dropped there."""
        self._run.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def artefact(self, path: Path) -> None:
        """Uploads a file, or the model folder where that was asked for."""
        if path.is_file():
            self._run.save(str(path), base_path=str(path.parent), policy="now")
        elif self._with_model:
            model = wandb.Artifact(f"{path.name}-{self._run.id}", type="model")
            model.add_dir(str(path))
            self._run.log_artifact(model)

    def ended(self, outcome: Outcome) -> None:
        """Sends what is left, and ends the run there."""
        self._run.finish(exit_code=0 if outcome == "finished" else 1)


TRACKER = WeightsAndBiases
