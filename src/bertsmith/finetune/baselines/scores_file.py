"""The file in a run folder that says what its baselines came to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import RunFolderError
from bertsmith.files import write_text
from bertsmith.finetune.tasks.task import Evaluation

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
        values = {name: evaluation.to_json() for name, evaluation in self.evaluations.items()}
        record = {"on": self.on, "seed": self.seed, "baselines": values}
        write_text(run / BASELINES_FILE, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def read_baselines(run: str | Path) -> BaselineScores | None:
    """Reads the baselines of a run folder; None where there are none.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = Path(run) / BASELINES_FILE
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        evaluations = {name: Evaluation.from_json(record) for name, record in values["baselines"].items()}
        return BaselineScores(values["on"], values["seed"], evaluations)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{path}: damaged ({error}); remove it and run the same command again") from None
