"""uvicorn's HTTP connection, with an end to the patience for clients who hold one and do nothing with it.

Notable:
- what comes before and after a body has a largest size, which the parser does not ask for; a head must come in time,
  however slowly its bytes drip; the body has the deadline of the request
- an answer that is computed leaves the queue, but its bytes stay in memory until the client has taken them. uvicorn
  waits for that without limit; here the connection is cut
- there is always room for one more: where too many are open, the oldest that waits for its client is closed. A limit
  that refuses newcomers instead would let a thousand silent connections close the server for everybody
"""

from __future__ import annotations

import asyncio
import functools
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertsmith.serve.settings import ServeSettings

HEAD_SECONDS = 10.0
"""In which the head of a request must be complete, from the connection or its first byte on."""

MOST_HEAD_BYTES = 65_536
"""Of the address and the headers of a request together; also of what the parser keeps of a body's framing."""

MOST_CONNECTIONS = 1024
_SPARE_FILES = 128
"""Files that a process needs besides its connections: models, threads' pipes, logs."""


def most_connections() -> int:
    """Returns how many connections a process keeps open, as its limit of files allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + 2 * _SPARE_FILES
    if soft < wanted:
        # 软上限常常只有 1024：进程自己可以提高到硬上限
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(16, min(MOST_CONNECTIONS, soft - _SPARE_FILES))


def patient_connection(settings: ServeSettings) -> Any:
    """Returns what makes the connections of a server, for uvicorn's `http`."""
    # 用 partial：设置要能传给工作进程
    return functools.partial(TimedConnection, deadline=settings.deadline, most=most_connections())


class TimedConnection(HttpToolsProtocol):
    """A connection whose requests must come, and whose answers must be taken, in time."""

    def __init__(self, *args: Any, deadline: float, most: int, **kwargs: Any) -> None:
        """Opens it.

        Args:
            *args: uvicorn's own.
            deadline: seconds in which an answer that the system's buffers do not hold must be read.
            most: connections that a process keeps open.
            **kwargs: uvicorn's own.
        """
        super().__init__(*args, **kwargs)
        self._deadline = deadline
        self._most = most
        self._unread: asyncio.TimerHandle | None = None
        self._unsent: asyncio.TimerHandle | None = None
        self._kept_bytes = 0
        # 按连接的先后排列；uvicorn 自己的集合没有次序
        self._opened: dict[TimedConnection, None] = vars(self.server_state).setdefault("opened", {})

    @property
    def is_waiting(self) -> bool:
        """Whether the next step is the client's: a request, or the rest of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Is told that the connection is open."""
        super().connection_made(transport)
        self._opened[self] = None
        self._expect_head()
        if len(self._opened) > self._most:
            # 让最久没有动静的让位；都在等答案时，只好请新来的稍后再来
            oldest = next((each for each in self._opened if each.is_waiting), self)
            del self._opened[oldest]
            oldest.transport.abort()

    def on_message_begin(self) -> None:
        """Is told that a head begins."""
        super().on_message_begin()
        self._kept_bytes = 0

    def on_headers_complete(self) -> None:
        """Is told that a head is complete.

        Raises:
            ValueError: it is too large; the parser stops at it, and the client gets 400.
        """
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
            return
        if self.cycle is not None and not self.cycle.response_complete:
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
