"""A request on its way: until when, how much it has asked for so far, and whether anybody still waits for it.

The context of the request that a thread works for is in `CURRENT`; so the engine that stands behind a pipeline knows
whose work it is given, without the pipeline knowing of requests.
"""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar

from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.settings import Limits
from bertsmith.serve.shares import LOCAL


class RequestContext:
    """One accepted request.

    Attributes:
        deadline: when it must be answered, by `time.monotonic`.
        limits: how much it may ask for.
        items: texts it brought.
        tokens: that the model read for it so far, or is about to.
        client: who sent it, see `shares.client_of`.
        ended: why nobody waits for the answer any longer; None while somebody does.
    """

    def __init__(self, deadline: float, limits: Limits) -> None:
        self.deadline = deadline
        self.limits = limits
        self.client = LOCAL
        self.items = 0
        self.tokens = 0
        self.ended: HttpError | None = None
        self.on_its_way = True
        self._waiting: threading.Event | None = None

    def end(self, reason: HttpError) -> None:
        """Tells the thread that works for the request to stop; may be called by any thread."""
        self.ended = self.ended or reason
        waiting = self._waiting
        if waiting is not None:
            waiting.set()

    def check(self) -> None:
        """Ends the work where nobody waits for it.

        Raises:
            HttpError: the deadline has passed, or the client is gone.
        """
        if self.ended is not None:
            raise self.ended
        if time.monotonic() >= self.deadline:
            raise too_late()

    def count(self, tokens: int) -> None:
        """Adds tokens that the model is to read.

        Raises:
            HttpError: together they are too many.
        """
        self.tokens += tokens
        if self.tokens > self.limits.tokens:
            raise HttpError(
                413,
                "too_many_tokens",
                f"the request has {self.tokens} tokens or more, at most {self.limits.tokens} are taken; send fewer or"
                " shorter texts",
            )

    def wait(self, done: threading.Event) -> None:
        """Waits for work to be done.

        Raises:
            HttpError: the deadline has passed, or the client is gone.
        """
        # 先登记再检查：若在两步之间被取消，end 要么看见登记、要么被这次检查看见
        self._waiting = done
        self.check()
        done.wait(max(0.0, self.deadline - time.monotonic()))
        self._waiting = None
        if self.ended is not None:
            raise self.ended
        if not done.is_set():
            raise too_late()


CURRENT: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)
"""The context of the request that the running thread works for."""


def too_late() -> HttpError:
    """The error of a request whose deadline has passed."""
    return HttpError(504, "deadline", "not answered in time; the work was dropped", retry_after=1)
