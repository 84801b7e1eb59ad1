"""Watching a run: the progress bar on a terminal, plain lines elsewhere, and `metrics.jsonl` for everything after.

`metrics.jsonl` holds one JSON object a line: `{"kind": "train", "step": ...}` averages since the line before,
`{"kind": "heldout", ...}` the validation figures. It is append-only; a resumed run first cuts it back to the length
it had when the state was saved, so no step is in it twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from bertsmith.errors import RunFolderError
from bertsmith.progress import LiveProgress


class MetricsLog:
    """Appends rows to `metrics.jsonl`."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        """Opens the log.

        Args:
            path: made when missing.
            keep_bytes: what lies behind this length belongs to steps that will be taken again, and is cut off.
        """
        self.path = path
        # 被杀之前多写的几行属于还会重走的步：截掉，否则同一步会出现两次
        with path.open("ab") as handle:
            handle.truncate(min(keep_bytes, handle.tell()))

    def append(self, row: dict[str, Any]) -> None:
        """Writes one row.

        Raises:
            RunFolderError: the disk is full or the file cannot be written.
        """
        try:
            with self.path.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(row) + "\n")
        except OSError as error:
            raise RunFolderError(
                f"{self.path}: cannot be written ({error.strerror}); make room and run again"
            ) from error

    def flush_to_disk(self) -> None:
        """Makes sure that the rows survive a loss of power, before a state refers to them."""
        with self.path.open("rb") as handle:
            os.fsync(handle.fileno())

    @property
    def size(self) -> int:
        """Length of the file in bytes; goes into the training state."""
        return self.path.stat().st_size


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads a log; a last line that was cut off by a crash is left out."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            # 断电时最后一行可能只写了一半：它之前的都可信，之后的都没有
            break
    return rows


class Throughput:
    """How fast a run is, since its last start.

    Attributes:
        started: when, by the monotonic clock; moved on by pauses.
        peak: operations a second that this machine's matmul reaches; 0 until it is measured.
    """

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.peak = 0.0
        self._tokens = 0
        self._matmul_seconds = 0.0

    def count(self, tokens: int, flops: float) -> None:
        """Counts a step: its tokens over all ranks, and its operations on one."""
        self._tokens += tokens
        self._matmul_seconds += flops / self.peak

    def rates(self) -> tuple[float, float]:
        """Returns tokens a second, and the share of the time that the operations take at the peak."""
        elapsed = max(1e-9, time.monotonic() - self.started)
        return self._tokens / elapsed, self._matmul_seconds / elapsed

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the time that passes in the block: measuring the peak is no training."""
        begun = time.monotonic()
        yield
        self.started += time.monotonic() - begun


class StepProgress:
    """Shows how far a run is, in steps."""

    def __init__(self, console: Console, title: str, *, total_steps: int, first_step: int = 0) -> None:
        self._title = title
        self._total = total_steps
        self._progress = LiveProgress(console)
        self._progress.begin(title, done=first_step, total=total_steps)

    def __enter__(self) -> StepProgress:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def update(self, step: int, figures: dict[str, str]) -> None:
        """Shows the state after `step` steps.

        Args:
            step: steps taken.
            figures: short name → value, as they should be read.
        """
        named = [f"{name} {value}" for name, value in figures.items()]
        self._progress.update(self._title, step, self._total, "  ".join([f"{step}/{self._total}", *named]))
