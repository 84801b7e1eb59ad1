"""uvicorn's connections: an end to patience with clients who hold one idly, and a stop that loses no request.

- what comes before and after a body has a largest size, which the parser does not ask for; a head must come in time,
  however slowly its bytes drip; the body has the deadline of the request
- an answer's bytes stay in memory until the client takes them; uvicorn waits forever, here the connection is cut
- where too many connections are open, the oldest that waits for its client is closed; uvicorn's `limit_concurrency`
  refuses newcomers instead: a thousand silent connections would close the server for everybody
- on SIGTERM `/ready` says no for a moment, so that a load balancer can notice, while requests are still answered and
  clients are asked to close; only then uvicorn stops listening, waits for accepted requests, and ends
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import resource
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertsmith.serve.guard import AdmissionController
from bertsmith.serve.settings import ServeSettings

HEAD_SECONDS = 10.0
"""In which the head of a request must be complete, from the connection or its first byte on."""

MOST_HEAD_BYTES = 65_536
"""Of the address and the headers of a request together; also of what the parser keeps of a body's framing."""

MOST_CONNECTIONS = 1024
_SPARE_FILES = 128
"""Files that a process needs besides its connections: models, threads' pipes, logs."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ECHO_SECONDS = 2.0
"""A signal to a whole group of processes reaches a worker twice, the second time through its parent within a second."""


def patient_connection(settings: ServeSettings) -> Any:
    """Returns what makes the connections of a server, for uvicorn's `http`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + 2 * _SPARE_FILES
    if soft < wanted:
        # 软上限常常只有 1024：进程自己可以提高到硬上限
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = max(16, min(MOST_CONNECTIONS, soft - _SPARE_FILES))
    # 用 partial：设置要能传给工作进程
    return functools.partial(TimedConnection, deadline=settings.deadline, most=most)


class TimedConnection(HttpToolsProtocol):
    """A connection whose requests must come, and whose answers must be taken, in time.

    `deadline` is the seconds in which an answer that the system's buffers do not hold must be read.
    """

    def __init__(self, *args: Any, deadline: float, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline = deadline
        self._most = most
        self._unread: asyncio.TimerHandle | None = None
        self._unsent: asyncio.TimerHandle | None = None
        self._kept_bytes = 0
        # 按连接的先后排列；uvicorn 自己的集合没有次序
        self._opened: dict[TimedConnection, None] = vars(self.server_state).setdefault("opened", {})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Is told that the connection is open."""
        super().connection_made(transport)
        self._opened[self] = None
        self._expect_head()
        if len(self._opened) > self._most:
            # 让最久没有动静的让位；都在等答案时，只好请新来的稍后再来
            oldest = next((each for each in self._opened if each._waits_for_client()), self)
            del self._opened[oldest]
            oldest.transport.abort()

    def _waits_for_client(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def on_message_begin(self) -> None:
        """Is told that a head begins."""
        super().on_message_begin()
        self._kept_bytes = 0

    def on_headers_complete(self) -> None:
        """Is told that a head is complete; ValueError where it is too large: the client gets 400."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_HEAD_BYTES:
            raise ValueError("the head is too large")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Is told of a part of a body."""
        super().on_body(body)
        self._kept_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Is told of bytes."""
        # 没完的请求头、正文之后的尾部，解析器多大都攒着：凡是没有开始新请求、也没有带来正文的字节，都数着
        self._kept_bytes += len(data)
        super().data_received(data)
        if self._kept_bytes > MOST_HEAD_BYTES:
            self.send_400_response("The head is too large.")
        elif self.cycle is not None and not self.cycle.response_complete:
            self._unsent = _cancelled(self._unsent)
        else:
            # 一字节一字节地发请求头，不会让时限重新开始
            self._expect_head()

    def pause_writing(self) -> None:
        """Is told that more waits to be sent than should; from now the time runs."""
        super().pause_writing()
        # 必须是 abort：close 会先等缓冲区发完，而对方正是不读
        self._unread = self._unread or self.loop.call_later(self._deadline, self.transport.abort)

    def resume_writing(self) -> None:
        """Is told that nearly all is sent."""
        super().resume_writing()
        self._unread = _cancelled(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        """Is told that the connection has ended."""
        super().connection_lost(exc)
        self._opened.pop(self, None)
        self._unread, self._unsent = _cancelled(self._unread), _cancelled(self._unsent)

    def _expect_head(self) -> None:
        self._unsent = self._unsent or self.loop.call_later(min(HEAD_SECONDS, self._deadline), self.transport.abort)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Stops a timer; returns None, what it is replaced by."""
    if timer is not None:
        timer.cancel()
    return None


@contextlib.contextmanager
def drain_on_signal(loop: asyncio.AbstractEventLoop, admission: AdmissionController) -> Iterator[None]:
    """Puts the drain before what the process does on SIGTERM and SIGINT."""
    # 信号处理只能装在主线程；测试里的服务器跑在别的线程，没有信号可言
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
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
            if multiprocessing.parent_process() is None or time.monotonic() - began > _ECHO_SECONDS:
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
