"""`/rerank`: texts in order of relevance to a query."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from bertsmith.serve.endpoint import AnyRequest, Texts, endpoint, example, pipelines_at, tokens_read
from bertsmith.serve.models import ServedModels


class RerankRequest(AnyRequest):
    """A query, and texts to be put in order of relevance to it."""

    text_fields = ("query", "texts")

    model_config = example(query="how do cats sleep", texts=["Cats sleep curled up.", "The bank opens at nine."])
    query: str
    texts: Texts
    top_k: Annotated[int | None, Field(ge=1, description="Return only this many, the best.")] = None


class Ranked(BaseModel):
    """The number of a text in the request, and how relevant it is, in [0, 1]."""

    index: int
    score: float


class RerankAnswer(BaseModel):
    """The texts, best first."""

    model_config = example(
        model="ranker", results=[{"index": 0, "score": 0.93}, {"index": 1, "score": 0.02}], tokens=26
    )
    model: str
    results: list[Ranked]
    tokens: int


@endpoint("/rerank")
def rerank(models: ServedModels, request: RerankRequest) -> RerankAnswer:
    """Puts texts in order of relevance to a query."""
    model, _, pipeline = models.pipeline(request.model, pipelines_at("/rerank"))
    found = pipeline(request.query, request.texts)[: request.top_k]
    results = [Ranked(index=row.index, score=row.score) for row in found]
    return RerankAnswer(model=model.name, results=results, tokens=tokens_read())
