"""`/similarity`: the cosines of two lists of texts."""

from __future__ import annotations

from pydantic import BaseModel

from bertsmith.serve.endpoint import AnyRequest, Texts, endpoint, example, pipelines_at, tokens_read
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.models import ServedModels

_MOST_COSINES = 250_000
"""Numbers in an answer: about 5 MB of JSON."""


class SimilarityRequest(AnyRequest):
    """Two lists of texts, each of the first to be compared with each of the second."""

    text_fields = ("texts", "others")

    model_config = example(texts=["The cat sat on the mat."], others=["A feline rested.", "Stocks fell."])
    texts: Texts
    others: Texts


class SimilarityAnswer(BaseModel):
    """The cosine of each text with each of the others: a row for each text."""

    model_config = example(model="minilm", similarities=[[0.71, 0.05]], tokens=18)
    model: str
    similarities: list[list[float]]
    tokens: int


@endpoint("/similarity")
def similarity(models: ServedModels, request: SimilarityRequest) -> SimilarityAnswer:
    """Compares each text of one list with each of another."""
    model, _, pipeline = models.pipeline(request.model, pipelines_at("/similarity"))
    # 答案随两列长度之积增长：十 KB 的请求能要出二十 MB
    if len(request.texts) * len(request.others) > _MOST_COSINES:
        raise HttpError(
            413,
            "too_many_cosines",
            f"{len(request.texts)} texts with {len(request.others)} others each; at most {_MOST_COSINES} cosines are"
            " taken; send several requests",
            where="others",
        )
    cosines = pipeline.compare(request.texts, request.others)
    return SimilarityAnswer(model=model.name, similarities=cosines.tolist(), tokens=tokens_read())
