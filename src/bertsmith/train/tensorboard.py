"""The rows of `metrics.jsonl` as TensorBoard curves, where the small writer `tensorboardX` is installed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import explain_failure


class TensorBoardLog:
    """Writes curves named `train/mlm_loss`, `heldout/perplexity` and so on; or nothing."""

    def __init__(self, folder: Path, *, wanted: bool | None, first_step: int = 0) -> None:
        """Opens the log.

        Args:
            folder: made when there is something to write; every start of a run adds a file.
            wanted: None writes where the writer is installed.
            first_step: curves of a start before this one are hidden from here on.

        Raises:
            ConfigError: it is wanted, and its writer is not installed.
        """
        self.folder = folder
        self._writer: Any = None
        if wanted is False:
            return
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            if wanted:
                raise ConfigError("--tensorboard needs its writer: pip install 'bertsmith[tensorboard]'") from None
            return
        # 从较早的状态续训时，旧文件里之后的点作废：否则同一步会有两个值
        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)

    def append(self, row: dict[str, Any]) -> None:
        """Adds the figures of one row of `metrics.jsonl`.

        Raises:
            RunFolderError: the disk is full.
        """
        if self._writer is None:
            return
        try:
            for name, value in row.items():
                if name not in ("kind", "step"):
                    self._writer.add_scalar(f"{row['kind']}/{name}", value, row["step"])
            self._writer.flush()
        except OSError as error:
            raise RunFolderError(explain_failure(error, self.folder)) from error

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            # 磁盘满了的话，训练已经报了错：曲线关不上不该盖过那个错误
            with contextlib.suppress(OSError):
                self._writer.close()
