"""The file in a run folder that says what its baselines came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import RunFolderError
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.json_files import read_json, write_json

BASELINES_FILE = "baselines.json"
"""Its name."""


@dataclass(frozen=True)
class BaselineScores:
    """What the baselines of a run came to.

    Attributes:
        on: the file they were scored on, `dev` or `test`.
        seed: of everything random.
        evaluations: by name.
    """

    on: str
    seed: int
    evaluations: Mapping[str, Evaluation]

    def save(self, run: Path) -> None:
        """Writes `baselines.json`."""
        write_json(run / BASELINES_FILE, self)


def read_baselines(run: str | Path) -> BaselineScores | None:
    """Reads the baselines of a run folder; None where there are none.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = Path(run) / BASELINES_FILE
    if not path.exists():
        return None
    return read_json(path, BaselineScores, RunFolderError, "remove it and run the same command again")
