"""What an endpoint is: a path, and a function from a checked request to a typed answer.

    @endpoint("/tag")
    def tag(models: ServedModels, request: TagRequest) -> TagAnswer:
        '''Finds entities in texts, or tags their words.'''

The types are pydantic models with an example each; `/openapi.json` and `/docs` are made from them. The function runs
in the request's own thread and may take its time; it raises `HttpError`, or the errors of `bertsmith.errors`, and
knows nothing of HTTP.

A request is checked strictly: a number is not taken for a text, an unknown field is an error. Checking a list ends at
its first fault: a million wrong elements would otherwise make a million errors.

A path can take requests in the words of another server, too (`told_by`): `endpoints.tei` does so.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bertsmith.inference.pipeline import all_pipelines
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.models import ServedModels
from bertsmith.serve.request_context import CURRENT

Texts = Annotated[list[str], Field(min_length=1, fail_fast=True, description="One or more texts.")]
Model = Annotated[str | None, Field(description="Which model answers; the server's first where none is named.")]
Handler = Callable[[ServedModels, Any], BaseModel]
HandlerT = TypeVar("HandlerT", bound=Handler)


def example(**values: Any) -> ConfigDict:
    """Returns the settings of a strict type with an example of its values."""
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [values]}, protected_namespaces=())


class LimitedRequest(BaseModel):
    """A request whose texts count against the limits.

    Attributes:
        text_fields: the fields that hold texts, all of which count against the limits: each a text, a list of texts,
            or a list of such lists; None is none.
        same_length: fields with one element for each of the first of `text_fields`.
    """

    text_fields: ClassVar[tuple[str, ...]] = ("texts",)
    same_length: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _check_lengths(self) -> LimitedRequest:
        first = self.text_fields[0]
        count = len(getattr(self, first))
        for name in self.same_length:
            given = getattr(self, name)
            if given is not None and len(given) != count:
                raise ValueError(f"{count} {first} and {len(given)} {name}; give one for each {first[:-1]}")
        return self

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns all texts of the request under the names of their fields."""
        found: dict[str, Sequence[str]] = {}
        for name in self.text_fields:
            given = getattr(self, name)
            if given and isinstance(given, list) and isinstance(given[0], list):
                found |= {f"{name}[{number}]": texts for number, texts in enumerate(given)}
            else:
                found[name] = [given] if isinstance(given, str) else given or ()
        return found


class AnyRequest(LimitedRequest):
    """A request to one of the models."""

    model: Model = None


class IndexRequest(LimitedRequest):
    """A request to one of the indexes."""

    index: Annotated[
        str | None, Field(description="Which index is searched; the server's first where none is named.")
    ] = None


@dataclass(frozen=True)
class Shape:
    """A form of requests, and what answers them.

    Attributes:
        handler: answers a request.
        told_by: fields by which a request of this form is known; empty for the endpoint's own form.
    """

    handler: Handler
    told_by: tuple[str, ...] = ()

    @property
    def request_type(self) -> type[LimitedRequest]:
        """The type of its requests."""
        found: type[LimitedRequest] = get_type_hints(self.handler)["request"]
        return found

    @property
    def answer_type(self) -> type[BaseModel]:
        """The type of its answers."""
        found: type[BaseModel] = get_type_hints(self.handler)["return"]
        return found


class Endpoint:
    """An endpoint of the server.

    Attributes:
        path: of its URL.
        shapes: the forms of requests it takes, its own first.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.shapes: list[Shape] = []

    def add(self, shape: Shape) -> None:
        """Adds a form of requests; the endpoint's own goes first."""
        self.shapes.append(shape)
        self.shapes.sort(key=lambda one: bool(one.told_by))

    @property
    def request_type(self) -> type[LimitedRequest]:
        """The type of requests in its own form."""
        return self.shapes[0].request_type

    def of(self, models: ServedModels) -> Callable[[Any], BaseModel]:
        """Returns a function from a request of any form to its answer, for the models of a server."""
        handlers = {shape.request_type: shape.handler for shape in self.shapes}

        def answer(request: Any) -> BaseModel:
            return handlers[type(request)](models, request)

        own = self.shapes[0].handler
        answer.__name__, answer.__doc__ = own.__name__, own.__doc__
        # FastAPI 从注解写出 OpenAPI 文档：几种形式就是它们的并
        taken, given = (functools.reduce(operator.or_, types) for types in zip(*self._types(), strict=True))
        answer.__annotations__ = {"request": taken, "return": given}
        answer.shapes = tuple(self.shapes)  # type: ignore[attr-defined]
        return answer

    def _types(self) -> list[tuple[Any, Any]]:
        return [(shape.request_type, shape.answer_type) for shape in self.shapes]


_ENDPOINTS: dict[str, Endpoint] = {}


def endpoint(path: str, *, told_by: tuple[str, ...] = ()) -> Callable[[HandlerT], HandlerT]:
    """Makes a function of the models and a request a handler of an endpoint.

    Args:
        path: of the endpoint.
        told_by: for requests in the form of another server: the fields by which they are known.
    """

    def register(handler: HandlerT) -> HandlerT:
        _ENDPOINTS.setdefault(path, Endpoint(path)).add(Shape(handler, told_by))
        return handler

    return register


@cache
def all_endpoints() -> tuple[Endpoint, ...]:
    """Returns the endpoints that the files of `bertsmith.serve.endpoints` define."""
    package = import_module("bertsmith.serve.endpoints")
    for module in iter_modules(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    return tuple(_ENDPOINTS.values())


def pipelines_at(path: str) -> tuple[str, ...]:
    """Returns the names of the pipelines that answer at a path."""
    return tuple(name for name, pipeline in all_pipelines().items() if path in pipeline.endpoints)


def tokens_read() -> int:
    """Returns how many tokens the model has read for the running request."""
    context = CURRENT.get()
    return 0 if context is None else context.tokens


def check_limits(request: LimitedRequest) -> None:
    """Holds a request against the limits, before anything is computed.

    Raises:
        HttpError: 413; it says what there is too much of, and where.
    """
    context = CURRENT.get()
    assert context is not None
    # 分词之前先数：超限的请求不该占用计算
    characters = 0
    for field, texts in request.texts_by_field().items():
        context.items += len(texts)
        if context.items > context.limits.items:
            raise HttpError(
                413,
                "too_many_items",
                f"{context.items} items or more, at most {context.limits.items} are taken; send them in several"
                " requests",
                where=field,
            )
        for number, text in enumerate(texts):
            characters += len(text)
            if characters > context.limits.characters:
                raise HttpError(
                    413,
                    "too_many_characters",
                    f"with this text the request has {characters} characters or more, at most"
                    f" {context.limits.characters} are taken; send fewer or shorter texts",
                    where=f"{field}[{number}]",
                )


class Problem(BaseModel):
    """Why a request was not answered."""

    message: str
    type: str
    param: str | None
    code: str


class ProblemAnswer(BaseModel):
    """What every refused request gets."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "message": "3000 items; at most 2048 are taken",
                        "type": "invalid_request_error",
                        "param": "texts",
                        "code": "too_many_items",
                    }
                }
            ]
        }
    )
    error: Problem
