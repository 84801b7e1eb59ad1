"""A request: how it is refused, who sends it, how much it may ask for, until when, and whether anybody still waits.

The context of the request that a thread works for is in `CURRENT`; so the engine behind a pipeline knows whose work it
is given, without the pipeline knowing of requests.

Places in the queue, waiting tokens and bytes of bodies are shared by dynamic thresholds (Choudhury and Hahne 1998): no
client takes more than three times what is still free. One alone gets three quarters; however much it asks for, there
is room for a newcomer, and nobody needs to know how many clients there are.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ipaddress import IPv6Address, ip_address

from starlette.responses import Response

from bertsmith.serve.settings import Limits

LOCAL = ""
"""The client that all programs of this machine are where no key tells them apart; it may take everything."""

_TIMES_FREE = 3
_NETWORK_BITS = 64


class HttpError(Exception):
    """A request that is not answered, and why.

    Attributes:
        code: a word for programs, such as `too_many_tokens`.
        where: the field it is about, such as `texts[3]`.
        retry_after: seconds after which another try makes sense; None where it never will.
        challenge: of a 401, how a key is asked for; browsers open a prompt for `Basic`, and none for `Bearer`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        where: str | None = None,
        retry_after: int | None = None,
        challenge: str = "Bearer",
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.where = status, code, message, where
        self.retry_after, self.challenge = retry_after, challenge

    def response(self) -> Response:
        """Returns the answer; its body has the shape that OpenAI's clients read."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.where, "code": self.code}
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = self.challenge
        # json.dumps 只用 ASCII：报错里可能引用请求的字段名，孤立代理项写不成 UTF-8
        return Response(json.dumps({"error": error}), self.status, headers, media_type="application/json")


def too_late() -> HttpError:
    """The error of a request whose deadline has passed."""
    return HttpError(504, "deadline", "not answered in time; the work was dropped", retry_after=1)


def client_of(key: int, num_keys: int, address: str | None) -> str:
    """Returns who sends a request: the key where there are several, else the address, or its /64 network of IPv6."""
    if num_keys > 1:
        return f"key {key}"
    try:
        found = ip_address(address or "127.0.0.1")
    except ValueError:
        return LOCAL
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback:
        return LOCAL
    # 一个 IPv6 用户有整段 /64 的地址：换着地址来的仍是同一个人
    return f"{int(found) >> _NETWORK_BITS:x}::" if isinstance(found, IPv6Address) else str(found)


def has_share(client: str, held: int, free: int) -> bool:
    """Tells whether a client that holds so much may take more of what nobody holds."""
    return client == LOCAL or held < _TIMES_FREE * free


class RequestContext:
    """One accepted request, to be answered by `deadline`, a time of `time.monotonic`.

    Attributes:
        tokens: that the model read for it so far, or is about to.
        ended: why nobody waits for the answer any longer; None while somebody does.
        on_its_way: whether it may still bring work to the queue.
    """

    def __init__(self, deadline: float, limits: Limits, client: str = LOCAL) -> None:
        self.deadline, self.limits, self.client = deadline, limits, client
        self.items = self.tokens = 0
        self.ended: HttpError | None = None
        self.on_its_way = False
        self._waiting: threading.Event | None = None

    def end(self, reason: HttpError) -> None:
        """Tells the thread that works for the request to stop; may be called by any thread."""
        self.ended = self.ended or reason
        if (waiting := self._waiting) is not None:
            waiting.set()

    def check(self) -> None:
        """Raises HttpError where nobody waits for the work: the deadline has passed, or the client is gone."""
        if self.ended is not None:
            raise self.ended
        if time.monotonic() >= self.deadline:
            raise too_late()

    def count(self, tokens: int) -> None:
        """Adds tokens that the model is to read; HttpError where together they are too many."""
        self.tokens += tokens
        if self.tokens > self.limits.tokens:
            raise HttpError(
                413,
                "too_many_tokens",
                f"the request has {self.tokens} tokens or more, at most {self.limits.tokens} are taken; send fewer or"
                " shorter texts",
            )

    def wait(self, done: threading.Event) -> None:
        """Waits for work to be done; HttpError where the deadline passes, or the client is gone."""
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


@contextmanager
def as_request(seconds: float, limits: Limits) -> Iterator[None]:
    """Lets the server's pipelines be used as a request uses them: for so long, within its tokens, on its queue."""
    token = CURRENT.set(RequestContext(time.monotonic() + seconds, limits))
    try:
        yield
    finally:
        CURRENT.reset(token)
