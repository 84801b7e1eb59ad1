"""What an endpoint is: a path, and a function from a checked request to a typed answer.

    @endpoint("/tag")
    def tag(models: ServedModels, request: TagRequest) -> TagAnswer:
        '''Finds entities in texts, or tags their words.'''

`/openapi.json` and `/docs` are made from the types, pydantic models with an example each. The function runs in the
request's own thread, raises `HttpError` or the errors of `bertsmith.errors`, and knows nothing of HTTP.

Checks are strict: a number is not taken for a text, an unknown field of our own forms is an error. A list is checked up
to its first fault: a million wrong elements would make a million errors. pydantic's parser reads JSON straight into the
model: it is strict about UTF-8, depth and numbers, so safer than FastAPI's way, and several times cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticUseDefault

from bertsmith.errors import ConfigError, InputError
from bertsmith.serve.models import ServedModels
from bertsmith.serve.request import CURRENT, HttpError, RequestContext

Texts = Annotated[list[str], Field(min_length=1, fail_fast=True, description="One or more texts.")]
Handler = Callable[[ServedModels, Any], BaseModel]
HandlerT = TypeVar("HandlerT", bound=Handler)

_MOST_FAULTS = 100
"""A body with more faults is refused without saying which: to list one, pydantic makes all of them."""


def _default_for_null(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


OrNull = BeforeValidator(_default_for_null)
"""Null stands for the default: many clients write out every option that was not set."""


def example(*, extra: Literal["forbid", "ignore"] = "forbid", **values: Any) -> ConfigDict:
    """Returns the settings of a strict type with an example of its values."""
    return ConfigDict(extra=extra, strict=True, json_schema_extra={"examples": [values]}, protected_namespaces=())


class LimitedRequest(BaseModel):
    """A request whose texts count against the limits.

    Each of `text_fields` is a text, a list of texts, a list of such lists, or None; `same_length` names the fields with
    one element for each of the first of them.
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

    model: Annotated[str | None, Field(description="Which model answers; the server's first where none is named.")] = (
        None
    )


class Shape(NamedTuple):
    """A form of requests, and what answers them; `told_by` is a field that no other form at the path has."""

    handler: Handler
    request_type: type[LimitedRequest]
    answer_type: type[BaseModel]
    told_by: str


ENDPOINTS: dict[str, list[Shape]] = {}
"""The forms of requests at every path, the endpoint's own first."""


def endpoint(path: str, *, told_by: str = "") -> Callable[[HandlerT], HandlerT]:
    """Makes a function of the models and a request the handler of an endpoint.

    `told_by` is the field by which requests in the form of another server are known.
    """

    def register(handler: HandlerT) -> HandlerT:
        types = get_type_hints(handler)
        shapes = ENDPOINTS.setdefault(path, [])
        shapes.append(Shape(handler, types["request"], types["return"], told_by))
        shapes.sort(key=lambda shape: bool(shape.told_by))
        return handler

    return register


def tokens_read() -> int:
    """Returns how many tokens the model has read for the running request."""
    context = CURRENT.get()
    return 0 if context is None else context.tokens


def answer_body(shapes: Sequence[Shape], models: ServedModels, body: bytes, context: RequestContext) -> bytes:
    """Turns the body of a request into the body of its answer.

    Raises HttpError where the request is malformed, too large, or cannot be served.
    """
    shape, request = _read_request(shapes, body)
    try:
        _check_limits(request, context)
        answer = shape.handler(models, request)
    except (InputError, ConfigError) as error:
        raise HttpError(422, "unusable_input", str(error)) from None
    context.check()
    return answer.__pydantic_serializer__.to_json(answer, exclude_none=True)


def _read_request(shapes: Sequence[Shape], body: bytes) -> tuple[Shape, LimitedRequest]:
    """Reads a body in the endpoint's own form, or in another that it is known by."""
    for number, shape in enumerate(shapes):
        try:
            return shape, shape.request_type.__pydantic_validator__.validate_json(body)
        except ValidationError as error:
            # 自己的必填字段没有，不认得的字段正好是别家形式的标志：换那一种来读
            marks = {other.told_by for other in shapes[number + 1 :]}
            faults = _faults(error) if marks and error.error_count() <= _MOST_FAULTS else []
            unknown = {fault["loc"][0] for fault in faults if fault["type"] == "extra_forbidden"}
            if not marks & unknown or all(fault["type"] != "missing" for fault in faults):
                raise _malformed(error) from None
    raise AssertionError("the last form is read, or refused")


def _faults(error: ValidationError) -> list[Any]:
    return error.errors(include_url=False, include_context=False, include_input=False)


def _malformed(error: ValidationError) -> HttpError:
    """Says what is wrong with a body: the first fault, where it is, never the text itself."""
    if error.error_count() > _MOST_FAULTS:
        # 取出任何一个错误都要先造出全部：几十万个未知字段会让服务停上几秒
        return HttpError(422, "invalid_request", f"body: {error.error_count()} faults; /docs shows what is taken")
    fault = _faults(error)[0]
    if fault["type"] == "json_invalid":
        return HttpError(422, "invalid_json", f"the body is not JSON that can be read: {fault['msg'][:200]}")
    # 字段名也来自请求，可能极长：截短
    where = ".".join(str(part)[:40] for part in fault["loc"]) or None
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return HttpError(422, "invalid_request", f"{where or 'body'}: {fault['msg'][:200]}{more}", where=where)


def _check_limits(request: LimitedRequest, context: RequestContext) -> None:
    """Holds a request against the limits, before anything is computed."""
    characters, limits = 0, context.limits
    # 分词之前先数：超限的请求不该占用计算
    for field, texts in request.texts_by_field().items():
        context.items += len(texts)
        if context.items > limits.items:
            said = f"{context.items} items or more, at most {limits.items} are taken; send them in several requests"
            raise HttpError(413, "too_many_items", said, where=field)
        for number, text in enumerate(texts):
            characters += len(text)
            if characters > limits.characters:
                said = (
                    f"with this text the request has {characters} characters or more, at most {limits.characters} are"
                    " taken; send fewer or shorter texts"
                )
                raise HttpError(413, "too_many_characters", said, where=f"{field}[{number}]")


class Problem(BaseModel):
    """Why a request was not answered."""

    message: str
    type: str
    param: str | None
    code: str


_EXAMPLE: dict[str, Any] = {
    "message": "3000 items; at most 2048 are taken",
    "type": "invalid_request_error",
    "param": "texts",
    "code": "too_many_items",
}


class ProblemAnswer(BaseModel):
    """What every refused request gets."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"error": _EXAMPLE}]})
    error: Problem
