"""Where requests are accepted: a bounded number at a time, each in a thread of its own, until its deadline.

The event loop only reads and writes bytes. A body is parsed, checked, tokenized and answered in the request's thread,
so that a hostile one costs its own time alone. A place is taken when the body is complete, so that clients who send
slowly hold none, and given back when the thread has ended, so that there is a thread for every accepted request.
How much of the queue and of the memory for bodies one client may hold is in `shares`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from bertsmith.serve.batching import Batcher
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.request_context import CURRENT, RequestContext, too_late
from bertsmith.serve.settings import ServeSettings
from bertsmith.serve.shares import has_share

ResultT = TypeVar("ResultT")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_GRACE = 0.05
"""Seconds by which the event loop leaves the first word on a deadline to the request's own thread."""

FREE_BYTES = 16_384
"""Bytes of each body that do not count against the memory set aside for bodies: 16 MiB over all connections."""


class AdmissionController:
    """Accepts requests.

    Attributes:
        free: how many more can be accepted now.
        draining: whether the server is about to stop.
        held_bytes: of the bodies of all requests that are being read or answered.
    """

    def __init__(self, settings: ServeSettings, batcher: Batcher) -> None:
        """Opens.

        Args:
            settings: of the server.
            batcher: computes for the requests.
        """
        self._held: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self.settings = settings
        self.batcher = batcher
        self.free = settings.queue
        self.draining = False
        self.held_bytes = 0
        # 请求线程里的张量运算都很小：单线程即可，否则每个线程各养一池 OpenMP 线程，与计算线程抢核
        self._threads = ThreadPoolExecutor(settings.queue, "request", initializer=torch.set_num_threads, initargs=(1,))

    @property
    def accepted(self) -> int:
        """How many requests are being answered."""
        return self.settings.queue - self.free

    def require_place(self, client: str) -> None:
        """Makes sure that one more request can be accepted.

        Args:
            client: who sent it, see `shares.client_of`.

        Raises:
            HttpError: 429; it says when to come back.
        """
        if self.free <= 0 or not has_share(client, self._held[client], self.free):
            raise HttpError(
                429,
                "queue_full",
                f"{self.accepted} requests are being answered already, {self._held[client]} of them for this client",
                retry_after=self.batcher.seconds_to_empty(),
            )

    @contextlib.contextmanager
    def reading(self, client: str) -> Iterator[Reading]:
        """Gives what reads the body of one request, and forgets its bytes when the request is over."""
        reading = Reading(self, client)
        try:
            yield reading
        finally:
            self.hold(client, -reading.counted)
            # 不留下零：来过的地址不能越攒越多
            if not self._bytes[client]:
                del self._bytes[client]

    def hold(self, client: str, size: int) -> None:
        """Counts bytes of bodies that came, or, below 0, that are no longer needed."""
        self.held_bytes += size
        self._bytes[client] += size

    def has_room(self, client: str) -> bool:
        """Tells whether the bytes that are held leave the other clients some room."""
        free = self.settings.reading_bytes - self.held_bytes
        return free >= 0 and has_share(client, self._bytes[client], free)

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
        answer.add_done_callback(functools.partial(self._release, context.client))
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

    def admit(self, client: str) -> RequestContext:
        """Takes a place for a request whose body is complete.

        Args:
            client: who sent it, see `shares.client_of`.

        Raises:
            HttpError: there is none (429).
        """
        self.require_place(client)
        self.free -= 1
        self._held[client] += 1
        context = RequestContext(time.monotonic() + self.settings.deadline, self.settings.limits)
        context.client = client
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

    def _release(self, client: str, answer: asyncio.Future[Any]) -> None:
        self.free += 1
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
        # 已无人等待的请求若以异常结束，取出异常，免得事件循环把它（连同文本）写进日志
        if not answer.cancelled():
            answer.exception()


class Reading:
    """The body of one request, counted while it comes.

    Attributes:
        size: bytes so far.
        counted: those of them that count against the memory set aside for bodies.
    """

    def __init__(self, admission: AdmissionController, client: str) -> None:
        self.admission = admission
        self.client = client
        self.size = 0
        self.counted = 0

    async def body(self, receive: Receive, announced: str | None) -> bytes:
        """Reads it.

        Args:
            receive: gives its parts.
            announced: the `Content-Length` header.

        Raises:
            HttpError: it is too large (413), comes too slowly (408), or with those of others fills the memory set aside
                for bodies (429); or the client hung up.
        """
        settings = self.admission.settings
        if announced is not None and announced.isdecimal() and int(announced[:20]) > settings.limits.body_bytes:
            raise _too_large(settings.limits.body_bytes)
        try:
            return await asyncio.wait_for(self._read(receive), settings.deadline)
        except asyncio.TimeoutError:
            said = f"the body was not complete after {settings.deadline:g} seconds"
            raise HttpError(408, "slow_body", said) from None

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        try:
            while await self._read_part(receive, parts):
                pass
            return b"".join(parts)
        finally:
            # 异常的回溯还牵着这个列表，要等垃圾回收才放手：被拒绝的请求体必须立刻放掉
            parts.clear()

    async def _read_part(self, receive: Receive, parts: list[bytes]) -> bool:
        """Reads some more, and tells whether there is still more to come."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise gone()
        parts.append(message.get("body", b""))
        self.size += len(parts[-1])
        # 边读边数：分块传输没有 Content-Length，不能等读完才发现太大
        if self.size > self.admission.settings.limits.body_bytes:
            raise _too_large(self.admission.settings.limits.body_bytes)
        # 小请求不计：慢慢发来的大请求占满额度时，别人的几句话仍读得进来；连接数有限，这部分内存也有限
        more = max(0, self.size - FREE_BYTES) - self.counted
        self.counted += more
        self.admission.hold(self.client, more)
        # 许多人各发一个大请求，合起来也会占满内存
        if more and not self.admission.has_room(self.client):
            raise HttpError(429, "bodies_full", "too many large bodies at a time; send it again", retry_after=1)
        return bool(message.get("more_body", False))


def gone() -> HttpError:
    """The error of a request whose client hung up; nobody reads it."""
    return HttpError(499, "hung_up", "the client hung up; the work was dropped")


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(most: int) -> HttpError:
    return HttpError(413, "body_too_large", f"the body has more than {most} bytes; send fewer or shorter texts")
