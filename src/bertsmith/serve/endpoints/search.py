"""`/search`: passages of an index that fit a query."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from pydantic import BaseModel, Field

from bertsmith.retrieval.search import Mode
from bertsmith.serve.endpoint import IndexRequest, endpoint, example, pipelines_at, tokens_read
from bertsmith.serve.indexes import index_named
from bertsmith.serve.models import ServedModels

MOST_PASSAGES = 100


class SearchRequest(IndexRequest):
    """A question or words."""

    text_fields = ("query",)

    model_config = example(query="how do I renew a licence?", k=5, where={"file": "guides/*"})
    query: str
    k: Annotated[int, Field(ge=1, le=MOST_PASSAGES, description="Passages to return.")] = 10
    mode: Annotated[Mode, Field(description="By vectors, by words, or by both: their scores, or their ranks.")] = (
        "hybrid"
    )
    weight: Annotated[
        float | None,
        Field(ge=0, le=1, description="Of the vectors in a hybrid search; that of the index if null."),
    ] = None
    where: Annotated[
        dict[str, str] | None,
        Field(max_length=16, description="Field of the front matter, or file: a pattern with * and ?."),
    ] = None
    rerank: Annotated[
        str | None, Field(description="Name of a served model made by `finetune rank` that reads the best once more.")
    ] = None


class FoundPassage(BaseModel):
    """A passage, and where it stands."""

    score: float
    file: str
    line: Annotated[int, Field(description="Of its first character, counted from 1.")]
    start: Annotated[int, Field(description="Its first character in the text of the file.")]
    end: Annotated[int, Field(description="One past its last.")]
    heading: str
    text: str
    metadata: dict[str, str]


class SearchAnswer(BaseModel):
    """Passages, best first."""

    model_config = example(
        index="notes",
        hits=[
            {
                "score": 0.031,
                "file": "guides/licences.md",
                "line": 12,
                "start": 480,
                "end": 566,
                "heading": "Licences > Renewal",
                "text": "A licence is renewed at the counter or by post.",
                "metadata": {"author": "the office"},
            }
        ],
        tokens=9,
    )
    index: str
    hits: list[FoundPassage]
    tokens: int


@endpoint("/search")
def search(models: ServedModels, request: SearchRequest) -> SearchAnswer:
    """Finds the passages of an index that fit a query best."""
    name, index = index_named(models.indexes, request.index)
    ranker = None if request.rerank is None else models.pipeline(request.rerank, pipelines_at("/rerank"))[2]
    hits = index.search(
        request.query, k=request.k, mode=request.mode, weight=request.weight, where=request.where, ranker=ranker
    )
    found = [FoundPassage(**{field: value for field, value in asdict(hit).items() if field != "row"}) for hit in hits]
    return SearchAnswer(index=name, hits=found, tokens=tokens_read())
