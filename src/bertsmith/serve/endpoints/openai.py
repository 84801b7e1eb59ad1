"""The endpoints of OpenAI's API that an encoder can serve: `/v1/embeddings` and `/v1/models`.

Its clients work unchanged when `base_url` points here and `model` is the name of a served model. Token ids are those
of the model's own tokenizer, without `[CLS]` and `[SEP]`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch.nn.functional import normalize

from bertsmith.inference.embed import READS, Embed
from bertsmith.serve.endpoint import AnyRequest, endpoint, pipelines_at, tokens_read
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.models import ServedModels

_Filled = Field(min_length=1, fail_fast=True)


class EmbeddingsRequest(AnyRequest):
    """Texts, or token ids, to be turned into vectors."""

    text_fields = ("input",)

    # 别家客户端会带上本服务用不到的字段（如 user）：忽略而不报错，才算兼容
    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra={"examples": [{"input": ["The cat sat on the mat."], "model": "minilm"}]},
    )
    input: Annotated[
        str
        | Annotated[list[str], _Filled]
        | Annotated[list[int], _Filled]
        | Annotated[list[Annotated[list[int], _Filled]], _Filled],
        Field(description="A text, a list of texts, a list of token ids, or a list of such lists."),
    ]
    model: Annotated[str, Field(description="Name of a served model.")]
    encoding_format: Annotated[
        Literal["float", "base64"], Field(description="base64: little-endian float32, four bytes a number.")
    ] = "float"
    dimensions: Annotated[int | None, Field(ge=1, description="Keep only this many numbers, the first ones.")] = None

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the texts; of token ids only their number, they have no characters."""
        return {"input": [row if isinstance(row, str) else "" for row in self.rows()]}

    def rows(self) -> Sequence[str] | Sequence[list[int]]:
        """Returns the inputs as a list: texts, or lists of ids."""
        given: Any = self.input
        return [given] if isinstance(given, str) or isinstance(given[0], int) else given


class EmbeddingRow(BaseModel):
    """One vector."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """How much the model read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """A vector for each input, in their order."""

    object: Literal["list"] = "list"
    data: list[EmbeddingRow]
    model: str
    usage: Usage


class ModelRow(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "bertsmith"


class ModelsAnswer(BaseModel):
    """The served models."""

    object: Literal["list"] = "list"
    data: list[ModelRow]


@endpoint("/v1/embeddings")
def embeddings(models: ServedModels, request: EmbeddingsRequest) -> EmbeddingsAnswer:
    """Turns texts into vectors, as OpenAI's API does it."""
    model, _, pipeline = models.pipeline(request.model, pipelines_at("/v1/embeddings"))
    rows: Any = request.rows()
    if isinstance(rows[0], str):
        vectors = pipeline(rows, dims=request.dimensions)
    else:
        width = pipeline.width(dims=request.dimensions)
        states = pipeline.engine.run(_with_special_tokens(pipeline, rows), None, READS[pipeline.pooling])
        vectors = normalize(states[:, :width], dim=-1).numpy()
    data = [
        EmbeddingRow(index=index, embedding=_encoded(row, request.encoding_format)) for index, row in enumerate(vectors)
    ]
    usage = Usage(prompt_tokens=tokens_read(), total_tokens=tokens_read())
    return EmbeddingsAnswer(data=data, model=model.name, usage=usage)


def list_models(models: ServedModels) -> ModelsAnswer:
    """Lists the served models."""
    return ModelsAnswer(data=[ModelRow(id=model.name, created=model.created) for model in models])


def _with_special_tokens(pipeline: Embed, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Puts `[CLS]` and `[SEP]` around lists of ids; longer ones are cut, as texts are.

    Raises:
        HttpError: 422, an id is not in the vocabulary.
    """
    tokenizer, most = pipeline.tokenizer, pipeline.max_length - pipeline.tokenizer.template.size(pair=False)
    for number, row in enumerate(rows):
        if not 0 <= min(row) <= max(row) < tokenizer.vocab_size:
            raise HttpError(
                422,
                "unknown_token",
                f"ids of this model lie between 0 and {tokenizer.vocab_size - 1}",
                where=f"input[{number}]",
            )
    return [tokenizer.template.wrap(row[:most]) for row in rows]


def _encoded(vector: NDArray[np.float32], encoding: str) -> list[float] | str:
    if encoding == "float":
        values: list[float] = vector.tolist()
        return values
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
