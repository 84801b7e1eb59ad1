"""What requests and answers look like: typed models with an example each, from which `/openapi.json` is made.

A request is checked strictly: a number is not taken for a text, an unknown field is an error. `texts_by_field` names
all its texts, so that one function can hold any request against the limits. Checking a list ends at its first fault: a
million wrong elements would otherwise make a million errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bertsmith.inference.embed import Pooling

Texts = Annotated[list[str], Field(min_length=1, fail_fast=True, description="One or more texts.")]
Model = Annotated[str | None, Field(description="Which model answers; the server's first where none is named.")]


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [values]}, protected_namespaces=())


class AnyRequest(BaseModel, ABC):
    """What every request has."""

    model: Model = None

    @abstractmethod
    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns all texts of the request under the names of their fields."""


class EmbedRequest(AnyRequest):
    """Texts to be turned into vectors."""

    model_config = _example(texts=["The cat sat on the mat.", "A feline rested."])
    texts: Texts
    pooling: Annotated[Pooling | None, Field(description="How token states become one; the model's own if null.")] = (
        None
    )
    normalize: Annotated[bool, Field(description="Scale every vector to length 1.")] = True
    dimensions: Annotated[int | None, Field(ge=1, description="Keep only the first so many numbers.")] = None

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the texts."""
        return {"texts": self.texts}


class EmbedAnswer(BaseModel):
    """A vector for each text, in their order."""

    model_config = _example(model="minilm", vectors=[[0.031, -0.027], [0.044, -0.019]], tokens=15)
    model: str
    vectors: list[list[float]]
    tokens: Annotated[int, Field(description="Tokens that the model read.")]


class PredictRequest(AnyRequest):
    """Texts, or pairs of texts, or contexts with choices, for a fine-tuned model."""

    model_config = _example(texts=["A film to remember."])
    texts: Texts
    pairs: Annotated[
        list[str] | None,
        Field(fail_fast=True, description="A second text for each, where the model was trained on pairs."),
    ] = None
    choices: Annotated[
        list[Annotated[list[str], Field(min_length=1, fail_fast=True)]] | None,
        Field(fail_fast=True, description="For a multiple-choice model: the choices of each text."),
    ] = None

    @model_validator(mode="after")
    def _fits(self) -> PredictRequest:
        # 两样都给时不知道要哪一种：宁可拒绝，也不悄悄丢掉一样
        if self.pairs is not None and self.choices is not None:
            raise ValueError("pairs are for pairs of texts, choices for multiple choice; give one of them")
        for name in ("pairs", "choices"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.texts):
                raise ValueError(f"{len(self.texts)} texts and {len(given)} {name}; give one for each text")
        return self

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the texts, the second texts, and the choices of each."""
        choices = {f"choices[{number}]": row for number, row in enumerate(self.choices or ())}
        return {"texts": self.texts, "pairs": self.pairs or (), **choices}


class Prediction(BaseModel):
    """What a model says of one text; which fields are there depends on its kind."""

    model_config = _example(label="positive", probabilities={"negative": 0.02, "positive": 0.98})
    label: Annotated[str | None, Field(description="Classifier: the likeliest class.")] = None
    labels: Annotated[list[str] | None, Field(description="Multi-label: all labels above the threshold.")] = None
    value: Annotated[float | None, Field(description="Regression: the number.")] = None
    choice: Annotated[int | None, Field(description="Multiple choice: the number of the likeliest, from 0.")] = None
    probabilities: Annotated[
        dict[str, float] | list[float] | None, Field(description="Of every class or label, or of every choice.")
    ] = None


class PredictAnswer(BaseModel):
    """A prediction for each text, in their order."""

    model_config = _example(
        model="reviews",
        kind="classify",
        predictions=[{"label": "positive", "probabilities": {"negative": 0.02, "positive": 0.98}}],
        tokens=8,
    )
    model: str
    kind: Annotated[str, Field(description="classify, multilabel, regress, choose.")]
    predictions: list[Prediction]
    tokens: int


class FillMaskRequest(AnyRequest):
    """Texts with one or more `[MASK]`."""

    model_config = _example(texts=["The man eats the [MASK]."], top_k=3)
    texts: Texts
    top_k: Annotated[int, Field(ge=1, le=1000, description="Pieces for each mask.")] = 5
    candidates: Annotated[
        list[str] | None, Field(min_length=1, fail_fast=True, description="Choose among these pieces alone.")
    ] = None

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the texts and the candidates."""
        return {"texts": self.texts, "candidates": self.candidates or ()}


class Piece(BaseModel):
    """A piece that could stand at a mask."""

    piece: str
    probability: float


class FillMaskAnswer(BaseModel):
    """For each text, for each of its masks from left to right, the likeliest pieces, best first."""

    model_config = _example(model="base", masks=[[[{"piece": "bread", "probability": 0.31}]]], tokens=8)
    model: str
    masks: list[list[list[Piece]]]
    tokens: int


class TagRequest(AnyRequest):
    """Raw texts in which entities are found, or words are tagged."""

    model_config = _example(texts=["Ada Lovelace lived in London."])
    texts: Texts

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the texts."""
        return {"texts": self.texts}


class Entity(BaseModel):
    """A stretch of a text: characters `start` to `end`, `end` excluded."""

    type: str
    start: int
    end: int
    text: str
    probability: float


class TagAnswer(BaseModel):
    """The entities of each text."""

    model_config = _example(
        model="names",
        entities=[[{"type": "PER", "start": 0, "end": 12, "text": "Ada Lovelace", "probability": 0.99}]],
        tokens=9,
    )
    model: str
    entities: list[list[Entity]]
    tokens: int


class AnswerRequest(AnyRequest):
    """Questions, and the passage in which each is answered; passages may have any length."""

    model_config = _example(questions=["Who lived in London?"], contexts=["Ada Lovelace lived in London."])
    questions: Texts
    contexts: Texts

    @model_validator(mode="after")
    def _fits(self) -> AnswerRequest:
        if len(self.questions) != len(self.contexts):
            raise ValueError(
                f"{len(self.questions)} questions and {len(self.contexts)} contexts; give one for each question"
            )
        return self

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the questions and the passages."""
        return {"questions": self.questions, "contexts": self.contexts}


class AnswerCandidate(BaseModel):
    """A possible answer: characters `start` to `end` of the passage, `end` excluded."""

    text: str
    start: int
    end: int
    score: float
    probability: float


class Answered(AnswerCandidate):
    """The answer to a question; `no_answer` where the passage does not hold one."""

    no_answer: bool
    candidates: list[AnswerCandidate]


class AnswerAnswer(BaseModel):
    """An answer to each question."""

    model_config = _example(
        model="reader",
        answers=[
            {
                "text": "Ada Lovelace",
                "start": 0,
                "end": 12,
                "score": 9.1,
                "probability": 0.97,
                "no_answer": False,
                "candidates": [{"text": "Ada Lovelace", "start": 0, "end": 12, "score": 9.1, "probability": 0.97}],
            }
        ],
        tokens=16,
    )
    model: str
    answers: list[Answered]
    tokens: int


class RerankRequest(AnyRequest):
    """A query, and texts to be put in order of relevance to it."""

    model_config = _example(query="how do cats sleep", texts=["Cats sleep curled up.", "The bank opens at nine."])
    query: str
    texts: Texts
    top_k: Annotated[int | None, Field(ge=1, description="Return only the best so many.")] = None

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the query and the texts."""
        return {"query": [self.query], "texts": self.texts}


class Ranked(BaseModel):
    """The number of a text in the request, and how relevant it is, in [0, 1]."""

    index: int
    score: float


class RerankAnswer(BaseModel):
    """The texts, best first."""

    model_config = _example(
        model="ranker", results=[{"index": 0, "score": 0.93}, {"index": 1, "score": 0.02}], tokens=26
    )
    model: str
    results: list[Ranked]
    tokens: int


class SimilarityRequest(AnyRequest):
    """Two lists of texts, each of the first to be compared with each of the second."""

    model_config = _example(texts=["The cat sat on the mat."], others=["A feline rested.", "Stocks fell."])
    texts: Texts
    others: Texts

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns both lists."""
        return {"texts": self.texts, "others": self.others}


class SimilarityAnswer(BaseModel):
    """The cosine of each text with each of the others: a row for each text."""

    model_config = _example(model="minilm", similarities=[[0.71, 0.05]], tokens=18)
    model: str
    similarities: list[list[float]]
    tokens: int


class NextSentenceRequest(AnyRequest):
    """Texts, and for each the text that may follow it."""

    model_config = _example(texts=["The man went to the shop."], followers=["He bought a litre of milk."])
    texts: Texts
    followers: Texts

    @model_validator(mode="after")
    def _fits(self) -> NextSentenceRequest:
        if len(self.texts) != len(self.followers):
            raise ValueError(f"{len(self.texts)} texts and {len(self.followers)} followers; give one for each text")
        return self

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns both lists."""
        return {"texts": self.texts, "followers": self.followers}


class NextSentenceAnswer(BaseModel):
    """The probability of each pair that the second text follows the first."""

    model_config = _example(model="base", probabilities=[0.97], tokens=17)
    model: str
    probabilities: list[float]
    tokens: int


class TokenizeRequest(AnyRequest):
    """Texts to be cut into pieces, without `[CLS]` and `[SEP]`."""

    model_config = _example(texts=["Unbelievable!"])
    texts: Texts

    def texts_by_field(self) -> dict[str, Sequence[str]]:
        """Returns the texts."""
        return {"texts": self.texts}


class Tokenized(BaseModel):
    """The pieces of a text, their ids, and their characters: first, and one past the last."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


class TokenizeAnswer(BaseModel):
    """The pieces of each text."""

    model_config = _example(
        model="base", results=[{"ids": [102, 7], "tokens": ["unbelievable", "!"], "offsets": [[0, 12], [12, 13]]}]
    )
    model: str
    results: list[Tokenized]


class Problem(BaseModel):
    """Why a request was not answered."""

    message: str
    type: str
    param: str | None
    code: str


class ProblemAnswer(BaseModel):
    """What every refused request gets."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "message": "3000 items; at most 2048 are taken",
                        "type": "invalid_request_error",
                        "param": "texts",
                        "code": "too_many_items",
                    }
                }
            ]
        }
    )
    error: Problem
