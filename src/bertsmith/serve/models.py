"""The models of a server, with the batching engine behind them, and the indexes that they search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import CheckpointError
from bertsmith.hub import model_folder
from bertsmith.inference.embed import UNTRAINED, Embed, is_untrained
from bertsmith.inference.linear import WORDS_FILE
from bertsmith.inference.pipeline import Pipeline, all_pipelines, pipeline_named, pipelines_of_folder
from bertsmith.model import ModelConfig
from bertsmith.retrieval.search import SearchIndex
from bertsmith.retrieval.stored import fingerprint_of, read_claim
from bertsmith.serve.batching import Batcher, BatchingEngine
from bertsmith.serve.request import HttpError, as_request
from bertsmith.serve.settings import Limits, ServeSettings
from bertsmith.tokenizer import Tokenizer, load_tokenizer

_WARM_UP_SECONDS = 120.0


@dataclass(frozen=True)
class ServedModel:
    """A model folder that is being served; `folder`, where it lies, is never told to clients.

    `created` is in seconds since 1970; `tokenizer` and `config` are None where it holds words alone, as `bertsmith
    solve` may leave it.
    """

    name: str
    folder: str
    created: int
    pipelines: Mapping[str, Any]
    tokenizer: Tokenizer | None
    config: ModelConfig | None

    def has(self, kind: type[Pipeline]) -> bool:
        """Tells whether one of its pipelines is of a kind."""
        return any(isinstance(pipeline, kind) for pipeline in self.pipelines.values())

    def describe(self) -> dict[str, Any]:
        """Returns what `/info` says of it."""
        pipeline = next(iter(self.pipelines.values()))
        engine = pipeline.engine.engine
        said: dict[str, Any] = {"name": self.name, "pipelines": list(self.pipelines)}
        if self.config is not None and self.tokenizer is not None:
            said |= {
                "layers": self.config.num_hidden_layers,
                "hidden_size": self.config.hidden_size,
                "vocab_size": self.tokenizer.vocab_size,
                "max_length": pipeline.max_length,
            }
        if pipeline.labels is not None:
            said["labels"] = list(pipeline.labels)
        if self.has(Embed) and is_untrained(model_folder(self.folder)):
            said["note"] = UNTRAINED
        said |= {"precision": engine.precision, "engine": engine.kind, "engine_long": engine.long_kind}
        if engine.choice is not None:
            said["precision_choice"] = str(engine.choice)
        return said | {"device": str(engine.device)}


class ServedModels:
    """All models of a server, by name; the first answers requests that name none."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models = {model.name: model for model in models}
        self.indexes: dict[str, SearchIndex] = {}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    @property
    def pipelines(self) -> set[str]:
        """The names of all pipelines that some model has."""
        return {name for model in self for name in model.pipelines}

    def named(self, name: str | None) -> ServedModel:
        """Returns the model a request asks for; else HttpError 404, which names the models there are."""
        if name is None:
            return next(iter(self))
        if name not in self._models:
            said = f"no model of that name is served; there are: {', '.join(self._models)}"
            raise HttpError(404, "model_not_found", said, where="model")
        return self._models[name]

    def asked(self, name: str | None) -> list[ServedModel]:
        """Returns the model a request names, or all of which one may answer."""
        return list(self) if name is None else [self.named(name)]

    def at(self, path: str, name: str | None) -> tuple[ServedModel, Any]:
        """Returns the model a request at a path asks for, and its pipeline, see `pipeline`."""
        model, _, pipeline = self.pipeline(name, pipelines_at(path))
        return model, pipeline

    def pipeline(self, name: str | None, kinds: Sequence[str]) -> tuple[ServedModel, str, Any]:
        """Returns the model a request asks for, and the name and pipeline of the first of `kinds` that it has.

        Without a name it is the first that has one: a request need not name a model where only one can be meant.

        Raises HttpError where there is no such model (404), or it has no such pipeline (422).
        """
        for model in self.asked(name):
            for kind in kinds:
                if kind in model.pipelines:
                    return model, kind, model.pipelines[kind]
        able = [model.name for model in self if model.pipelines.keys() & set(kinds)]
        there = f"these can: {', '.join(able)}" if able else "no model of this server can"
        said = f"the model is not made for this endpoint ({' or '.join(kinds)}); {there}"
        raise HttpError(422, "wrong_model", said, where="model")

    def index(self, name: str | None) -> tuple[str, SearchIndex]:
        """Returns the name and the index that a request asks for, the first where it names none.

        Raises HttpError where there is none at all (422), or none of that name (404).
        """
        if not self.indexes:
            raise HttpError(422, "no_index", "this server searches nothing; start it with --index")
        name = next(iter(self.indexes)) if name is None else name
        if name not in self.indexes:
            said = f"no index of that name is served; there are: {', '.join(self.indexes)}"
            raise HttpError(404, "index_not_found", said, where="index")
        # 索引更新之后，下一个问题就用新的
        self.indexes[name] = self.indexes[name].newest()
        return name, self.indexes[name]


def pipelines_at(path: str) -> tuple[str, ...]:
    """Returns the names of the pipelines that answer at a path."""
    return tuple(name for name, pipeline in all_pipelines().items() if path in pipeline.endpoints)


def load_models(settings: ServeSettings, batcher: Batcher) -> ServedModels:
    """Loads all models, and runs each pipeline once, so that the first request is as fast as the second."""
    loaded = []
    for name, folder in settings.models:
        pipelines = {}
        for kind in pipelines_of_folder(folder):
            # 图的各批轮流用全部核心：请求与答复也要占核心，几批并排反而慢
            how = {"precision": settings.precision, "engine": settings.engine, "at_once": 1}
            pipeline: Any = pipeline_named(kind).load(folder, **how)
            # 队列凑好的一批就是一次前向：不要让引擎按自己的预算再切一遍
            pipeline.engine.batch_tokens = batcher.budget
            # 换上排队的引擎：流水线照常调用，计算却与别的请求合并成一批
            pipeline.engine = BatchingEngine(batcher, pipeline.engine)
            pipelines[kind] = pipeline
        local, has_encoder = model_folder(folder), all(one.tokenizer is not None for one in pipelines.values())
        created = int((local / ("config.json" if has_encoder else WORDS_FILE)).stat().st_mtime)
        encoder = (load_tokenizer(folder), ModelConfig.load(folder)) if has_encoder else (None, None)
        loaded.append(ServedModel(name, folder, created, pipelines, *encoder))
        with as_request(_WARM_UP_SECONDS, Limits()):
            for pipeline in pipelines.values():
                pipeline(*pipeline.smallest_input())
    return ServedModels(loaded)


def load_indexes(given: Iterable[tuple[str, str]], models: ServedModels) -> dict[str, SearchIndex]:
    """Opens indexes; queries become vectors by the served model that made the index, together with other requests."""
    able = {fingerprint_of(model.folder): model.pipelines["embed"] for model in models if "embed" in model.pipelines}
    found = {}
    for name, folder in given:
        claim = read_claim(Path(folder))
        # 换一个模型，查询与段落的向量就不在同一个空间里：指纹必须相同
        embed = able.get(claim.fingerprint)
        if embed is None:
            raise CheckpointError(
                f"{folder}: no served model made this index; add --model {claim.model}, or where it lies now"
            )
        found[name] = SearchIndex(folder, embed=embed)
    return found


def describe_index(name: str, index: SearchIndex) -> dict[str, Any]:
    """Returns what `/info` says of an index."""
    current, model = index.stored.current, Path(index.stored.claim.model).name
    return {"name": name, "documents": len(current.documents), "passages": current.passages, "model": model}
