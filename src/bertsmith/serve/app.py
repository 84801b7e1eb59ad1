"""The application: routes, and what stands before them.

FastAPI keeps the routes and writes the OpenAPI document. The way from bytes to bytes is our own: the event loop only
moves bytes (`guard`), and a body becomes an answer in the request's own thread (`endpoint`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import gc
import hashlib
import operator
import os
import re
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException

from bertsmith import __version__
from bertsmith.inference.engine import CPU_TOKEN_BUDGET, MOST_AT_ONCE, TOKEN_BUDGET
from bertsmith.kernels.layers import best_device
from bertsmith.serve import native, openai, tei
from bertsmith.serve.batching import Batcher
from bertsmith.serve.connection import drain_on_signal
from bertsmith.serve.endpoint import ENDPOINTS, ProblemAnswer, Shape, answer_body
from bertsmith.serve.guard import OPEN_PATHS, AdmissionController, ApiKeys, Guard, is_loopback
from bertsmith.serve.metrics import CONTENT_TYPE, Metrics
from bertsmith.serve.models import ServedModels, describe_index, load_indexes, load_models, pipelines_at
from bertsmith.serve.request import HttpError
from bertsmith.serve.settings import ServeSettings

# 载入这些文件，它们的接口就登记好了
_MODULES = (native, openai, tei)

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemAnswer, "description": description}
    for status, description in {
        400: "The request is not HTTP that can be read.",
        401: "The API key is missing or wrong.",
        404: "No model of that name is served.",
        408: "The body came too slowly.",
        413: "Too many items, characters, tokens or bytes.",
        415: "The body is not application/json.",
        422: "The body is not what the endpoint takes, or the model cannot serve it.",
        429: "The queue is full; Retry-After says when to come back.",
        504: "Not answered in time.",
    }.items()
}


def build_app(settings: ServeSettings, *, keys: ApiKeys | None = None, for_browser: bool = False) -> FastAPI:
    """Loads the models and builds the application.

    Without `keys` the settings say who may use it. With `for_browser` a browser that has no key asks its user for one,
    and on an address that others reach, the name it is asked by must be known.
    """
    keys = ApiKeys.read(settings.key_file) if keys is None else keys
    metrics = Metrics()
    # 显卡一次只算一批：几批并排只会变成几个小批
    on_cpu = best_device().type == "cpu"
    batcher = Batcher(
        budget=settings.batch_tokens or (CPU_TOKEN_BUDGET if on_cpu else TOKEN_BUDGET),
        most_tokens=settings.queue_tokens,
        threads=settings.compute_threads,
        at_once=MOST_AT_ONCE if on_cpu else 1,
        observe=metrics.computed,
    )
    admission = AdmissionController(settings, batcher)
    # 载入在主线程，其中“自动精度”要测速：线程数须与之后的计算线程一致，测得才作数
    torch.set_num_threads(settings.compute_threads)
    models = load_models(settings, batcher)
    models.indexes = load_indexes(settings.indexes, models)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # 库与模型的上百万个对象不会再变：不移出，每次全面回收都要数一遍，请求全停上百毫秒
        gc.collect()
        gc.freeze()
        app.state.ready = True
        with drain_on_signal(asyncio.get_running_loop(), admission):
            yield
        app.state.ready = False
        admission.close()
        batcher.close()

    app = FastAPI(
        title="bertsmith",
        version=__version__,
        description="BERT models over HTTP.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.admission, app.state.models, app.state.ready = admission, models, False
    # 文档页照登记的次序显示：答得上来的在最前，答不上来的在最后
    _add_endpoints(app, models, served=True)
    _add_server_routes(app, settings, models, metrics)
    _add_endpoints(app, models, served=False)
    app.add_exception_handler(HTTPException, _http_problem)
    if keys:
        _describe_keys(app)
    hosts: tuple[str, ...] | None = None
    # 没有密钥、只给本机用：别的网页把自己的域名指到 127.0.0.1，也不能替人来问
    if not keys and is_loopback(settings.host):
        hosts = (settings.host, *settings.allowed_hosts)
    elif for_browser and not is_loopback(settings.host):
        hosts = (settings.host, socket.gethostname(), *settings.allowed_hosts)
    app.add_middleware(
        Guard,
        keys=keys,
        metrics=metrics,
        admission=admission,
        work={path: functools.partial(answer_body, shapes, models) for path, shapes in ENDPOINTS.items()},
        hosts=hosts,
        any_address=not is_loopback(settings.host),
        for_browser=for_browser,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
        )
    return app


def _add_endpoints(app: FastAPI, models: ServedModels, *, served: bool) -> None:
    """Adds the endpoints that a served model or index can answer, or those that none can."""
    there = models.pipelines
    for path, shapes in ENDPOINTS.items():
        # /tokenize 用不到流水线：哪个模型都答得上来
        able = bool(models.indexes if path == "/search" else set(pipelines_at(path) or there) & there)
        if able is served:
            app.router.add_api_route(
                path,
                _described(shapes),
                methods=["POST"],
                responses=_PROBLEMS,
                tags=["models" if served else "not served by these models"],
            )


def _described(shapes: list[Shape]) -> Callable[[Any], Any]:
    """Returns a function for FastAPI to describe: several forms of requests are their union. It is never called."""

    def answer(request: Any) -> Any:
        raise NotImplementedError

    own = shapes[0].handler
    answer.__name__, answer.__doc__ = own.__name__, own.__doc__
    answer.__annotations__ = {
        "request": functools.reduce(operator.or_, (shape.request_type for shape in shapes)),
        "return": functools.reduce(operator.or_, (shape.answer_type for shape in shapes)),
    }
    return answer


def _add_server_routes(app: FastAPI, settings: ServeSettings, models: ServedModels, metrics: Metrics) -> None:
    admission: AdmissionController = app.state.admission

    def served_models() -> openai.ModelsAnswer:
        """Lists the served models."""
        return openai.ModelsAnswer(data=[openai.described(model) for model in models])

    def served_model(name: str) -> openai.ModelRow:
        """Tells of one served model."""
        return openai.described(models.named(name))

    async def health() -> dict[str, str]:
        """Says that the process runs; whether it should get requests, `/ready` says."""
        return {"status": "ok"}

    async def ready(response: Response) -> dict[str, str]:
        """Says whether the server takes requests: 200, or 503 while it starts or stops."""
        if admission.draining or not app.state.ready:
            response.status_code = 503
            return {"status": "stopping" if admission.draining else "starting"}
        return {"status": "ready"}

    async def info() -> dict[str, Any]:
        """Tells of the server: its version, models and limits."""
        limits = settings.limits
        return {
            **tei.tei_info(models, settings),
            "version": __version__,
            "models": [model.describe() for model in models],
            "indexes": [describe_index(name, index) for name, index in models.indexes.items()],
            "limits": {
                "items": limits.items,
                "characters": limits.characters,
                "tokens": limits.tokens,
                "body_bytes": limits.body_bytes,
                "queue": settings.queue,
                "deadline_seconds": settings.deadline,
            },
            "pid": os.getpid(),
            "threads": settings.compute_threads,
            "batch_tokens": admission.batcher.budget,
            "max_batch_tokens": admission.batcher.budget,
        }

    async def figures() -> Response:
        """Gives Prometheus its figures."""
        metrics.queued(admission.accepted, admission.batcher.waiting_tokens)
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    app.add_api_route("/v1/models", served_models, methods=["GET"], tags=["models"], name="list_models")
    app.add_api_route(
        "/v1/models/{name}", served_model, methods=["GET"], tags=["models"], responses={404: _PROBLEMS[404]}
    )
    not_ready: dict[int | str, dict[str, Any]] = {503: {"description": "Starting or stopping."}}
    app.add_api_route("/health", health, methods=["GET"], tags=["server"])
    app.add_api_route("/ready", ready, methods=["GET"], tags=["server"], responses=not_ready)
    # 有的负载均衡器用 HEAD 探活
    app.add_api_route("/health", health, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/ready", ready, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/info", info, methods=["GET"], tags=["server"])
    app.add_api_route("/metrics", figures, methods=["GET"], tags=["server"], response_class=Response)
    app.add_api_route("/docs", docs_page, methods=["GET"], include_in_schema=False)


_PAGE = (Path(__file__).parent / "templates" / "docs.html").read_text(encoding="utf-8")


async def docs_page() -> Response:
    """Shows the endpoints in a browser, with an example and a button for each.

    FastAPI's own page loads its script from the internet, which servers of private text often cannot reach, and should
    not run. This one reads `/openapi.json` of the same server alone, which its Content-Security-Policy enforces.
    """
    # 浏览器只执行摘要相符的脚本：即使有内容被注入页面也不会运行
    policy = (
        f"default-src 'none'; script-src '{_digest('script')}'; style-src '{_digest('style')}'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Response(_PAGE, media_type="text/html", headers={"Content-Security-Policy": policy})


def _digest(tag: str) -> str:
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", _PAGE, re.DOTALL)
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")


def _describe_keys(app: FastAPI) -> None:
    """Says in `/openapi.json` how a key is sent, and which paths need one."""
    described = app.openapi()
    described.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    for path, methods in described["paths"].items():
        for operation in methods.values():
            operation["security"] = [] if path in OPEN_PATHS else [{"bearer": []}, {"header": []}]


async def _http_problem(_: Request, error: Exception) -> Response:
    """Gives errors of the router (404, 405) the shape of all others."""
    assert isinstance(error, HTTPException)
    words = {404: "there is no such endpoint; /docs lists them", 405: "the endpoint does not take this method"}
    said = words.get(error.status_code, str(error.detail)[:200])
    answer = HttpError(error.status_code, "http_error", said).response()
    answer.headers.update(error.headers or {})
    return answer
