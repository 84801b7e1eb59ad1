"""Endpoints that clients of hosted services know: OpenAI's embeddings and models, and the rerank of Jina and Cohere.

Clients work unchanged with this `base_url` and a served model's name as `model`; fields such as `user` are ignored.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BaseModel, Field

from bertsmith.serve.endpoint import AnyRequest, OrNull, Texts, endpoint, example, tokens_read
from bertsmith.serve.models import ServedModel, ServedModels
from bertsmith.serve.request import HttpError

_Ids = Annotated[list[int], Field(min_length=1, fail_fast=True)]


class EmbeddingsRequest(AnyRequest):
    """Texts to be turned into vectors."""

    text_fields = ("input",)

    model_config = example(extra="ignore", input=["The cat sat on the mat."], model="minilm")
    input: Annotated[
        str | Texts | _Ids | Annotated[list[_Ids], Field(min_length=1, fail_fast=True)],
        Field(description="A text or a list of texts; token ids are refused."),
    ]
    model: Annotated[str, Field(description="Name of a served model.")]
    encoding_format: Annotated[
        Literal["float", "base64"], OrNull, Field(description="base64: little-endian float32, four bytes a number.")
    ] = "float"
    dimensions: Annotated[int | None, Field(ge=1, description="Keep only this many numbers, the first ones.")] = None

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the texts."""
        texts: Any = [self.input] if isinstance(self.input, str) else self.input
        # 编号只在一个词表里有意义，而这里看不出是谁的词表（LangChain 发的是 tiktoken 的）：照算只会得到无意义的向量
        if not isinstance(texts[0], str):
            said = (
                "token ids mean something in the tokenizer that made them alone, and often it is another than this"
                " model's; send texts (LangChain: check_embedding_ctx_length=False)"
            )
            raise HttpError(422, "token_ids", said, where="input")
        return {"input": texts}


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


@endpoint("/v1/embeddings")
def embeddings(models: ServedModels, request: EmbeddingsRequest) -> EmbeddingsAnswer:
    """Turns texts into vectors, as OpenAI's API does it."""
    model, pipeline = models.at("/v1/embeddings", request.model)
    vectors = pipeline(request.texts_by_field()["input"], dims=request.dimensions)
    encoded = vectors.tolist()
    if request.encoding_format == "base64":
        encoded = [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in vectors]
    data = [EmbeddingRow(index=index, embedding=row) for index, row in enumerate(encoded)]
    return EmbeddingsAnswer(data=data, model=model.name, usage=_usage())


def _usage() -> Usage:
    return Usage(prompt_tokens=tokens_read(), total_tokens=tokens_read())


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


def described(model: ServedModel) -> ModelRow:
    """Tells of one served model."""
    return ModelRow(id=model.name, created=model.created)


class RankedDocument(BaseModel):
    """A document to be put in order, or given back."""

    text: str


class DocumentsRequest(AnyRequest):
    """A query, and documents to be put in order of relevance to it, in the words of Jina and Cohere."""

    model_config = example(
        extra="ignore", model="ranker", query="how do cats sleep", documents=["Cats sleep curled up."]
    )
    query: str
    documents: Annotated[
        list[str | RankedDocument],
        Field(min_length=1, fail_fast=True, description='Texts, or objects such as {"text": …}.'),
    ]
    top_n: Annotated[int | None, Field(ge=1, description="Return only this many, the best.")] = None
    return_documents: Annotated[bool, OrNull, Field(description="Give every text back with its score.")] = True

    text_fields = ("documents",)

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the query and the texts of the documents."""
        texts = [document if isinstance(document, str) else document.text for document in self.documents]
        return {"query": [self.query], "documents": texts}


class RelevantDocument(BaseModel):
    """The number of a document in the request, and its relevance: the score as the model gives it."""

    index: int
    relevance_score: float
    document: RankedDocument | None = None


class DocumentsAnswer(BaseModel):
    """The documents, best first."""

    id: str
    model: str
    results: list[RelevantDocument]
    usage: Usage


@endpoint("/v2/rerank")
@endpoint("/v1/rerank")
def rerank_documents(models: ServedModels, request: DocumentsRequest) -> DocumentsAnswer:
    """Puts documents in order of relevance to a query, as the APIs of Jina and Cohere do it."""
    model, pipeline = models.at("/v1/rerank", request.model)
    texts = request.texts_by_field()["documents"]
    results = [
        RelevantDocument(
            index=found.index,
            relevance_score=found.score,
            document=RankedDocument(text=texts[found.index]) if request.return_documents else None,
        )
        for found in pipeline(request.query, texts)[: request.top_n]
    ]
    return DocumentsAnswer(id=f"rerank-{uuid4().hex}", model=model.name, results=results, usage=_usage())
