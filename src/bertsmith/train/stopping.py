"""Asking a run to stop: Ctrl-C and SIGTERM become a wish that the loop grants after the step it is in."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingStopped(KeyboardInterrupt):
    """A run was asked to stop, and its state is saved.

    It is no error: callers that know nothing of it treat it like Ctrl-C.

    Attributes:
        run: the run folder.
        step: steps taken.
        total_steps: steps to take.
    """

    def __init__(self, run: Path, step: int, total_steps: int) -> None:
        super().__init__(f"stopped after step {step} of {total_steps}, all saved in {run}; the same command goes on")
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
