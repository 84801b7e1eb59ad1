"""The file in a run folder with the scores of its baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.errors import RunFolderError
from bertsmith.files import locked
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.json_files import read_json, write_json

BASELINES_FILE = "baselines.json"
"""Its name."""


@dataclass(frozen=True)
class BaselineScores:
    """The scores of the baselines of a run.

    Attributes:
        on: the file they were scored on.
        seed: of everything random.
        evaluations: by name.
    """

    on: Literal["dev", "test"]
    seed: int
    evaluations: Mapping[str, Evaluation]


def read_baselines(run: str | Path) -> BaselineScores | None:
    """Reads the baselines of a run folder; None where there are none.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = Path(run) / BASELINES_FILE
    advice = "remove it and run the same command again"
    return read_json(path, BaselineScores, RunFolderError, advice) if path.exists() else None


def add_scores(
    run: Path,
    on: Literal["dev", "test"],
    names: Sequence[str],
    train: Callable[[Sequence[str]], Iterable[tuple[str, Evaluation]]],
    *,
    seed: int,
) -> dict[str, Evaluation]:
    """Trains those baselines that a run folder has no scores of, and keeps each as soon as it is scored.

    Args:
        run: the run folder.
        on: the file they are scored on.
        names: of the baselines.
        train: trains the named ones and gives the scores of each.
        seed: of everything random.

    Returns:
        Name → evaluation, of all that are in the file now.

    Raises:
        RunFolderError: the file is damaged, or of another seed or file, or cannot be written.
    """
    with locked(run):
        found = read_baselines(run) or BaselineScores(on, seed, {})
        if (found.on, found.seed) != (on, seed):
            raise RunFolderError(
                f"{run / BASELINES_FILE}: is of seed {found.seed} on {found.on}; remove it or choose another --out"
            )
        evaluations = dict(found.evaluations)
        for name, evaluation in train([name for name in names if name not in evaluations]):
            evaluations[name] = evaluation
            # 每算完一个就写盘：被杀掉之后只补算缺的
            write_json(run / BASELINES_FILE, BaselineScores(on, seed, evaluations))
    return evaluations
