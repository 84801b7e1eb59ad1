"""`/embed`: texts as vectors."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from bertsmith.inference.embed import Pooling
from bertsmith.serve.endpoint import AnyRequest, Texts, endpoint, example, pipelines_at, tokens_read
from bertsmith.serve.models import ServedModels


class EmbedRequest(AnyRequest):
    """Texts to be turned into vectors."""

    model_config = example(texts=["The cat sat on the mat.", "A feline rested."])
    texts: Texts
    pooling: Annotated[Pooling | None, Field(description="How token states become one; the model's own if null.")] = (
        None
    )
    normalize: Annotated[bool, Field(description="Scale every vector to length 1.")] = True
    prompt: Annotated[
        str | None, Field(description="Name of the model's prompt to put before every text, such as query.")
    ] = None
    dimensions: Annotated[int | None, Field(ge=1, description="Keep only this many numbers, the first ones.")] = None


class EmbedAnswer(BaseModel):
    """A vector for each text, in their order."""

    model_config = example(model="minilm", vectors=[[0.031, -0.027], [0.044, -0.019]], tokens=15)
    model: str
    vectors: list[list[float]]
    tokens: Annotated[int, Field(description="Tokens that the model read.")]


@endpoint("/embed")
def embed(models: ServedModels, request: EmbedRequest) -> EmbedAnswer:
    """Turns texts into vectors."""
    model, _, pipeline = models.pipeline(request.model, pipelines_at("/embed"))
    vectors = pipeline(
        request.texts,
        pooling=request.pooling,
        normalize=request.normalize,
        dims=request.dimensions,
        prompt=request.prompt,
    )
    return EmbedAnswer(model=model.name, vectors=vectors.tolist(), tokens=tokens_read())
