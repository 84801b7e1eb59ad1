"""Stopping without losing a request.

On SIGTERM the server first says at `/ready` that it wants no more, goes on answering for a moment, so that a load
balancer can notice, and asks clients to close their connections. Only then uvicorn stops listening, waits for the
requests that were accepted, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from bertsmith.serve.admission import AdmissionController

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ECHO_SECONDS = 2.0
"""A signal to a whole group of processes reaches a worker twice, the second time through its parent within a second."""


@contextlib.contextmanager
def drain_on_signal(loop: asyncio.AbstractEventLoop, admission: AdmissionController) -> Iterator[None]:
    """Puts the drain before what the process does on SIGTERM and SIGINT.

    Args:
        loop: that serves.
        admission: is told that it drains; its settings say for how long.
    """
    # 信号处理只能装在主线程；测试里的服务器跑在别的线程，没有信号可言
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    is_worker = multiprocessing.parent_process() is not None
    began = 0.0
    passed_on = False

    def pass_on(number: int) -> None:
        nonlocal passed_on
        passed_on = True
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, None)

    def drain(number: int, _: FrameType | None) -> None:
        nonlocal began
        if admission.draining:
            # 第二次信号：有人等不及了，立即交给 uvicorn；但发给整组进程的信号，父进程还会再转一次，那不算
            if not is_worker or time.monotonic() - began > _ECHO_SECONDS:
                pass_on(number)
            return
        began = time.monotonic()
        admission.draining = True
        loop.call_soon_threadsafe(loop.call_later, admission.settings.drain, end, number)

    def end(number: int) -> None:
        # 已经交过一次就不再交：uvicorn 把第二个 SIGINT 当作立即中断，会丢掉正在回答的请求
        if not passed_on:
            pass_on(number)

    for number in _SIGNALS:
        signal.signal(number, drain)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
