"""`/fill-mask`: what could stand at every `[MASK]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from bertsmith.inference.fill_mask import Candidate
from bertsmith.serve.endpoint import AnyRequest, Texts, endpoint, example, pipelines_at, tokens_read
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.models import ServedModels

_MOST_PIECES = 50_000
"""Pieces in an answer; each exists three times on its way out."""


class FillMaskRequest(AnyRequest):
    """Texts with one or more `[MASK]`."""

    text_fields = ("texts", "candidates")

    model_config = example(texts=["The man eats the [MASK]."], top_k=3)
    texts: Texts
    top_k: Annotated[int, Field(ge=1, le=1000, description="Pieces for each mask.")] = 5
    candidates: Annotated[
        list[str] | None, Field(min_length=1, fail_fast=True, description="Choose among these pieces alone.")
    ] = None


class FillMaskAnswer(BaseModel):
    """For each text, for each of its masks from left to right, the likeliest pieces, best first."""

    model_config = example(model="base", masks=[[[{"piece": "bread", "probability": 0.31}]]], tokens=8)
    model: str
    masks: list[list[list[Candidate]]]
    tokens: int


@endpoint("/fill-mask")
def fill_mask(models: ServedModels, request: FillMaskRequest) -> FillMaskAnswer:
    """Fills every `[MASK]` of the texts."""
    model, _, pipeline = models.pipeline(request.model, pipelines_at("/fill-mask"))
    # 几十 KB 的请求就能要出上百万个片段：先数好，太多就不算
    masks = sum(text.count(pipeline.tokenizer.special_tokens.mask) for text in request.texts)
    each = min(request.top_k, len(request.candidates or ()) or request.top_k)
    if masks * each > _MOST_PIECES:
        raise HttpError(
            413,
            "too_many_pieces",
            f"{masks} masks with {each} pieces each; at most {_MOST_PIECES} in all",
            where="top_k",
        )
    found = pipeline(request.texts, top_k=request.top_k, candidates=request.candidates)
    return FillMaskAnswer(model=model.name, masks=found, tokens=tokens_read())
