"""Showing how far long work is: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


def say(line: str, console: Console | None) -> None:
    """Prints a line as it is, whatever it holds; nothing without a console."""
    if console is not None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class _Stage:
    """One bar, and where and when its work began."""

    bar: TaskID
    first: int
    started: float


class LiveProgress:
    """Shows one bar per stage of the work, in the order in which the stages first report."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_line = time.monotonic()
        self._stages: dict[str, _Stage] = {}
        self._bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:.0f} %  {task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> LiveProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def note(self, line: str) -> None:
        """Shows a line above the bars."""
        say(line, self._console)

    def begin(self, stage: str, *, done: int = 0, total: int | None = None) -> None:
        """Opens a stage of which `done` was done before, by an earlier start."""
        bar = self._bars.add_task(stage, total=total, completed=done, figures="")
        self._stages[stage] = _Stage(bar, done, time.monotonic())

    def rate(self, stage: str, done: int) -> float:
        """Returns the units a second since the stage began; what was done before does not count."""
        begun = self._stages.get(stage)
        return 0.0 if begun is None else (done - begun.first) / max(time.monotonic() - begun.started, 1e-9)

    def counter(self, stage: str, units: str) -> Callable[[int, int], None]:
        """Returns what shows a stage by how many of its units are done, and how many a second."""

        def show(done: int, total: int) -> None:
            rate = self.rate(stage, done)
            figures = f"{done:,} of {total:,} {units}" + (f", {rate:,.0f} {units}/s" if rate else "")
            self.update(stage, done, total, figures)

        return show

    def update(self, stage: str, done: int, total: int, figures: str) -> None:
        """Shows a stage; the first call begins it."""
        if stage not in self._stages:
            self.begin(stage, done=done, total=total)
        self._bars.update(self._stages[stage].bar, completed=done, total=total, figures=figures)
        now = time.monotonic()
        # 非终端（日志、CI）不画进度条：每隔几秒一行普通文字
        if not self._console.is_terminal and (now - self._last_line >= SECONDS_BETWEEN_LINES or done == total):
            self._last_line = now
            rate = self.rate(stage, done)
            left = f"  {(total - done) / rate:.0f} s left" if rate > 0 else ""
            self._console.print(f"{stage}: {figures}{left}", soft_wrap=True, highlight=False)
