"""`/answer`: questions answered from passages."""

from __future__ import annotations

from pydantic import BaseModel

from bertsmith.inference.answer import AnswerCandidate
from bertsmith.serve.endpoint import AnyRequest, Texts, endpoint, example, pipelines_at, tokens_read
from bertsmith.serve.models import ServedModels

_ADA = {"text": "Ada Lovelace", "start": 0, "end": 12, "score": 9.1, "probability": 0.97}


class AnswerRequest(AnyRequest):
    """Questions, and the passage in which each is answered; passages may have any length."""

    text_fields = ("questions", "contexts")
    same_length = ("contexts",)

    model_config = example(questions=["Who lived in London?"], contexts=["Ada Lovelace lived in London."])
    questions: Texts
    contexts: Texts


class Answered(BaseModel):
    """The answer to a question: characters `start` to `end` of the passage, `end` excluded.

    `no_answer` says that the passage does not hold one.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float
    no_answer: bool
    candidates: tuple[AnswerCandidate, ...]


class AnswerAnswer(BaseModel):
    """An answer to each question."""

    model_config = example(model="reader", answers=[{**_ADA, "no_answer": False, "candidates": [_ADA]}], tokens=16)
    model: str
    answers: list[Answered]
    tokens: int


@endpoint("/answer")
def answer(models: ServedModels, request: AnswerRequest) -> AnswerAnswer:
    """Answers questions from passages."""
    model, _, pipeline = models.pipeline(request.model, pipelines_at("/answer"))
    found = pipeline(request.questions, request.contexts)
    answers = [Answered(**{name: getattr(one, name) for name in Answered.model_fields}) for one in found]
    return AnswerAnswer(model=model.name, answers=answers, tokens=tokens_read())
