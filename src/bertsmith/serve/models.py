"""The models of a server: which pipelines a folder is good for, loaded, with the batching engine behind them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertsmith.hub import model_folder
from bertsmith.inference.pipeline import Pipeline, pipeline_named
from bertsmith.inference.task_detection import pipelines_of_folder
from bertsmith.model import ModelConfig
from bertsmith.serve.batching import Batcher, BatchingEngine
from bertsmith.serve.http_errors import HttpError
from bertsmith.serve.request_context import CURRENT, RequestContext
from bertsmith.serve.settings import Limits, ServeSettings
from bertsmith.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from bertsmith.retrieval import SearchIndex

_WARM_UP_SECONDS = 120.0


@dataclass(frozen=True)
class ServedModel:
    """A model folder that is being served.

    Attributes:
        name: what requests call it.
        folder: where it lies; never told to clients.
        created: when it was written, in seconds since 1970.
        pipelines: by name.
        tokenizer: of the model.
        config: of the model.
    """

    name: str
    folder: str
    created: int
    pipelines: Mapping[str, Any]
    tokenizer: Tokenizer
    config: ModelConfig

    def has(self, kind: type[Pipeline]) -> bool:
        """Tells whether one of its pipelines is of a kind."""
        return any(isinstance(pipeline, kind) for pipeline in self.pipelines.values())

    def describe(self) -> dict[str, Any]:
        """Returns what `/info` says of it."""
        config = self.config
        pipeline = next(iter(self.pipelines.values()))
        said: dict[str, Any] = {
            "name": self.name,
            "pipelines": list(self.pipelines),
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "vocab_size": self.tokenizer.vocab_size,
            "max_length": pipeline.max_length,
        }
        if pipeline.labels is not None:
            said["labels"] = list(pipeline.labels)
        engine = pipeline.engine.engine
        said["precision"], said["engine"] = engine.precision, engine.kind
        if engine.choice is not None:
            said["precision_choice"] = str(engine.choice)
        said["device"] = str(engine.device)
        return said


class ServedModels:
    """All models of a server, by name; the first answers requests that name none.

    Attributes:
        indexes: those that can be searched, by name.
    """

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = {model.name: model for model in models}
        self.indexes: Mapping[str, SearchIndex] = {}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def pipelines(self) -> set[str]:
        """The names of all pipelines that some model has."""
        return {name for model in self for name in model.pipelines}

    def named(self, name: str | None) -> ServedModel:
        """Returns the model a request asks for.

        Raises:
            HttpError: 404; it names the models there are.
        """
        if name is None:
            return next(iter(self))
        if name not in self._models:
            there = ", ".join(self._models)
            raise HttpError(
                404, "model_not_found", f"no model of that name is served; there are: {there}", where="model"
            )
        return self._models[name]

    def asked(self, name: str | None) -> list[ServedModel]:
        """Returns the model a request names, or all of which one may answer.

        Raises:
            HttpError: 404; it names the models there are.
        """
        return list(self) if name is None else [self.named(name)]

    def pipeline(self, name: str | None, kinds: Sequence[str]) -> tuple[ServedModel, str, Any]:
        """Returns the model a request asks for, and its pipeline for an endpoint.

        Args:
            name: of the model; None takes the first that has such a pipeline, so that a request need not name one
                where only one can be meant.
            kinds: the names of the pipelines that the endpoint can use.

        Returns:
            The model, the name of the pipeline, and the pipeline.

        Raises:
            HttpError: no such model (404), or it has no such pipeline (422).
        """
        for model in self.asked(name):
            for kind in kinds:
                if kind in model.pipelines:
                    return model, kind, model.pipelines[kind]
        able = [model.name for model in self if model.pipelines.keys() & set(kinds)]
        there = f"these can: {', '.join(able)}" if able else "no model of this server can"
        raise HttpError(
            422,
            "wrong_model",
            f"the model is not made for this endpoint ({' or '.join(kinds)}); {there}",
            where="model",
        )


def load_models(settings: ServeSettings, batcher: Batcher) -> ServedModels:
    """Loads all models, and runs each pipeline once, so that the first request is as fast as the second.

    Raises:
        CheckpointError: a folder is damaged, or of no kind that is served.
    """
    loaded = []
    for name, folder in settings.models:
        pipelines = {}
        for kind in pipelines_of_folder(folder):
            pipeline: Any = pipeline_named(kind).load(folder, precision=settings.precision, engine=settings.engine)
            # 队列凑好的一批就是一次前向：不要让引擎按自己的预算再切一遍
            pipeline.engine.batch_tokens = batcher.budget
            # 换上排队的引擎：流水线照常调用，计算却与别的请求合并成一批
            pipeline.engine = BatchingEngine(batcher, pipeline.engine)
            pipelines[kind] = pipeline
        config, tokenizer = ModelConfig.load(folder), load_tokenizer(folder)
        created = int((model_folder(folder) / "config.json").stat().st_mtime)
        model = ServedModel(name, folder, created, pipelines, tokenizer, config)
        warm_up(model)
        loaded.append(model)
    return ServedModels(loaded)


def warm_up(model: ServedModel) -> None:
    """Runs every pipeline of a model on a word or two."""
    context = RequestContext(time.monotonic() + _WARM_UP_SECONDS, Limits())
    CURRENT.set(context)
    context.on_its_way = False
    try:
        for pipeline in model.pipelines.values():
            pipeline(*pipeline.smallest_input())
    finally:
        CURRENT.set(None)
