"""Stopping without losing a request.

On SIGTERM the server first says at `/ready` that it wants no more, goes on answering for a moment, so that a load
balancer can notice, and asks clients to close their connections. Only then uvicorn closes the door, waits for the
requests that were accepted, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from bertsmith.serve.reception import Reception

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def drain_on_signal(loop: asyncio.AbstractEventLoop, reception: Reception) -> Iterator[None]:
    """Puts the drain before what the process does on SIGTERM and SIGINT.

    Args:
        loop: that serves.
        reception: is told that it drains; its settings say for how long.
    """
    # 信号处理只能装在主线程；测试里的服务器跑在别的线程，没有信号可言
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def pass_on(number: int) -> None:
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, None)

    def drain(number: int, _: FrameType | None) -> None:
        # 第二次信号：有人等不及了，立即交给 uvicorn
        if reception.draining:
            pass_on(number)
            return
        reception.draining = True
        loop.call_soon_threadsafe(loop.call_later, reception.settings.drain, pass_on, number)

    for number in _SIGNALS:
        signal.signal(number, drain)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
