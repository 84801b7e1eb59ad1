"""The application: routes, and how a body becomes an answer.

FastAPI keeps the routes and writes the OpenAPI document. The way from bytes to bytes is our own (`JsonRoute`): the
event loop only moves bytes, and pydantic's parser, which is strict about UTF-8, depth and numbers, reads the JSON
straight into the model in the request's thread. That is both safer and several times cheaper than FastAPI's way.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from bertsmith import __version__
from bertsmith.errors import ConfigError, InputError
from bertsmith.inference.engine import CPU_TOKEN_BUDGET, MOST_AT_ONCE, TOKEN_BUDGET
from bertsmith.kernels.layers import best_device
from bertsmith.serve.admission import AdmissionController
from bertsmith.serve.batching import Batcher
from bertsmith.serve.docs_page import docs_page
from bertsmith.serve.draining import drain_on_signal
from bertsmith.serve.endpoint import (
    IndexRequest,
    LimitedRequest,
    ProblemAnswer,
    Shape,
    all_endpoints,
    check_limits,
    pipelines_at,
)
from bertsmith.serve.endpoints.openai import ModelsAnswer, list_models
from bertsmith.serve.endpoints.tei import tei_info
from bertsmith.serve.guard import CLIENT, CONTEXT, OPEN_PATHS, Guard
from bertsmith.serve.host_check import HostCheck, is_loopback
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.indexes import describe_index, load_indexes
from bertsmith.serve.keys import ApiKeys
from bertsmith.serve.metrics import CONTENT_TYPE, Metrics
from bertsmith.serve.models import ServedModels, load_models
from bertsmith.serve.request_context import RequestContext
from bertsmith.serve.settings import ServeSettings

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


_MOST_FAULTS = 100
"""A body with more faults is refused without saying which."""


class JsonRoute(APIRoute):
    """A route whose endpoint maps a pydantic model to another, in a thread of the admission controller."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns what answers a request of this route."""
        work = functools.partial(_answer, self.endpoint, self.endpoint.shapes)  # type: ignore[attr-defined]

        async def handle(request: Request) -> Response:
            admission: AdmissionController = request.app.state.admission
            try:
                require_json(request.headers.get("content-type"))
                client = request.scope[CLIENT]
                with admission.reading(client) as reading:
                    body = await reading.body(request.receive, request.headers.get("content-length"))
                    context = admission.admit(client)
                    request.scope[CONTEXT] = context
                    answer = await admission.perform(functools.partial(work, body), context, request.receive)
            except HttpError as error:
                return error_response(error)
            return Response(answer, media_type="application/json")

        return handle


def _answer(
    handler: Callable[[Any], BaseModel], shapes: Sequence[Shape], body: bytes, context: RequestContext
) -> bytes:
    """Turns the body of a request into the body of its answer.

    Raises:
        HttpError: the request is malformed, too large, or cannot be served.
    """
    request = read_request(shapes, body)
    try:
        check_limits(request)
        answer = handler(request)
    except (InputError, ConfigError) as error:
        raise HttpError(422, "unusable_input", str(error)) from None
    context.check()
    return answer.__pydantic_serializer__.to_json(answer, exclude_none=True)


def read_request(shapes: Sequence[Shape], body: bytes) -> LimitedRequest:
    """Reads a body in the endpoint's own form, or in another that it is known by.

    Raises:
        HttpError: 422, it is in none of them.
    """
    for number, shape in enumerate(shapes):
        try:
            found: LimitedRequest = shape.request_type.__pydantic_validator__.validate_json(body)
            return found
        except ValidationError as error:
            # 自己的形式不认得的字段，正好是别家形式的标志：换那一种来读
            if not any(_has_foreign(error, other.told_by) for other in shapes[number + 1 :]):
                raise malformed(error) from None
    raise AssertionError("the last form is read, or refused")


def _has_foreign(error: ValidationError, names: Sequence[str]) -> bool:
    """Tells whether fields of these names are among those that were refused."""
    if error.error_count() > _MOST_FAULTS:
        return False
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return any(fault["type"] == "extra_forbidden" and fault["loc"][0] in names for fault in faults)


def build_app(settings: ServeSettings, *, keys: ApiKeys | None = None, for_browser: bool = False) -> FastAPI:
    """Loads the models and builds the application.

    Args:
        settings: everything it is told.
        keys: who may use it; None reads them as the settings say.
        for_browser: whether a browser that has no key is to ask its user for one.

    Raises:
        BertsmithError: a model folder, or the file with the keys, cannot be used.
    """
    keys = ApiKeys.read(settings.key_file) if keys is None else keys
    metrics = Metrics()
    # 显卡一次只算一批：几批并排只会变成几个小批
    on_cpu = best_device().type == "cpu"
    batcher = Batcher(
        budget=settings.batch_tokens or (CPU_TOKEN_BUDGET if on_cpu else TOKEN_BUDGET),
        delay=settings.batch_delay_ms / 1000,
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
    queued = add_routes(app, settings, models, metrics)
    app.add_exception_handler(HTTPException, _http_problem)
    if keys:
        describe_keys(app)
    app.add_middleware(Guard, keys=keys, metrics=metrics, admission=admission, queued=queued, for_browser=for_browser)
    # 没有密钥、只给本机用：别的网页把自己的域名指到 127.0.0.1，也不能替人来问
    if not keys and is_loopback(settings.host):
        app.add_middleware(HostCheck, hosts=(settings.host, *settings.allowed_hosts))
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
        )
    return app


def add_routes(app: FastAPI, settings: ServeSettings, models: ServedModels, metrics: Metrics) -> list[str]:
    """Adds the routes of the models, and those that tell of the server; returns the paths of the former."""
    there = models.pipelines
    for one in all_endpoints():
        # /tokenize 用不到流水线：哪个模型都答得上来
        needed = set(pipelines_at(one.path)) or there
        served = bool(models.indexes) if issubclass(one.request_type, IndexRequest) else bool(needed & there)
        app.router.add_api_route(
            one.path,
            one.of(models),
            methods=["POST"],
            responses=_PROBLEMS,
            route_class_override=JsonRoute,
            tags=["models"] if served else ["not served by these models"],
        )

    def served_models() -> ModelsAnswer:
        """Lists the served models."""
        return list_models(models)

    app.add_api_route("/v1/models", served_models, methods=["GET"], tags=["models"], name="list_models")

    admission: AdmissionController = app.state.admission

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
            **tei_info(models, settings),
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

    async def page() -> Response:
        """Shows the endpoints in a browser, and lets one try them."""
        return docs_page()

    not_ready: dict[int | str, dict[str, Any]] = {503: {"description": "Starting or stopping."}}
    app.add_api_route("/health", health, methods=["GET"], tags=["server"])
    app.add_api_route("/ready", ready, methods=["GET"], tags=["server"], responses=not_ready)
    # 有的负载均衡器用 HEAD 探活
    probes: dict[str, Callable[..., Any]] = {"/health": health, "/ready": ready}
    for path, probe in probes.items():
        app.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/info", info, methods=["GET"], tags=["server"])
    app.add_api_route("/metrics", figures, methods=["GET"], tags=["server"], response_class=Response)
    app.add_api_route("/docs", page, methods=["GET"], include_in_schema=False)
    return [one.path for one in all_endpoints()]


def describe_keys(app: FastAPI) -> None:
    """Says in `/openapi.json` how a key is sent, and which paths need one."""
    described = app.openapi()
    described.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    for path, methods in described["paths"].items():
        for operation in methods.values():
            operation["security"] = [] if path in OPEN_PATHS else [{"bearer": []}, {"header": []}]


def require_json(content_type: str | None) -> None:
    """Makes sure that a body says it is JSON.

    A page of another origin can make a browser post plain text to any address without asking; JSON it cannot.

    Raises:
        HttpError: 415.
    """
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "not_json", "send JSON, with the header Content-Type: application/json")


def malformed(error: ValidationError) -> HttpError:
    """Says what is wrong with a body: the first fault, where it is, never the text itself."""
    if error.error_count() > _MOST_FAULTS:
        # 取出任何一个错误都要先造出全部：几十万个未知字段会让服务停上几秒
        return HttpError(422, "invalid_request", f"body: {error.error_count()} faults; /docs shows what is taken")
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # 字段名也来自请求，可能极长：截短
    where = ".".join(str(part)[:40] for part in fault["loc"]) or None
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if fault["type"] == "json_invalid":
        return HttpError(422, "invalid_json", f"the body is not JSON that can be read: {fault['msg'][:200]}")
    return HttpError(422, "invalid_request", f"{where or 'body'}: {fault['msg'][:200]}{more}", where=where)


def error_response(error: HttpError) -> Response:
    """Returns what a refused request gets."""
    return Response(error.body(), error.status, error.headers(), media_type="application/json")


async def _http_problem(_: Request, error: Exception) -> Response:
    """Gives errors of the router (404, 405) the shape of all others."""
    assert isinstance(error, HTTPException)
    words = {404: "there is no such endpoint; /docs lists them", 405: "the endpoint does not take this method"}
    answer = error_response(
        HttpError(error.status_code, "http_error", words.get(error.status_code, str(error.detail)[:200]))
    )
    answer.headers.update(error.headers or {})
    return answer
