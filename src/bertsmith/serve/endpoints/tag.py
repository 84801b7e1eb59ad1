"""`/tag`: entities in texts, or the tags of their words."""

from __future__ import annotations

from pydantic import BaseModel

from bertsmith.inference.tag import TextEntity
from bertsmith.serve.endpoint import AnyRequest, Texts, endpoint, example, pipelines_at, tokens_read
from bertsmith.serve.models import ServedModels


class TagRequest(AnyRequest):
    """Raw texts in which entities are found, or words are tagged."""

    model_config = example(texts=["Ada Lovelace lived in London."])
    texts: Texts


class TagAnswer(BaseModel):
    """The entities of each text."""

    model_config = example(
        model="names",
        entities=[[{"type": "PER", "start": 0, "end": 12, "text": "Ada Lovelace", "probability": 0.99}]],
        tokens=9,
    )
    model: str
    entities: list[list[TextEntity]]
    tokens: int


@endpoint("/tag")
def tag(models: ServedModels, request: TagRequest) -> TagAnswer:
    """Finds entities in texts, or tags their words."""
    model, _, pipeline = models.pipeline(request.model, pipelines_at("/tag"))
    return TagAnswer(model=model.name, entities=pipeline(request.texts), tokens=tokens_read())
