"""`/next-sentence`: how likely one text follows another."""

from __future__ import annotations

from pydantic import BaseModel

from bertsmith.serve.endpoint import AnyRequest, Texts, endpoint, example, pipelines_at, tokens_read
from bertsmith.serve.models import ServedModels


class NextSentenceRequest(AnyRequest):
    """Texts, and for each the text that may follow it."""

    text_fields = ("texts", "followers")
    same_length = ("followers",)

    model_config = example(texts=["The man went to the shop."], followers=["He bought a litre of milk."])
    texts: Texts
    followers: Texts


class NextSentenceAnswer(BaseModel):
    """The probability of each pair that the second text follows the first."""

    model_config = example(model="base", probabilities=[0.97], tokens=17)
    model: str
    probabilities: list[float]
    tokens: int


@endpoint("/next-sentence")
def next_sentence(models: ServedModels, request: NextSentenceRequest) -> NextSentenceAnswer:
    """Tells how likely each second text follows its first one."""
    model, _, pipeline = models.pipeline(request.model, pipelines_at("/next-sentence"))
    found = pipeline(request.texts, request.followers).tolist()
    return NextSentenceAnswer(model=model.name, probabilities=found, tokens=tokens_read())
