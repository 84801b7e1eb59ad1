"""The outermost layer of the application: keys, errors, figures and the access log.

Nothing of a request but its method, its route and sizes gets past this file into a log; an unexpected error is logged
by its class and place alone, because its message may quote a text.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from pathlib import Path
from typing import Any

from bertsmith.serve.admission import AdmissionController
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.keys import ApiKeys
from bertsmith.serve.metrics import Metrics
from bertsmith.serve.shares import client_of

OPEN_PATHS = frozenset({"/health", "/ready", "/docs", "/openapi.json"})
"""Paths that need no key: probes carry none, and the page that explains the server tells nothing of its models."""

CLIENT = "bertsmith.client"
"""Where in the scope of a request it says who sent it."""

CONTEXT = "bertsmith.context"
"""Where in the scope of a request its context is."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

access_log = logging.getLogger("bertsmith.access")
error_log = logging.getLogger("bertsmith.error")


class Guard:
    """Stands before an application."""

    def __init__(
        self,
        app: Application,
        *,
        keys: ApiKeys,
        metrics: Metrics,
        admission: AdmissionController,
        queued: Collection[str],
        for_browser: bool = False,
    ) -> None:
        """Takes its place.

        Args:
            app: what it stands before.
            keys: that open it.
            metrics: are told of every request.
            admission: says whether there is a place.
            queued: paths whose requests need a place.
            for_browser: whether a browser without a key is to ask its user for one.
        """
        self.app = app
        self.challenge = (
            'Basic realm="bertsmith; the password is an API key", charset="UTF-8"' if for_browser else "Bearer"
        )
        self.keys = keys
        self.metrics = metrics
        self.admission = admission
        self.queued = frozenset(queued)
        self._refused = 0
        self._said = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        status = 499

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # 正在停机：请客户端换一条连接，免得它在即将关闭的连接上再发请求
                if self.admission.draining:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            key = self.keys.admit(scope["headers"])
            if key is None and scope["path"] not in OPEN_PATHS:
                said = "give an API key of this server: Authorization: Bearer KEY"
                raise HttpError(401, "no_key", said, challenge=self.challenge)
            scope[CLIENT] = client = client_of(key or 0, len(self.keys), (scope.get("client") or (None,))[0])
            if scope["path"] in self.queued and scope["method"] == "POST":
                # 队列已满时在路由之前就拒绝：过载时每秒要拒绝上千次，拒绝越便宜，受理的请求越快
                self.admission.require_place(client)
            await self.app(scope, receive, watch)
        except HttpError as error:
            await send_error(watch, error)
        except Exception as error:
            # 只记错误的类别和位置，不记它的文字：里面可能引用了用户的文本
            error_log.error("%s %s failed: %s", scope["method"], _route(scope), _place(error))
            if status == 499:
                await send_error(watch, HttpError(500, "internal_error", "the server failed; its log says where"))
        finally:
            self._count(scope, status, time.perf_counter() - begun)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        context = scope.get(CONTEXT)
        items, tokens = (0, 0) if context is None else (context.items, context.tokens)
        route = scope["path"] if scope["path"] in self.queued else _route(scope)
        self.metrics.answered(route, status, seconds, items, tokens)
        self.metrics.queued(self.admission.accepted, self.admission.batcher.waiting_tokens)
        if status == 429:
            self._log_refused()
            return
        access_log.info(
            "%s %s %d %.1fms items=%d tokens=%d", _method(scope), route, status, 1000 * seconds, items, tokens
        )

    def _log_refused(self) -> None:
        """Logs at most once a second that requests were refused: a line for each would be the next overload."""
        self._refused += 1
        now = time.monotonic()
        if now - self._said >= 1:
            access_log.warning(
                "the queue is full: refused %d requests with 429 since this was last said", self._refused
            )
            self._refused, self._said = 0, now


async def send_error(send: Send, error: HttpError) -> None:
    """Answers with an error."""
    body = error.body()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers()}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _route(scope: Scope) -> str:
    """The route's template; paths that match none share one name, so that nobody can fill the log or the figures."""
    return getattr(scope.get("route"), "path", "unmatched")


def _method(scope: Scope) -> str:
    method = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "OTHER"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"
