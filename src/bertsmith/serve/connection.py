"""uvicorn's HTTP connection, with an end to the patience for clients who ask and do not read.

An answer that is computed leaves the queue, but its bytes stay in memory until the client has taken them. uvicorn waits
for that without limit; here the connection is cut.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedConnection(H11Protocol):
    """A connection whose answers must be taken in time."""

    def __init__(self, *args: Any, deadline: float, **kwargs: Any) -> None:
        """Opens it.

        Args:
            *args: uvicorn's own.
            deadline: seconds in which an answer that the system's buffers do not hold must be read.
            **kwargs: uvicorn's own.
        """
        super().__init__(*args, **kwargs)
        self._deadline = deadline
        self._cut: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Is told that more waits to be sent than should; from now the time runs."""
        super().pause_writing()
        # 必须是 abort：close 会先等缓冲区发完，而对方正是不读
        self._cut = self._cut or self.loop.call_later(self._deadline, self.transport.abort)

    def resume_writing(self) -> None:
        """Is told that nearly all is sent."""
        super().resume_writing()
        self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Is told that the connection has ended."""
        super().connection_lost(exc)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None
