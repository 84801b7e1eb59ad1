"""`/tokenize`: the pieces of texts, by any model's tokenizer."""

from __future__ import annotations

from pydantic import BaseModel

from bertsmith.serve.endpoint import AnyRequest, Texts, endpoint, example
from bertsmith.serve.models import ServedModels
from bertsmith.serve.request_context import CURRENT


class TokenizeRequest(AnyRequest):
    """Texts to be cut into pieces, without `[CLS]` and `[SEP]`."""

    model_config = example(texts=["Unbelievable!"])
    texts: Texts


class Tokenized(BaseModel):
    """The pieces of a text, their ids, and their characters: first, and one past the last."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


class TokenizeAnswer(BaseModel):
    """The pieces of each text."""

    model_config = example(
        model="base", results=[{"ids": [102, 7], "tokens": ["unbelievable", "!"], "offsets": [[0, 12], [12, 13]]}]
    )
    model: str
    results: list[Tokenized]


@endpoint("/tokenize")
def tokenize(models: ServedModels, request: TokenizeRequest) -> TokenizeAnswer:
    """Cuts texts into the pieces of a model's vocabulary."""
    model, context = models.named(request.model), CURRENT.get()
    flat = model.tokenizer.align_flat(request.texts)
    if context is not None:
        context.count(len(flat.ids))
    results = []
    for start, end in zip(flat.bounds[:-1].tolist(), flat.bounds[1:].tolist(), strict=True):
        ids = flat.ids[start:end].tolist()
        places = zip(flat.starts[start:end].tolist(), flat.ends[start:end].tolist(), strict=True)
        tokens = [model.tokenizer.vocab[index] for index in ids]
        results.append(Tokenized(ids=ids, tokens=tokens, offsets=list(places)))
    return TokenizeAnswer(model=model.name, results=results)
