"""Pages of one's own on the server: behind its keys and its check of names, within its limits, on its queue.

server = PageServer(settings)             the models are loaded, the endpoints stand
mount(server.app, middleware=[server.middleware])
serve_pages(settings, build, name="lab")  until Ctrl-C; `build` makes the application, such as the one above
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from bertsmith.errors import InputError
from bertsmith.serve.app import build_app
from bertsmith.serve.guard import KEYS_VARIABLE, AdmissionController, ApiKeys, is_loopback
from bertsmith.serve.models import ServedModel, load_models
from bertsmith.serve.request import HttpError, as_request
from bertsmith.serve.run import address_of, configure_logs, listening_socket, uvicorn_options
from bertsmith.serve.settings import ServeSettings

__all__ = ["AdmittedBodies", "HttpError", "PageServer", "ServedModel", "as_request", "is_loopback", "serve_pages"]

_GOODBYE_SECONDS = 1


class PageServer:
    """The server's application for pages in browsers, its models loaded; `app` takes pages behind `middleware`.

    On a loopback address it asks for no key, unless the settings name a file of keys, and refuses any name but
    `localhost`, a loopback address or `settings.host`. On any other address the browser's own prompt asks for a key,
    and a name must be one that the settings allow. `is_private` tells whether only people of this machine reach it.
    """

    def __init__(self, settings: ServeSettings) -> None:
        keys = _keys_of(settings)
        self.settings = settings
        self.app: FastAPI = build_app(settings, keys=keys, for_browser=True)
        self.models: list[ServedModel] = list(self.app.state.models)
        self.indexes = self.app.state.models.indexes
        self.is_private = not keys and not settings.allowed_hosts

    @property
    def middleware(self) -> Middleware:
        """Reads the bodies of requests to pages as the server reads those of its endpoints."""
        return Middleware(AdmittedBodies, admission=self.app.state.admission)

    def load(self, name: str, folder: str) -> ServedModel:
        """Loads another model, on the same queue."""
        (model,) = load_models(replace(self.settings, models=((name, folder),)), self.app.state.admission.batcher)
        return model


class AdmittedBodies:
    """Stands before pages whose framework reads a body for as long as it comes and as large as it is.

    The server's own admission reads it before: in time, not too large, within the memory that all bodies share.
    """

    def __init__(self, app: ASGIApp, *, admission: AdmissionController) -> None:
        self.app, self.admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # 先读完再放行：边读边查的话，超限的异常会被框架吞掉，变成 400 或 500
        try:
            async with self.admission.body(scope, receive) as body:
                held: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body}]

                async def replay() -> MutableMapping[str, Any]:
                    return held.pop() if held else await receive()

                await self.app(scope, replay, send)
        except HttpError as error:
            await error.response()(scope, receive, send)


def serve_pages(settings: ServeSettings, build: Callable[[], FastAPI], *, name: str) -> None:
    """Serves pages until SIGTERM or SIGINT."""
    configure_logs()
    # 页面的每个小文件都是一次请求：访问日志在这里只会刷屏
    logging.getLogger("bertsmith.access").setLevel(logging.WARNING)
    with listening_socket(settings) as listener:
        app = build()
        # 先听后说：日志里一有地址，就连得上
        listener.listen()
        told = logging.getLogger("bertsmith.serve")
        told.info("%s is open on %s - Ctrl-C closes it", name, address_of(listener.getsockname()))
        # 打开的网页一直占着一条连接：闲着的五秒后断开，停机时一秒
        told_uvicorn = uvicorn_options(settings) | {"log_level": "critical", "timeout_keep_alive": 5}
        told_uvicorn["timeout_graceful_shutdown"] = _GOODBYE_SECONDS
        # Ctrl-C 是关闭实验室的正常方式，不是错误
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, **told_uvicorn)).run(sockets=[listener])


def _keys_of(settings: ServeSettings) -> ApiKeys:
    """Returns who may see the pages: everybody on this machine, holders of a key elsewhere."""
    if is_loopback(settings.host) and settings.key_file is None:
        return ApiKeys()
    keys = ApiKeys.read(settings.key_file)
    if not keys:
        raise InputError(
            f"--host {settings.host}: others reach the lab there; say who may: --api-key-file FILE, or set"
            f" {KEYS_VARIABLE}"
        )
    return keys
