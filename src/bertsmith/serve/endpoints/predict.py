"""`/predict`: classes, labels, numbers and choices, by any fine-tuned model whose input is texts or pairs of texts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from bertsmith.inference.choose import Choice, Choose
from bertsmith.inference.pipeline import pipeline_named
from bertsmith.serve.endpoint import AnyRequest, Texts, endpoint, example, pipelines_at, tokens_read
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.models import ServedModels


class PredictRequest(AnyRequest):
    """Texts, or pairs of texts, or contexts with choices, for a fine-tuned model."""

    text_fields = ("texts", "pairs", "choices")
    same_length = ("pairs", "choices")

    model_config = example(texts=["A film to remember."])
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
    def _check_kind(self) -> PredictRequest:
        # 两样都给时不知道要哪一种：宁可拒绝，也不悄悄丢掉一样
        if self.pairs is not None and self.choices is not None:
            raise ValueError("pairs are for pairs of texts, choices for multiple choice; give one of them")
        return self


class Prediction(BaseModel):
    """What a model says of one text; which fields are there depends on its kind."""

    model_config = example(label="positive", probabilities={"negative": 0.02, "positive": 0.98})
    label: Annotated[str | None, Field(description="Classifier: the likeliest class.")] = None
    labels: Annotated[tuple[str, ...] | None, Field(description="Multi-label: all labels above the threshold.")] = None
    value: Annotated[float | None, Field(description="Regression: the number.")] = None
    choice: Annotated[int | None, Field(description="Multiple choice: the number of the likeliest, from 0.")] = None
    probabilities: Annotated[
        dict[str, float] | tuple[float, ...] | None, Field(description="Of every class or label, or of every choice.")
    ] = None

    @classmethod
    def of(cls, found: Any) -> Prediction:
        """Returns the answer for what a pipeline gives for one text: a number, a choice, a class or labels."""
        if isinstance(found, float):
            return cls(value=found)
        if isinstance(found, Choice):
            return cls(choice=found.index, probabilities=found.probabilities)
        return cls(**vars(found))


class PredictAnswer(BaseModel):
    """A prediction for each text, in their order."""

    model_config = example(
        model="reviews",
        kind="classify",
        predictions=[{"label": "positive", "probabilities": {"negative": 0.02, "positive": 0.98}}],
        tokens=8,
    )
    model: str
    kind: Annotated[str, Field(description="classify, multilabel, regress, choose.")]
    predictions: list[Prediction]
    tokens: int


@endpoint("/predict")
def predict(models: ServedModels, request: PredictRequest) -> PredictAnswer:
    """Predicts with a classifier, a multi-label or regression model, or a multiple-choice model."""
    chooses = request.choices is not None
    if not chooses and all(model.has(Choose) for model in models.asked(request.model)):
        raise HttpError(422, "invalid_request", "this model picks among choices; give them", where="choices")
    kinds = [kind for kind in pipelines_at("/predict") if issubclass(pipeline_named(kind), Choose) == chooses]
    model, kind, pipeline = models.pipeline(request.model, kinds)
    found = pipeline(request.texts, request.choices if chooses else request.pairs)
    # 回归给出数组：变成 Python 的浮点数再逐个作答
    rows = found if isinstance(found, list) else found.tolist()
    predictions = [Prediction.of(row) for row in rows]
    return PredictAnswer(model=model.name, kind=kind, predictions=predictions, tokens=tokens_read())
