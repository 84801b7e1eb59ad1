"""The base of all pipelines, what they check before they compute, and how one is found for a folder.

A pipeline says how inputs become sequences, and how what the model computes becomes a result. Everything else is here,
once. A subclass declares what it is:

    class Classify(TextPipeline, name="classify"):
        architectures = (ModelForSequenceClassification,)

A pipeline is known as soon as its module is imported; one from elsewhere is found by its name when its package names
the module as an entry point of the group `bertsmith.pipelines`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch

from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference.engine import DEFAULT, PART, Engine, InferenceConfig, SequenceRunner
from bertsmith.inference.task_file import TaskFile, read_settings, read_task_file, stated_length
from bertsmith.model import ModelConfig, PretrainedModel, architectures_by_name
from bertsmith.model.folder import read_architecture
from bertsmith.settings import installed, named
from bertsmith.tokenizer import Tokenizer, load_tokenizer

PipelineT = TypeVar("PipelineT", bound="Pipeline")
CallT = TypeVar("CallT", bound=Callable[..., Any])
Device = torch.device | str | None

_HOMES = {
    "answer": "answer",
    **dict.fromkeys(("choose", "classify", "multilabel", "regress"), "classify"),
    "embed": "embed",
    **dict.fromkeys(("tag", "features"), "tag"),
    **dict.fromkeys(("fill-mask", "generate"), "fill_mask"),
    **dict.fromkeys(("next-sentence", "rank"), "classify"),
}
"""The pipelines of this package, and the files that they are in."""
_REGISTRY: dict[str, type[Pipeline]] = {}


def one_or_many(call: CallT) -> CallT:
    """Lets a pipeline that maps a list of texts to results in their order be called with one text for one result.

    What goes with the texts (second texts, passages, choices) is then given for the one. The types are those of lists.
    """
    signature = inspect.signature(call)
    kinds = {name: each.kind for name, each in signature.parameters.items()}
    aligned = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD][1:]

    @functools.wraps(call)
    def either(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        given = bound.arguments
        if not isinstance(given[aligned[0]], str):
            return call(*args, **options)
        given.update({name: [given[name]] for name in aligned if given.get(name) is not None})
        return call(*bound.args, **bound.kwargs)[0]

    return cast(CallT, either)


class Pipeline:
    """A model with its tokenizer, ready for one use.

    Class attributes, the declaration of a pipeline:
        name: the word for `load_pipeline`, in `task.json` and in a server's `/info`.
        architectures: the models it reads; the first is loaded, and takes its part of a folder that holds more heads.
        needs_fine_tuning: whether its model has learned from labels; False for what pre-training alone makes.
        settings: what `task.json` tells it; the fields besides those of `TaskFile` are arguments and attributes of it.
        has_parts: whether its folders may hold words beside an encoder, see `bertsmith solve`.
        two_texts: what it reads together, in the plural (`next sentences`), where it always reads two texts.
        endpoints: paths of the server that answer with it.
        is_causal: whether its model reads from left to right (True) or both ways (False); None for either.

    The `engine` that runs the model may be replaced; `labels` name the model's outputs in order, or are None.
    """

    name: ClassVar[str] = ""
    architectures: ClassVar[tuple[type[PretrainedModel], ...]] = ()
    needs_fine_tuning: ClassVar[bool] = True
    settings: ClassVar[type[TaskFile]] = TaskFile
    has_parts: ClassVar[bool] = False
    two_texts: ClassVar[str] = ""
    endpoints: ClassVar[tuple[str, ...]] = ()
    is_causal: ClassVar[bool | None] = None

    labels: list[str] | None = None

    def __init_subclass__(cls, *, name: str = "", **more: Any) -> None:
        """Registers a subclass under its name; one without a name is a base of others."""
        super().__init_subclass__(**more)
        cls.name = name
        known = _REGISTRY.setdefault(name, cls) if name else cls
        # 同一个文件被重新导入时会再登记一次：那不是重名
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(f"pipeline {name!r} of {cls.__module__}: {known.__module__} has one of that name")

    def __init__(
        self, model: PretrainedModel, tokenizer: Tokenizer, inference: InferenceConfig = DEFAULT, **settings: Any
    ) -> None:
        """Makes a model ready; `settings` are those that the class attribute of that name declares."""
        self._settle(settings)
        self.require_model(model.config)
        require_fit(tokenizer, model.config)
        self.config = model.config
        self.tokenizer = tokenizer
        self.max_length = inference.length_for(model.config)
        self.engine: SequenceRunner = Engine(model, inference)

    @classmethod
    def require_model(cls, config: ModelConfig) -> None:
        """Makes sure that a model can do what the pipeline asks of it; ConfigError or CheckpointError where not."""
        if cls.is_causal not in (None, config.is_decoder):
            reads = "from left to right" if config.is_decoder else "both ways"
            other = "generate" if config.is_decoder else "fill-mask"
            raise ConfigError(f"the model reads {reads}, which is not for {cls.name}; use {other}")
        if cls.two_texts:
            require_pairs(config, cls.two_texts)

    def _settle(self, settings: dict[str, Any]) -> None:
        kind: Any = self.settings
        # 任务与长度不是流水线的参数：占住前两个位置，误写成参数就会报错
        vars(self).update(kind("", 0, **settings).arguments())

    @classmethod
    def load(cls: type[PipelineT], folder: str | Path, **how: Any) -> PipelineT:
        """Loads a model folder, fine-tuned or another of the same architecture.

        Takes `precision`, `device`, `batch_tokens` and `engine`, as `InferenceConfig` does.

        Raises:
            CheckpointError: the folder holds no such model, or its `task.json` is damaged or of another task.
            ConfigError: the model is for another pipeline, or the precision is not available on this device.
        """
        told = cls.settings_in(folder)
        return cls.over(cls.model_in(folder), load_tokenizer(folder), told, **how)

    @classmethod
    def over(
        cls: type[PipelineT], model: PretrainedModel, tokenizer: Tokenizer, told: TaskFile, **how: Any
    ) -> PipelineT:
        """Puts the pipeline over a model in memory, with the settings that a folder has: `told`, from `settings_in`."""
        # 与训练时一样长：切分的位置不同，预测就会与评估时报告的不一致
        return cls(model, tokenizer, InferenceConfig(max_length=told.max_length, **how), **told.arguments())

    @classmethod
    def settings_in(cls, folder: str | Path) -> TaskFile:
        """Returns what a folder tells the pipeline; the defaults where it tells nothing."""
        told = read_settings(folder, cls.settings, cls.name)
        # 别人的文件夹没有 task.json：照它的分词器说的长度读，与原来的工具一致
        return told if told.task else replace(told, max_length=stated_length(folder))

    @classmethod
    def model_in(cls, folder: str | Path) -> Any:
        """Loads the model; heads that the pipeline does not read are left out."""
        try:
            return cls.architectures[0].from_pretrained(folder)
        except CheckpointError as error:
            learned = read_task_file(folder).get("task", cls.name)
            if learned == cls.name:
                raise
            raise CheckpointError(
                f"{folder}: was fine-tuned for {learned}, and has no head for {cls.name}; name the model it came from"
            ) from error

    @classmethod
    def is_for(cls, architecture: str, config: ModelConfig) -> bool:
        """Tells whether a folder without `task.json` is good for this pipeline."""
        found = architectures_by_name().get(architecture)
        reads = cls.is_causal in (None, config.is_decoder)
        return reads and found is not None and issubclass(found, cls.architectures)

    def smallest_input(self) -> tuple[Any, ...]:
        """Returns arguments for one short call, with which a server warms up."""
        return (["a"], ["a"]) if self.two_texts else (["a"],)


def label_names(config: ModelConfig) -> list[str]:
    """Returns the names of a model's outputs, in their order."""
    return [config.id2label[index] for index in range(len(config.id2label))]


def all_pipelines() -> dict[str, type[Pipeline]]:
    """Returns every pipeline that is known so far, by name; those of this package first."""
    for home in set(_HOMES.values()):
        import_module(f"bertsmith.inference.{home}")
    return {name: _REGISTRY[name] for name in [*_HOMES, *_REGISTRY]}


def pipeline_named(name: str) -> type[Pipeline]:
    """Returns a pipeline."""
    known = _REGISTRY if name in _REGISTRY else all_pipelines()
    if name not in known:
        installed("bertsmith.pipelines")
        known = all_pipelines()
    return named(name, known, "pipeline")


def pipelines_of_folder(folder: str | Path) -> tuple[str, ...]:
    """Returns the names of the pipelines that a folder is good for; a fine-tuned one only for what it learned."""
    task = read_task_file(folder).get("task")
    if task is not None:
        return (str(task),)
    # 没有 config.json 的不是模型文件夹：先说这个，而不是列出所有架构
    config = ModelConfig.load(folder)
    architecture, pipelines = read_architecture(folder), all_pipelines()
    read = tuple(model for pipeline in pipelines.values() for model in pipeline.architectures)
    known = [name for name, model in architectures_by_name().items() if issubclass(model, read)]
    if architecture not in known:
        found = f"holds a {architecture}, which no pipeline reads"
        holds = found if architecture else "config.json names no architecture"
        raise CheckpointError(f"{folder}: {holds}; it must be one of {', '.join(known)}")
    return tuple(name for name, pipeline in pipelines.items() if pipeline.is_for(architecture, config))


def task_of_folder(folder: str | Path) -> str:
    """Returns the name of the one pipeline that a fine-tuned folder is for."""
    name = pipelines_of_folder(folder)[0]
    known = all_pipelines().get(name)
    if known is not None and not known.needs_fine_tuning and not read_task_file(folder):
        raise CheckpointError(
            f"{folder}: holds a {read_architecture(folder)}, which predicts nothing here; fine-tune it first"
        )
    return name


def require_fit(tokenizer: Tokenizer, config: ModelConfig, folder: str | Path = "model folder") -> None:
    """Makes sure that a model knows every id a tokenizer can make."""
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} pieces, the model knows {config.vocab_size}; "
            "they do not belong together"
        )


def require_pairs(config: ModelConfig, readers: str) -> None:
    """Makes sure that a model can tell the two texts of a sequence apart; `readers` take them: `next sentences`."""
    if not config.reads_pairs:
        raise ConfigError(f"the model knows a single segment; {readers} take two")


def require_list(texts: Sequence[str], pairs: Sequence[str] | None = None) -> None:
    """Makes sure that texts are a list of strings, and second texts as many."""
    if isinstance(texts, str) or isinstance(pairs, str):
        raise InputError("give a list of texts, not a single string: [text]")
    if pairs is not None and len(pairs) != len(texts):
        raise InputError(f"{len(texts)} texts and {len(pairs)} second texts; give one for each")
    # 表格里的空格子常是 None 或 NaN：说出是第几个，而不是在分词器深处出错
    for given in (texts, () if pairs is None else pairs):
        for number, text in enumerate(given):
            if not isinstance(text, str):
                raise InputError(f"text {number} of {len(given)} is {text!r}, not a string; an empty one is ''")


def parts(count: int) -> list[slice]:
    """Cuts a long list into `PART` inputs at a time, so that memory does not grow with it."""
    return [slice(start, start + PART) for start in range(0, count, PART)]
