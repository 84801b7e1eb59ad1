"""What each endpoint does: from a checked request to a typed answer, through the pipeline of the model it names.

These functions run in the request's own thread and may take their time; they raise `RefusalError`, or the errors of
`bertsmith.errors`, and know nothing of HTTP.
"""

from __future__ import annotations

from dataclasses import asdict

from bertsmith.serve import schemas
from bertsmith.serve.http_errors import RefusalError
from bertsmith.serve.models import ServedModels
from bertsmith.serve.request_context import CURRENT

_MOST_PIECES = 50_000
"""Pieces in an answer of `/fill-mask`; each is an object thrice over on its way out."""

_MOST_COSINES = 250_000
"""Numbers in an answer of `/similarity`: about 5 MB of JSON."""


class Endpoints:
    """The endpoints of a server."""

    def __init__(self, models: ServedModels) -> None:
        self.models = models

    def embed(self, asked: schemas.EmbedRequest) -> schemas.EmbedAnswer:
        """Turns texts into vectors."""
        model, _, pipeline = self.models.pipeline(asked.model, ("embed",))
        vectors = pipeline(asked.texts, pooling=asked.pooling, normalize=asked.normalize, dims=asked.dimensions)
        return schemas.EmbedAnswer(model=model.name, vectors=vectors.tolist(), tokens=tokens_read())

    def predict(self, asked: schemas.PredictRequest) -> schemas.PredictAnswer:
        """Predicts with a classifier, a multi-label or regression model, or a multiple-choice model."""
        kinds = ("classify", "multilabel", "regress") if asked.choices is None else ("choose",)
        if asked.choices is None and all("choose" in model.pipelines for model in self.models.asked(asked.model)):
            raise RefusalError(422, "invalid_request", "this model picks among choices; give them", where="choices")
        model, kind, pipeline = self.models.pipeline(asked.model, kinds)
        if kind == "choose":
            found = pipeline(asked.texts, asked.choices)
            rows = [
                schemas.Prediction(choice=choice.index, probabilities=list(choice.probabilities)) for choice in found
            ]
        elif kind == "classify":
            found = pipeline(asked.texts, asked.pairs)
            rows = [schemas.Prediction(label=row.label, probabilities=row.probabilities) for row in found]
        elif kind == "multilabel":
            found = pipeline(asked.texts, asked.pairs)
            rows = [schemas.Prediction(labels=list(row.labels), probabilities=row.probabilities) for row in found]
        else:
            rows = [schemas.Prediction(value=value) for value in pipeline(asked.texts, asked.pairs).tolist()]
        return schemas.PredictAnswer(model=model.name, kind=kind, predictions=rows, tokens=tokens_read())

    def fill_mask(self, asked: schemas.FillMaskRequest) -> schemas.FillMaskAnswer:
        """Fills every `[MASK]` of the texts."""
        model, _, pipeline = self.models.pipeline(asked.model, ("fill-mask",))
        # 几十 KB 的请求就能要出上百万个片段：先数好，太多就不算
        asked_for = sum(text.count(pipeline.tokenizer.special_tokens.mask) for text in asked.texts)
        each = min(asked.top_k, len(asked.candidates or ()) or asked.top_k)
        if asked_for * each > _MOST_PIECES:
            raise RefusalError(
                413,
                "too_many_pieces",
                f"{asked_for} masks with {each} pieces each; at most {_MOST_PIECES} in all",
                where="top_k",
            )
        found = pipeline(asked.texts, top_k=asked.top_k, candidates=asked.candidates)
        masks = [[[schemas.Piece(**asdict(piece)) for piece in mask] for mask in text] for text in found]
        return schemas.FillMaskAnswer(model=model.name, masks=masks, tokens=tokens_read())

    def tag(self, asked: schemas.TagRequest) -> schemas.TagAnswer:
        """Finds entities in texts, or tags their words."""
        model, _, pipeline = self.models.pipeline(asked.model, ("tag", "features"))
        found = [[schemas.Entity(**asdict(entity)) for entity in text] for text in pipeline(asked.texts)]
        return schemas.TagAnswer(model=model.name, entities=found, tokens=tokens_read())

    def answer(self, asked: schemas.AnswerRequest) -> schemas.AnswerAnswer:
        """Answers questions from passages."""
        model, _, pipeline = self.models.pipeline(asked.model, ("answer",))
        answers = []
        for found in pipeline(asked.questions, asked.contexts):
            candidates = [schemas.AnswerCandidate(**asdict(candidate)) for candidate in found.candidates]
            answers.append(
                schemas.Answered(
                    text=found.text,
                    start=found.start,
                    end=found.end,
                    score=found.score,
                    probability=found.probability,
                    no_answer=found.no_answer,
                    candidates=candidates,
                )
            )
        return schemas.AnswerAnswer(model=model.name, answers=answers, tokens=tokens_read())

    def rerank(self, asked: schemas.RerankRequest) -> schemas.RerankAnswer:
        """Puts texts in order of relevance to a query."""
        model, _, pipeline = self.models.pipeline(asked.model, ("rank",))
        found = pipeline(asked.query, asked.texts)[: asked.top_k]
        results = [schemas.Ranked(index=row.index, score=row.score) for row in found]
        return schemas.RerankAnswer(model=model.name, results=results, tokens=tokens_read())

    def similarity(self, asked: schemas.SimilarityRequest) -> schemas.SimilarityAnswer:
        """Compares each text of one list with each of another."""
        model, _, pipeline = self.models.pipeline(asked.model, ("embed",))
        # 答案随两列长度之积增长：十 KB 的请求能要出二十 MB
        if len(asked.texts) * len(asked.others) > _MOST_COSINES:
            raise RefusalError(
                413,
                "too_many_cosines",
                f"{len(asked.texts)} texts with {len(asked.others)} others each; at most {_MOST_COSINES} cosines are"
                " taken; send several requests",
                where="others",
            )
        cosines = pipeline.compare(asked.texts, asked.others)
        return schemas.SimilarityAnswer(model=model.name, similarities=cosines.tolist(), tokens=tokens_read())

    def next_sentence(self, asked: schemas.NextSentenceRequest) -> schemas.NextSentenceAnswer:
        """Tells how likely each second text follows its first one."""
        model, _, pipeline = self.models.pipeline(asked.model, ("next-sentence",))
        found = [float(value) for value in pipeline(asked.texts, asked.followers)]
        return schemas.NextSentenceAnswer(model=model.name, probabilities=found, tokens=tokens_read())

    def tokenize(self, asked: schemas.TokenizeRequest) -> schemas.TokenizeAnswer:
        """Cuts texts into the pieces of a model's vocabulary."""
        model = self.models.named(asked.model)
        ticket = CURRENT.get()
        results = []
        flat = model.tokenizer.align_flat(asked.texts)
        if ticket is not None:
            ticket.count(len(flat.ids))
        for start, end in zip(flat.bounds[:-1].tolist(), flat.bounds[1:].tolist(), strict=True):
            ids = flat.ids[start:end].tolist()
            places = zip(flat.starts[start:end].tolist(), flat.ends[start:end].tolist(), strict=True)
            tokens = [model.tokenizer.vocab[index] for index in ids]
            results.append(schemas.Tokenized(ids=ids, tokens=tokens, offsets=list(places)))
        return schemas.TokenizeAnswer(model=model.name, results=results)


def check_limits(asked: schemas.AnyRequest) -> None:
    """Holds a request against the limits, before anything is computed.

    Raises:
        RefusalError: 413; it says what there is too much of, and where.
    """
    ticket = CURRENT.get()
    assert ticket is not None
    characters = 0
    for field, texts in asked.texts_by_field().items():
        ticket.items += len(texts)
        if ticket.items > ticket.limits.items:
            raise RefusalError(
                413,
                "too_many_items",
                f"{ticket.items} items or more, at most {ticket.limits.items} are taken; send them in several requests",
                where=field,
            )
        for number, text in enumerate(texts):
            characters += len(text)
            if characters > ticket.limits.characters:
                raise RefusalError(
                    413,
                    "too_many_characters",
                    f"with this text the request has {characters} characters or more, at most"
                    f" {ticket.limits.characters} are taken; send fewer or shorter texts",
                    where=f"{field}[{number}]",
                )


def tokens_read() -> int:
    """Returns how many tokens the model has read for the running request."""
    ticket = CURRENT.get()
    return 0 if ticket is None else ticket.tokens
