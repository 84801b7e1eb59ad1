"""The server's own endpoints: what is asked, what is answered, and how a pipeline makes one of the other.

Which pipelines an endpoint uses, the pipelines say (`endpoints` of `bertsmith.inference.pipeline.Pipeline`), so that a
new pipeline is served by naming its endpoint.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from bertsmith.inference.answer import Answered
from bertsmith.inference.classify import Choice, Choose
from bertsmith.inference.embed import Pooling
from bertsmith.inference.fill_mask import Candidate
from bertsmith.inference.pipeline import pipeline_named
from bertsmith.inference.tag import TextEntity
from bertsmith.retrieval.search import Mode
from bertsmith.serve.endpoint import AnyRequest, LimitedRequest, OrNull, Texts, endpoint, example, tokens_read
from bertsmith.serve.models import ServedModels, pipelines_at
from bertsmith.serve.request import CURRENT, HttpError

_MOST_COSINES = 250_000
"""Numbers in an answer: about 5 MB of JSON."""

_MOST_PIECES = 50_000
"""Pieces in an answer; each exists three times on its way out."""

_MOST_PASSAGES = 100


class EmbedRequest(AnyRequest):
    """Texts to be turned into vectors."""

    model_config = example(texts=["The cat sat on the mat.", "A feline rested."])
    texts: Texts
    pooling: Annotated[Pooling | None, Field(description="How token states become one; the model's own if null.")] = (
        None
    )
    normalize: Annotated[bool, OrNull, Field(description="Scale every vector to length 1.")] = True
    prompt: Annotated[
        str | None, Field(description="Name of the model's prompt to put before every text, such as query.")
    ] = None
    dimensions: Annotated[int | None, Field(ge=1, description="Keep only this many numbers, the first ones.")] = None


class EmbedAnswer(BaseModel):
    """A vector for each text, in their order."""

    model_config = example(model="minilm", vectors=[[0.031, -0.027], [0.044, -0.019]], tokens=15)
    model: str
    vectors: list[list[float]]
    tokens: Annotated[int, Field(description="Tokens that the model read.")]


@endpoint("/embed")
def embed(models: ServedModels, request: EmbedRequest) -> EmbedAnswer:
    """Turns texts into vectors."""
    model, pipeline = models.at("/embed", request.model)
    how = {"pooling": request.pooling, "normalize": request.normalize, "dims": request.dimensions}
    vectors = pipeline(request.texts, prompt=request.prompt, **how)
    return EmbedAnswer(model=model.name, vectors=vectors.tolist(), tokens=tokens_read())


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
    model, pipeline = models.at("/similarity", request.model)
    # 答案随两列长度之积增长：十 KB 的请求能要出二十 MB
    if len(request.texts) * len(request.others) > _MOST_COSINES:
        said = (
            f"{len(request.texts)} texts with {len(request.others)} others each; at most {_MOST_COSINES} cosines are"
            " taken; send several requests"
        )
        raise HttpError(413, "too_many_cosines", said, where="others")
    cosines = pipeline.compare(request.texts, request.others)
    return SimilarityAnswer(model=model.name, similarities=cosines.tolist(), tokens=tokens_read())


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
    model, pipeline = models.at("/tag", request.model)
    return TagAnswer(model=model.name, entities=pipeline(request.texts), tokens=tokens_read())


class AnswerRequest(AnyRequest):
    """Questions, and the passage in which each is answered; passages may have any length."""

    text_fields = ("questions", "contexts")
    same_length = ("contexts",)

    model_config = example(questions=["Who lived in London?"], contexts=["Ada Lovelace lived in London."])
    questions: Texts
    contexts: Texts


_ADA = {"text": "Ada Lovelace", "start": 0, "end": 12, "score": 9.1, "probability": 0.97}
_NO_ANSWER = {"no_answer": False, "null_score": 5.6, "null_probability": 0.03}


class AnswerAnswer(BaseModel):
    """An answer to each question."""

    model_config = example(model="reader", answers=[{**_ADA, **_NO_ANSWER, "candidates": [_ADA]}], tokens=16)
    model: str
    answers: list[Answered]
    tokens: int


@endpoint("/answer")
def answer(models: ServedModels, request: AnswerRequest) -> AnswerAnswer:
    """Answers questions from passages."""
    model, pipeline = models.at("/answer", request.model)
    answers = pipeline(request.questions, request.contexts)
    return AnswerAnswer(model=model.name, answers=answers, tokens=tokens_read())


class FillMaskRequest(AnyRequest):
    """Texts with one or more `[MASK]`."""

    text_fields = ("texts", "candidates")

    model_config = example(texts=["The man eats the [MASK]."], top_k=3)
    texts: Texts
    top_k: Annotated[int, OrNull, Field(ge=1, le=1000, description="Pieces for each mask.")] = 5
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
    model, pipeline = models.at("/fill-mask", request.model)
    # 几十 KB 的请求就能要出上百万个片段：先数好，太多就不算
    masks = sum(text.count(pipeline.tokenizer.special_tokens.mask) for text in request.texts)
    each = min(request.top_k, len(request.candidates or ()) or request.top_k)
    if masks * each > _MOST_PIECES:
        said = f"{masks} masks with {each} pieces each; at most {_MOST_PIECES} in all"
        raise HttpError(413, "too_many_pieces", said, where="top_k")
    found = pipeline(request.texts, top_k=request.top_k, candidates=request.candidates)
    return FillMaskAnswer(model=model.name, masks=found, tokens=tokens_read())


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
    model, pipeline = models.at("/next-sentence", request.model)
    found = pipeline(request.texts, request.followers).tolist()
    return NextSentenceAnswer(model=model.name, probabilities=found, tokens=tokens_read())


class SearchRequest(LimitedRequest):
    """A question or words."""

    text_fields = ("query",)

    model_config = example(query="how do I renew a licence?", k=5, where={"file": "guides/*"})
    index: Annotated[
        str | None, Field(description="Which index is searched; the server's first where none is named.")
    ] = None
    query: str
    k: Annotated[int, OrNull, Field(ge=1, le=_MOST_PASSAGES, description="Passages to return.")] = 10
    mode: Annotated[
        Mode, OrNull, Field(description="By vectors, by words, or by both: their scores, or their ranks.")
    ] = "hybrid"
    weight: Annotated[
        float | None,
        Field(ge=0, le=1, description="Of the vectors in a hybrid search; that of the index if null."),
    ] = None
    where: Annotated[
        dict[str, Annotated[str, Field(max_length=256)]] | None,
        Field(max_length=16, description="Field of the front matter, or file: a pattern with * and ?."),
    ] = None
    rerank: Annotated[
        str | None, Field(description="Name of a served model made by `finetune rank` that reads the best once more.")
    ] = None


class FoundPassage(BaseModel):
    """A passage, and where it stands."""

    score: float
    file: str
    line: Annotated[int, Field(description="Of its first character, counted from 1; 0 where the file has no lines.")]
    page: Annotated[int, Field(description="It begins on, counted from 1; 0 where the file has no pages.")]
    start: Annotated[int, Field(description="Its first character in what was read of the file.")]
    end: Annotated[int, Field(description="One past its last.")]
    heading: str
    text: str
    metadata: dict[str, str | tuple[str, ...]]


_LICENCES = {
    "score": 0.031,
    "file": "guides/licences.md",
    "line": 12,
    "page": 0,
    "start": 480,
    "end": 566,
    "heading": "Licences > Renewal",
    "text": "A licence is renewed at the counter or by post.",
    "metadata": {"author": "the office"},
}


class SearchAnswer(BaseModel):
    """Passages, best first."""

    model_config = example(index="notes", hits=[_LICENCES], tokens=9)
    index: str
    hits: list[FoundPassage]
    tokens: int
    note: Annotated[str | None, Field(description="Why there are no hits, where `where` leaves no document.")] = None


@endpoint("/search")
def search(models: ServedModels, request: SearchRequest) -> SearchAnswer:
    """Finds the passages of an index that fit a query best."""
    name, index = models.index(request.index)
    ranker = None if request.rerank is None else models.at("/rerank", request.rerank)[1]
    hits = index.search(
        request.query, k=request.k, mode=request.mode, weight=request.weight, where=request.where, ranker=ranker
    )
    found = [FoundPassage(**{field: value for field, value in asdict(hit).items() if field != "row"}) for hit in hits]
    rows = None if hits else index.rows_where(request.where or {})
    note = "no document is as `where` says" if rows is not None and not len(rows) else None
    return SearchAnswer(index=name, hits=found, tokens=tokens_read(), note=note)


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
    if model.tokenizer is None:
        raise HttpError(422, "wrong_model", "the model holds words alone, and has no vocabulary", where="model")
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
