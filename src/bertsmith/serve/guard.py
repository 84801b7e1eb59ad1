"""What stands before the application: keys, host names, places, bodies, deadlines, figures and the access log.

- the event loop only reads and writes bytes. A body is parsed, checked, tokenized and answered in the request's own
  thread, so that a hostile one costs its own time alone
- a place is taken when the body is complete, so that slow senders hold none, and given back when the thread has ended
- a foreign web page may point its own name at 127.0.0.1 (DNS rebinding), but not change the Host header: so what
  listens here alone answers to this machine's names only
- only the method, the route and sizes of a request are logged; an unexpected error is logged by its class and place,
  because its message may quote a text
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hmac
import logging
import os
import re
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import torch
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertsmith.errors import InputError
from bertsmith.serve.batching import Batcher
from bertsmith.serve.metrics import Metrics
from bertsmith.serve.request import CURRENT, HttpError, RequestContext, client_of, has_share, too_late
from bertsmith.serve.settings import ServeSettings

ResultT = TypeVar("ResultT")

KEYS_VARIABLE = "BERTSMITH_API_KEYS"
"""The environment variable that holds keys, with white space or commas between: the command line of a process is seen
by every user of a machine."""

OPEN_PATHS = frozenset({"/health", "/ready", "/docs", "/openapi.json"})
"""Paths that need no key: probes carry none, and the page that explains the server tells nothing of its models."""

CLIENT = "bertsmith.client"
"""Where in the scope of a request it says who sent it."""

_CONTEXT = "bertsmith.context"
_SHORTEST_KEY = 16
_FREE_BYTES = 16_384
"""Bytes of each body that do not count against the memory set aside for bodies: 16 MiB over all connections."""

_GRACE = 0.05
"""Seconds by which the event loop leaves the first word on a deadline to the request's own thread."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_HOST = re.compile(r"(?:\[(?P<bracketed>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]*)?", re.IGNORECASE)

access_log = logging.getLogger("bertsmith.access")
error_log = logging.getLogger("bertsmith.error")


class ApiKeys:
    """The keys that open a server; none at all leave it open."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]
        for key in self._keys:
            # 报错不得带出密钥本身：只说长度
            if len(key) < _SHORTEST_KEY or not key.isascii() or not key.decode().isprintable():
                raise InputError(
                    f"an API key of {len(key)} bytes cannot be used; take {_SHORTEST_KEY} or more plain characters, as"
                    " `openssl rand -hex 24` prints"
                )

    @classmethod
    def read(cls, file: str | Path | None) -> ApiKeys:
        """Reads the keys of a file, one a line, or of the environment where no file is given.

        Blank lines and those that begin with `#` are left out.
        """
        if file is None:
            return cls(os.environ.get(KEYS_VARIABLE, "").replace(",", " ").split())
        try:
            lines = [line.strip() for line in Path(file).read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeError) as error:
            raise InputError(f"{file}: the API keys cannot be read ({type(error).__name__})") from None
        keys = [line for line in lines if line and not line.startswith("#")]
        # 空文件多半是写错了：绝不能因此悄悄敞开大门
        if not keys:
            raise InputError(f"{file}: holds no API key; write one on a line")
        return cls(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> int | None:
        """Returns the number of the key that a request carries, from 0; 0 where none is needed, None where it has none.

        A key comes as `Authorization: Bearer KEY`, as `X-API-Key: KEY`, or as the password of `Authorization: Basic`,
        which a browser sends from its prompt; the user's name does not count.
        """
        if not self._keys:
            return 0
        given = b""
        for name, value in headers:
            scheme, _, secret = value.partition(b" ")
            if name == b"x-api-key":
                given = value.strip()
            elif name == b"authorization" and scheme.lower() == b"bearer":
                given = secret.strip()
            elif name == b"authorization" and scheme.lower() == b"basic":
                given = b""
                with contextlib.suppress(ValueError):
                    given = base64.b64decode(secret.strip(), validate=True).partition(b":")[2]
        # 与每一把都比、每次都用常数时间：应答的快慢不透露猜对了几个字符，也不透露是哪一把
        matches = [hmac.compare_digest(given, key) for key in self._keys]
        return matches.index(True) if any(matches) else None


def is_own_name(named: str, hosts: Collection[str], *, any_address: bool = False) -> bool:
    """Tells whether a Host header, such as `127.0.0.1:8001` or `[::1]:8001`, names this machine.

    `hosts` are its names besides `localhost`, in small letters. With `any_address` every address counts as one: a name
    can be pointed elsewhere, an address cannot.
    """
    found = _HOST.fullmatch(named)
    if found is None:
        return False
    name = (found["bracketed"] or found["name"]).lower()
    if name == "localhost" or name in hosts:
        return True
    try:
        # 必须真是一个地址：只看开头的“127.”，会放过 127.evil.example 这样的域名
        return ip_address(name).is_loopback or any_address
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Tells whether an address to listen on is reached from this machine alone."""
    try:
        # 必须真是一个地址：127.example 这样的名字可以指向任何机器
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class AdmissionController:
    """Accepts a bounded number of requests at a time, each in a thread of its own, until its deadline."""

    def __init__(self, settings: ServeSettings, batcher: Batcher) -> None:
        self.settings = settings
        self.batcher = batcher
        self.free = settings.queue
        self.draining = False
        self._held: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        # 请求线程里的张量运算都很小：单线程即可，否则每个线程各养一池 OpenMP 线程，与计算线程抢核
        self._threads = ThreadPoolExecutor(settings.queue, "request", initializer=torch.set_num_threads, initargs=(1,))

    @property
    def accepted(self) -> int:
        """How many requests are being answered."""
        return self.settings.queue - self.free

    def require_place(self, client: str) -> None:
        """Makes sure that a client can have a place; else HttpError 429, which says when to come back."""
        if self.free <= 0 or not has_share(client, self._held[client], self.free):
            raise HttpError(
                429,
                "queue_full",
                f"{self.accepted} requests are being answered already, {self._held[client]} of them for this client",
                retry_after=self.batcher.seconds_to_empty(),
            )

    @contextlib.asynccontextmanager
    async def body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """Reads the body of a request; its bytes count as held until the request is over.

        Raises HttpError where it is too large (413), too slow (408), or too much beside the bodies of others (429); or
        where the client hung up.
        """
        client, most, deadline = scope[CLIENT], self.settings.limits.body_bytes, self.settings.deadline
        too_large = HttpError(
            413, "body_too_large", f"the body has more than {most} bytes; send fewer or shorter texts"
        )
        parts: list[bytes] = []
        size = counted = 0

        async def read() -> bytes:
            nonlocal size, counted
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _gone()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                # 边读边数：分块传输没有 Content-Length，不能等读完才发现太大
                if size > most:
                    raise too_large
                # 小请求不计：慢慢发来的大请求占满额度时，别人的几句话仍读得进来；连接数有限，这部分内存也有限
                more = max(0, size - _FREE_BYTES) - counted
                if more:
                    counted += more
                    self._bytes[client] += more
                    free = self.settings.reading_bytes - self._bytes.total()
                    # 许多人各发一个大请求，合起来也会占满内存
                    if free < 0 or not has_share(client, self._bytes[client], free):
                        full = "too many large bodies at a time; send it again"
                        raise HttpError(429, "bodies_full", full, retry_after=1)
                if not message.get("more_body", False):
                    return b"".join(parts)

        try:
            announced = dict(scope["headers"]).get(b"content-length", b"")
            if announced.isdigit() and int(announced[:20]) > most:
                raise too_large
            try:
                body = await asyncio.wait_for(read(), deadline)
            except asyncio.TimeoutError:
                slow = f"the body was not complete after {deadline:g} seconds"
                raise HttpError(408, "slow_body", slow) from None
            finally:
                # 异常的回溯还牵着这个列表，要等垃圾回收才放手：被拒绝的请求体必须立刻放掉
                parts.clear()
            yield body
        finally:
            self._bytes[client] -= counted
            # 不留下零：来过的地址不能越攒越多
            if not self._bytes[client]:
                del self._bytes[client]

    async def perform(self, work: Callable[[RequestContext], ResultT], scope: Scope, receive: Receive) -> ResultT:
        """Takes a place for a request whose body is complete, and does its work in a thread, while somebody waits.

        Raises:
            HttpError: there is no place (429), it took too long (504), the client hung up, or the work was refused.
        """
        client = scope[CLIENT]
        self.require_place(client)
        self.free -= 1
        self._held[client] += 1
        context = RequestContext(time.monotonic() + self.settings.deadline, self.settings.limits, client)
        scope[_CONTEXT] = context
        self.batcher.announce(context)
        answer = asyncio.get_running_loop().run_in_executor(self._threads, self._work, work, context)
        answer.add_done_callback(functools.partial(self._release, client))

        async def hang_up() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        hung_up = asyncio.ensure_future(hang_up())
        try:
            left = context.deadline - time.monotonic() + _GRACE
            either: set[asyncio.Future[Any]] = {answer, hung_up}
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            # 客户端已挂断或已超时：告诉线程停手，它在队列里的工作随即撤出
            reason = _gone() if hung_up.done() else too_late()
            context.end(reason)
            raise reason
        finally:
            hung_up.cancel()

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


def _gone() -> HttpError:
    """The error of a request whose client hung up; nobody reads it."""
    return HttpError(499, "hung_up", "the client hung up; the work was dropped")


class Guard:
    """The one middleware before the application.

    `work` holds for each path of a model what turns the body of a request into that of its answer, in the request's own
    thread. All other paths are left to the application.

    It may be asked under this machine's names and `hosts` (None: any name), and with `any_address` by any address, as
    what listens to other machines is. With `for_browser` a browser without a key is to ask its user for one.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: ApiKeys,
        metrics: Metrics,
        admission: AdmissionController,
        work: Mapping[str, Callable[[bytes, RequestContext], bytes]],
        hosts: Collection[str] | None = None,
        any_address: bool = False,
        for_browser: bool = False,
    ) -> None:
        self.app, self.keys, self.metrics, self.admission = app, keys, metrics, admission
        self.work = work
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.any_address = any_address
        basic = 'Basic realm="bertsmith; the password is an API key", charset="UTF-8"'
        self.challenge = basic if for_browser else "Bearer"
        self._refused = 0
        self._said = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 499

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # 正在停机：请客户端换一条连接，免得它在即将关闭的连接上再发请求
                if self.admission.draining:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            self._require_name(scope)
            key = self.keys.admit(scope["headers"])
            if key is None and scope["path"] not in OPEN_PATHS:
                said = "give an API key of this server: Authorization: Bearer KEY"
                raise HttpError(401, "no_key", said, challenge=self.challenge)
            scope[CLIENT] = client = client_of(key or 0, len(self.keys), (scope.get("client") or (None,))[0])
            if scope["method"] != "POST" or (work := self.work.get(scope["path"])) is None:
                await self.app(scope, receive, watch)
                return
            # 模型的请求不经过路由：每一层都要占事件循环的时间。队列已满时更要便宜：过载时每秒要拒绝上千次
            self.admission.require_place(client)
            await (await self._answer(work, scope, receive))(scope, receive, watch)
        except HttpError as error:
            await error.response()(scope, receive, watch)
        except Exception as error:
            # 只记错误的类别和位置，不记它的文字：里面可能引用了用户的文本
            frames = traceback.extract_tb(error.__traceback__)
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
            error_log.error("%s %s failed: %s at %s", scope["method"], _route(scope), type(error).__name__, where)
            if status == 499:
                failed = HttpError(500, "internal_error", "the server failed; its log says where")
                await failed.response()(scope, receive, watch)
        finally:
            self._count(scope, status, time.perf_counter() - begun)

    async def _answer(self, work: Callable[[bytes, RequestContext], bytes], scope: Scope, receive: Receive) -> Response:
        content_type = dict(scope["headers"]).get(b"content-type", b"")
        # 别的网页可以让浏览器不经询问就发出纯文本，JSON 却不能：所以只收 JSON
        if content_type.partition(b";")[0].strip().lower() != b"application/json":
            raise HttpError(415, "not_json", "send JSON, with the header Content-Type: application/json")
        async with self.admission.body(scope, receive) as body:
            answer = await self.admission.perform(functools.partial(work, body), scope, receive)
        return Response(answer, media_type="application/json")

    def _require_name(self, scope: Scope) -> None:
        named = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if self.hosts is None or is_own_name(named, self.hosts, any_address=self.any_address):
            return
        said = "this listens for its own machine alone; ask for localhost or 127.0.0.1, or start it with --host"
        if self.any_address:
            said = "this is not its name; ask for it by its address, or start it with --allow-host NAME"
        raise HttpError(403, "foreign_host", said)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        context = scope.get(_CONTEXT)
        items, tokens = (0, 0) if context is None else (context.items, context.tokens)
        route = scope["path"] if scope["path"] in self.work else _route(scope)
        self.metrics.answered(route, status, seconds, items, tokens)
        self.metrics.queued(self.admission.accepted, self.admission.batcher.waiting_tokens)
        if status != 429:
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            figures = (1000 * seconds, items, tokens)
            access_log.info("%s %s %d %.1fms items=%d tokens=%d", method, route, status, *figures)
            return
        # 每秒最多说一次：每次拒绝都写一行，就是下一场过载
        self._refused += 1
        if time.monotonic() - self._said >= 1:
            said = "the queue is full: refused %d requests with 429 since this was last said"
            access_log.warning(said, self._refused)
            self._refused, self._said = 0, time.monotonic()


def _route(scope: Scope) -> str:
    """The route's template; paths that match none share one name, so that nobody can fill the log or the figures."""
    return getattr(scope.get("route"), "path", "unmatched")
