"""Watching a run and asking it to stop: the progress bar, `metrics.jsonl`, and Ctrl-C or SIGTERM granted after a step.

`metrics.jsonl` holds one JSON object a line: `{"kind": "train", "step": ...}` averages since the line before,
`{"kind": "heldout", ...}` the validation figures. It is append-only; a resumed run first cuts it back to the length
it had when the state was saved, so no step is in it twice.

Each line carries the checksum of its figures, which is compared on reading: a digit that a disk turned into another
digit is still JSON. Lines of versions up to 0.2 carry none and are taken as they are. Only the last line may be half a
line: that is what a kill leaves.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from bertsmith.errors import RunFolderError
from bertsmith.files import CHECKSUM, checksum_of
from bertsmith.reporting.progress import LiveProgress


class MetricsLog:
    """Appends rows to `metrics.jsonl`."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        self.path = path
        # 被杀之前多写的几行属于还会重走的步：截掉，否则同一步会出现两次
        with path.open("ab") as handle:
            handle.truncate(min(keep_bytes, handle.tell()))

    def append(self, row: dict[str, Any]) -> None:
        """Writes one row."""
        try:
            with self.path.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps({**row, CHECKSUM: checksum_of(row)}) + "\n")
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


class DamagedLogError(RunFolderError, ValueError):
    """A line of a log is not what was written; a `ValueError` as well, as for any line that is no JSON."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Reads a log; one that is missing has no rows, and a last line that was cut off by a crash is left out."""
    rows: list[dict[str, Any]] = []
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_row_of(line))
        except (ValueError, RecursionError):
            # 被杀时最后一行可能只写了一半：没有行尾，也没有右括号；其余读不通的行都是损坏
            if number == len(lines) and line.isascii() and b"}" not in line:
                break
            raise DamagedLogError(
                f"{path}: line {number} is damaged; put a whole copy back, or remove the line once the run has ended"
            ) from None
    return rows


def figures_before_training(path: Path) -> dict[str, Any]:
    """Returns the held-out figures of a log from before the first step."""
    for row in read_metrics(path):
        if (row.get("kind"), row.get("step")) == ("heldout", 0):
            return row
    raise RunFolderError(f"{path}: holds no held-out figures of step 0; put a whole copy back, or choose another --out")


def _row_of(line: bytes) -> dict[str, Any]:
    row = json.loads(line.decode("ascii"))
    if not isinstance(row, dict) or row.pop(CHECKSUM, None) not in (None, checksum_of(row)):
        raise ValueError("no row, or its checksum differs")
    # 坏在校验和的名字上，它就成了一个写着文字的指标：除了 kind，一行里只有数
    if any(isinstance(value, str) for name, value in row.items() if name != "kind"):
        raise ValueError("a figure is no number")
    return row


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


class StepProgress:
    """Shows how far a run is, in steps."""

    def __init__(self, console: Console, title: str, *, total_steps: int, first_step: int = 0) -> None:
        self._title, self._total, self._progress = title, total_steps, LiveProgress(console)
        self._progress.begin(title, done=first_step, total=total_steps)

    def __enter__(self) -> StepProgress:
        self._progress.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._progress.__exit__(*raised)

    def update(self, step: int, figures: dict[str, str]) -> None:
        """Shows the state after `step` steps, with figures as they should be read."""
        named = [f"{name} {value}" for name, value in figures.items()]
        self._progress.update(self._title, step, self._total, "  ".join([f"{step}/{self._total}", *named]))


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingStopped(KeyboardInterrupt):
    """A run was asked to stop, and its state is saved; callers that know nothing of it treat it like Ctrl-C."""

    def __init__(self, run: Path, step: int, total_steps: int) -> None:
        super().__init__(f"stopped after step {step} of {total_steps}, all saved in {run}; the same command resumes")
        self.run, self.step, self.total_steps = run, step, total_steps


class StopRequest:
    """Whether somebody asked for an end."""

    made: bool = False

    def receive(self, signum: int, _frame: FrameType | None) -> None:
        """Notes the first signal; a second one ends the process at once, by that signal."""
        if self.made:
            # 第二次信号：恢复默认处理并重发，进程立即结束；已保存的状态是完整的
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        self.made = True


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turns SIGINT and SIGTERM into a request while the block runs; in other threads than the main one it does not."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in STOP_SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
