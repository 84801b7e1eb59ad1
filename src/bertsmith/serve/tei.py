"""Requests in the words of Text Embeddings Inference (TEI): `/embed`, `/predict`, `/rerank`, `/` and fields of `/info`.

A client of TEI works unchanged. A request is TEI's when it holds the field `inputs`; `/rerank` knows TEI's form alone.
Answers are bare lists, and fields that TEI does not know are ignored. Texts are cut to what the model reads, which TEI
calls `auto_truncate`; `"truncate": false` refuses longer ones instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, Field, RootModel

from bertsmith.inference.classify import Regress, TextPipeline
from bertsmith.serve.endpoint import AnyRequest, OrNull, Texts, endpoint, example
from bertsmith.serve.models import ServedModels, pipelines_at
from bertsmith.serve.request import HttpError
from bertsmith.serve.settings import ServeSettings

Truncate = Annotated[
    bool | None, Field(description="False refuses texts that are longer than the model reads, instead of cutting them.")
]
Direction = Annotated[
    Literal["right", "Right"] | None, Field(description="Where a long text is cut; only its end can be.")
]
RawScores = Annotated[bool, OrNull, Field(description="Scores before softmax or sigmoid.")]


class TeiEmbedRequest(AnyRequest):
    """TEI: a text or a list of texts as `inputs`; the answer is a list of vectors."""

    text_fields = ("inputs",)

    model_config = example(extra="ignore", inputs=["The cat sat on the mat."], normalize=True, truncate=True)
    inputs: str | Texts
    normalize: Annotated[bool, OrNull, Field(description="Scale every vector to length 1.")] = True
    truncate: Truncate = None
    truncation_direction: Direction = None
    prompt_name: Annotated[str | None, Field(description="Name of the model's prompt to put before every text.")] = None
    dimensions: Annotated[int | None, Field(ge=1, description="Keep only this many numbers, the first ones.")] = None


class TeiVectors(RootModel[list[list[float]]]):
    """A vector for each text, in their order."""


_OneOrTwo = Annotated[list[str], Field(min_length=1, max_length=2, fail_fast=True)]


class TeiPredictRequest(AnyRequest):
    """TEI: a text, a pair of texts, or a list of such lists, as `inputs`; the answer is a list of labels and scores."""

    text_fields = ("inputs",)

    model_config = example(extra="ignore", inputs=[["A film to remember."]], truncate=True)
    inputs: Annotated[
        str | _OneOrTwo | Annotated[list[_OneOrTwo], Field(min_length=1, fail_fast=True)],
        Field(description="A text; [text] or [text, pair]; or a list of these lists."),
    ]
    truncate: Truncate = None
    truncation_direction: Direction = None
    raw_scores: RawScores = False

    def rows(self) -> list[list[str]]:
        """Returns a text, or a pair, for each prediction."""
        if isinstance(self.inputs, str):
            return [[self.inputs]]
        return [list(self.inputs)] if isinstance(self.inputs[0], str) else [list(row) for row in self.inputs]

    @property
    def is_batch(self) -> bool:
        """Whether several are asked for: a list of lists, also of one."""
        return not isinstance(self.inputs, str) and not isinstance(self.inputs[0], str)


class TeiLabel(BaseModel):
    """A label, and how likely it is; or the number of a regression model."""

    score: float
    label: str


class TeiLabels(RootModel[list[TeiLabel] | list[list[TeiLabel]]]):
    """All labels, the likeliest first; a list of them for each of a batch."""


class TeiRerankRequest(AnyRequest):
    """TEI: a query, and texts to be put in order of relevance to it; the answer is a list, best first."""

    text_fields = ("query", "texts")

    model_config = example(extra="ignore", query="how do cats sleep", texts=["Cats sleep curled up."], raw_scores=False)
    query: str
    texts: Texts
    raw_scores: RawScores = False
    return_text: Annotated[bool, OrNull, Field(description="Give every text back with its score.")] = False
    truncate: Truncate = None
    truncation_direction: Direction = None
    top_n: Annotated[
        int | None,
        Field(ge=1, validation_alias=AliasChoices("top_n", "top_k"), description="Return only this many, the best."),
    ] = None


class TeiRank(BaseModel):
    """The number of a text in the request, and its score."""

    index: int
    score: float
    text: str | None = None


class TeiRanks(RootModel[list[TeiRank]]):
    """The texts, best first."""


@endpoint("/embed", told_by="inputs")
def tei_embed(models: ServedModels, request: TeiEmbedRequest) -> TeiVectors:
    """Turns texts into vectors, in TEI's words."""
    _, pipeline = models.at("/embed", request.model)
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    before = pipeline.prompt_text(request.prompt_name)
    require_short(pipeline, request.truncate, [before + text for text in texts])
    vectors = pipeline(texts, normalize=request.normalize, dims=request.dimensions, prompt=request.prompt_name)
    return TeiVectors(vectors.tolist())


@endpoint("/predict", told_by="inputs")
def tei_predict(models: ServedModels, request: TeiPredictRequest) -> TeiLabels:
    """Predicts classes, labels or a number, in TEI's words."""
    kinds = [kind for kind in pipelines_at("/predict") if kind != "choose"]
    _, _, pipeline = models.pipeline(request.model, kinds)
    rows = request.rows()
    found: dict[int, list[TeiLabel]] = {}
    # 同一批里可以混着单句与句对：各算各的，再按原来的次序排好
    for length in (1, 2):
        places = [place for place, row in enumerate(rows) if len(row) == length]
        if places:
            texts = [rows[place][0] for place in places]
            pairs = [rows[place][1] for place in places] if length == 2 else None
            require_short(pipeline, request.truncate, texts, pairs)
            labels = _labels(pipeline, texts, pairs, raw=request.raw_scores)
            found |= dict(zip(places, labels, strict=True))
    every = [found[place] for place in range(len(rows))]
    return TeiLabels(every if request.is_batch else every[0])


def _labels(
    pipeline: TextPipeline, texts: Sequence[str], pairs: Sequence[str] | None, *, raw: bool
) -> list[list[TeiLabel]]:
    if raw or isinstance(pipeline, Regress):
        scored = pipeline.logits(texts, pairs).tolist()
    else:
        predictions: Any = pipeline(texts, pairs)  # type: ignore[operator]
        scored = [list(one.probabilities.values()) for one in predictions]
    return [
        sorted(
            (TeiLabel(score=score, label=label) for score, label in zip(row, pipeline.labels, strict=True)),
            key=lambda one: -one.score,
        )
        for row in scored
    ]


@endpoint("/rerank")
def rerank(models: ServedModels, request: TeiRerankRequest) -> TeiRanks:
    """Puts texts in order of relevance to a query."""
    _, pipeline = models.at("/rerank", request.model)
    queries = [request.query] * len(request.texts)
    require_short(pipeline, request.truncate, [pipeline.prompt + query for query in queries], request.texts)
    logits = pipeline.logits(queries, request.texts)
    scores = (logits[:, 0] if request.raw_scores else pipeline.told(logits)).tolist()
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
    texts = request.texts if request.return_text else [None] * len(scores)
    return TeiRanks([TeiRank(index=index, score=scores[index], text=texts[index]) for index in order])


class TeiRequest(TeiPredictRequest):
    """TEI's root: `inputs` for what the first model is made for, vectors or predictions."""

    model_config = example(extra="ignore", inputs="The cat sat on the mat.")
    inputs: Annotated[
        str | Texts | Annotated[list[_OneOrTwo], Field(min_length=1, fail_fast=True)],
        Field(description="As in /embed or /predict."),
    ]
    normalize: Annotated[bool, OrNull] = True
    prompt_name: str | None = None
    dimensions: Annotated[int | None, Field(ge=1)] = None


class TeiAnswer(RootModel[list[list[float]] | list[list[TeiLabel]]]):
    """Vectors; or labels and scores, a list of them for each text."""


@endpoint("/")
def tei_root(models: ServedModels, request: TeiRequest) -> TeiAnswer:
    """Does what the first model is made for, as TEI's root: vectors, or predictions."""
    kinds = set(models.named(request.model).pipelines)
    if kinds & set(pipelines_at("/embed")):
        asked = request.model_dump(include=set(TeiEmbedRequest.model_fields))
        return TeiAnswer(tei_embed(models, TeiEmbedRequest.model_validate(asked)).root)
    asked = request.model_dump(include=set(TeiPredictRequest.model_fields))
    labels: Any = tei_predict(models, TeiPredictRequest.model_validate(asked)).root
    # Hub 的客户端总要一层列表，问一句也是
    return TeiAnswer(labels if request.is_batch else [labels])


def require_short(
    pipeline: Any, truncate: bool | None, texts: Sequence[str], pairs: Sequence[str] | None = None
) -> None:
    """Refuses texts that would be cut where `truncate` is False: HttpError 413 says which, and how long it is.

    The texts are as the model reads them, behind their prompts.
    """
    # 只有词的模型读得下任何长度
    if truncate is not False or pipeline.tokenizer is None:
        return
    encoded = pipeline.tokenizer(list(texts), None if pairs is None else list(pairs))["input_ids"]
    for number, ids in enumerate(encoded):
        if len(ids) > pipeline.max_length:
            raise HttpError(
                413,
                "too_many_tokens",
                f"this text has {len(ids)} tokens, and the model reads {pipeline.max_length}; shorten it, or leave"
                ' "truncate": false out',
                where=f"{'inputs' if pairs is None else 'texts'}[{number}]",
            )


def tei_info(models: ServedModels, settings: ServeSettings) -> dict[str, Any]:
    """Returns the fields of TEI's `/info` that are not our own already, about the first model."""
    model = next(iter(models))
    pipeline = next(iter(model.pipelines.values()))
    labels = {str(number): label for number, label in enumerate(pipeline.labels or ())}
    named = {"id2label": labels, "label2id": {label: int(number) for number, label in labels.items()}}
    if isinstance(pipeline, TextPipeline):
        kind: dict[str, Any] = {"classifier": named}
    elif "rank" in model.pipelines:
        kind = {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    else:
        embed = next((model.pipelines[name] for name in pipelines_at("/embed") if name in model.pipelines), None)
        kind = {} if embed is None else {"embedding": {"pooling": embed.pooling}}
    return {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": pipeline.engine.engine.precision,
        "model_type": kind,
        "max_concurrent_requests": settings.queue,
        "max_input_length": pipeline.max_length,
        "max_batch_requests": None,
        "max_client_batch_size": settings.limits.items,
        "auto_truncate": True,
        "tokenization_workers": settings.compute_threads,
    }
