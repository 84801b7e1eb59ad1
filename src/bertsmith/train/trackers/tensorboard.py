"""The figures of a run as TensorBoard curves in `RUN/tensorboard`, by the small writer `tensorboardX`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from bertsmith.train.tracking import Outcome, StartedRun


class TensorBoard:
    """Writes curves named `train/mlm_loss`, `heldout/perplexity` and so on; every start of a run adds a file."""

    def __init__(self, _with_model: bool = False) -> None:
        self._writer: Any = None

    def started(self, run: StartedRun) -> None:
        """Opens the file."""
        # 从较早的状态续训时，旧文件里之后的点作废：否则同一步会有两个值
        purge = run.step + 1 if run.step else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)

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


TRACKER = TensorBoard
