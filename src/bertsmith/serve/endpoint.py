"""What an endpoint is: a path, and a function from a checked request to a typed answer.

    @endpoint("/tag")
    def tag(models: ServedModels, request: TagRequest) -> TagAnswer:
        '''Finds entities in texts, or tags their words.'''

The types are pydantic models with an example each; `/openapi.json` and `/docs` are made from them. The function runs
in the request's own thread and may take its time; it raises `HttpError`, or the errors of `bertsmith.errors`, and
knows nothing of HTTP.

A request is checked strictly: a number is not taken for a text, an unknown field is an error. Checking a list ends at
its first fault: a million wrong elements would otherwise make a million errors.
"""

from __future__ import annotations

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
class Endpoint:
    """An endpoint of the server.

    Attributes:
        path: of its URL.
        handler: answers a request.
    """

    path: str
    handler: Handler

    @property
    def request_type(self) -> type[LimitedRequest]:
        """The type of its requests."""
        found: type[LimitedRequest] = get_type_hints(self.handler)["request"]
        return found

    def of(self, models: ServedModels) -> Callable[[Any], BaseModel]:
        """Returns the handler for the models of a server: a function of the request alone, as FastAPI reads it."""

        def answer(request: Any) -> BaseModel:
            return self.handler(models, request)

        hints = get_type_hints(self.handler)
        answer.__name__, answer.__doc__ = self.handler.__name__, self.handler.__doc__
        answer.__annotations__ = {"request": hints["request"], "return": hints["return"]}
        return answer


_ENDPOINTS: dict[str, Endpoint] = {}


def endpoint(path: str) -> Callable[[HandlerT], HandlerT]:
    """Makes a function of the models and a request the handler of an endpoint."""

    def register(handler: HandlerT) -> HandlerT:
        _ENDPOINTS[path] = Endpoint(path, handler)
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
