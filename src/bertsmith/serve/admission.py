"""Where requests are accepted: a bounded number at a time, each in a thread of its own, until its deadline.

The event loop only reads and writes bytes. A body is parsed, checked, tokenized and answered in the request's thread,
so that a hostile one costs its own time alone. A place is taken when the body is complete, so that clients who send
slowly hold none, and given back when the thread has ended, so that there is a thread for every accepted request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from bertsmith.serve.batching import Batcher
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.request_context import CURRENT, RequestContext, too_late
from bertsmith.serve.settings import ServeSettings

ResultT = TypeVar("ResultT")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_GRACE = 0.05
"""Seconds by which the event loop leaves the first word on a deadline to the request's own thread."""


class AdmissionController:
    """Accepts requests.

    Attributes:
        free: how many more can be accepted now.
        draining: whether the server is about to stop.
    """

    def __init__(self, settings: ServeSettings, batcher: Batcher) -> None:
        self.settings = settings
        self.batcher = batcher
        self.free = settings.queue
        self.draining = False
        # 请求线程里的张量运算都很小：单线程即可，否则每个线程各养一池 OpenMP 线程，与计算线程抢核
        self._threads = ThreadPoolExecutor(settings.queue, "request", initializer=torch.set_num_threads, initargs=(1,))

    @property
    def accepted(self) -> int:
        """How many requests are being answered."""
        return self.settings.queue - self.free

    def require_place(self) -> None:
        """Makes sure that one more request can be accepted.

        Raises:
            HttpError: 429; it says when to come back.
        """
        if self.free <= 0:
            raise HttpError(
                429,
                "queue_full",
                f"{self.settings.queue} requests are being answered already",
                retry_after=self.batcher.seconds_to_empty(),
            )

    async def read_body(self, receive: Receive, announced: str | None) -> bytes:
        """Reads the body of a request.

        Args:
            receive: gives its parts.
            announced: the `Content-Length` header.

        Raises:
            HttpError: it is too large (413) or comes too slowly (408), or the client hung up.
        """
        most = self.settings.limits.body_bytes
        if announced is not None and announced.isdecimal() and int(announced[:20]) > most:
            raise _too_large(most)
        try:
            return await asyncio.wait_for(_read(receive, most), self.settings.deadline)
        except asyncio.TimeoutError:
            raise HttpError(
                408, "slow_body", f"the body was not complete after {self.settings.deadline:g} seconds"
            ) from None

    async def perform(
        self, work: Callable[[RequestContext], ResultT], context: RequestContext, receive: Receive
    ) -> ResultT:
        """Does the work of a request in a thread, while somebody waits for it.

        Args:
            work: does it.
            context: of the request, from `admit`.
            receive: tells when the client hangs up.

        Raises:
            HttpError: it was refused, took too long (504), or the client hung up.
        """
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, self._work, work, context)
        answer.add_done_callback(self._release)
        hang_up = asyncio.ensure_future(_hang_up(receive))
        either: set[asyncio.Future[Any]] = {answer, hang_up}
        try:
            left = context.deadline - time.monotonic() + _GRACE
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            # 客户端已挂断或已超时：告诉线程停手，它在队列里的工作随即撤出
            reason = gone() if hang_up.done() else too_late()
            context.end(reason)
            raise reason
        finally:
            hang_up.cancel()

    def admit(self) -> RequestContext:
        """Takes a place for a request whose body is complete.

        Raises:
            HttpError: there is none (429).
        """
        self.require_place()
        self.free -= 1
        context = RequestContext(time.monotonic() + self.settings.deadline, self.settings.limits)
        self.batcher.announce(context)
        return context

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _work(self, work: Callable[[RequestContext], ResultT], context: RequestContext) -> ResultT:
        CURRENT.set(context)
        try:
            context.check()
            return work(context)
        finally:
            CURRENT.set(None)
            self.batcher.arrive(context)

    def _release(self, answer: asyncio.Future[Any]) -> None:
        self.free += 1
        # 已无人等待的请求若以异常结束，取出异常，免得事件循环把它（连同文本）写进日志
        if not answer.cancelled():
            answer.exception()


def gone() -> HttpError:
    """The error of a request whose client hung up; nobody reads it."""
    return HttpError(499, "hung_up", "the client hung up; the work was dropped")


async def _read(receive: Receive, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise gone()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        # 边读边数：分块传输没有 Content-Length，不能等读完才发现太大
        if size > most:
            raise _too_large(most)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(most: int) -> HttpError:
    return HttpError(413, "body_too_large", f"the body has more than {most} bytes; send fewer or shorter texts")
