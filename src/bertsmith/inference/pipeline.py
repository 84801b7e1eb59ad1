"""The base of all pipelines, and their registry.

A pipeline is the few lines between the tokenizer and the engine: how inputs become sequences, and how what the model
computes becomes a result. Everything else is here, once: loading a folder with the settings of its `task.json`,
checking that tokenizer and model fit, and being found by name. A subclass declares what it is:

    class Classify(TextPipeline, name="classify"):
        architectures = (ModelForSequenceClassification,)

A pipeline is known as soon as its module is imported. Those of this package are imported when one is asked for by its
name; one from elsewhere is found by its name when its package names the module as an entry point of the group
`bertsmith.pipelines`.
"""

from __future__ import annotations

from importlib import import_module, metadata
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from bertsmith.errors import ConfigError
from bertsmith.inference.checks import require_fit, require_pairs
from bertsmith.inference.engine import DEFAULT, Engine, EngineKind, InferenceConfig, SequenceRunner
from bertsmith.inference.precision import Precision
from bertsmith.inference.task_file import TaskFile, read_settings
from bertsmith.model import ModelConfig, PretrainedModel, architectures_by_name
from bertsmith.options import named
from bertsmith.tokenizer import Tokenizer, load_tokenizer

PipelineT = TypeVar("PipelineT", bound="Pipeline")
Device = torch.device | str | None

_REGISTRY: dict[str, type[Pipeline]] = {}


class Pipeline:
    """A model with its tokenizer, ready for one use.

    Class attributes, the declaration of a pipeline:
        name: the word for `load_pipeline`, in `task.json` and in a server's `/info`.
        architectures: the models it reads; the first is loaded, and takes its part of a folder that holds more heads.
        needs_fine_tuning: whether its model has learned from labels; False for what pre-training alone makes.
        settings: what `task.json` tells it; the fields besides those of `TaskFile` are arguments of the class.
        two_texts: what it reads together, in the plural (`next sentences`), where it always reads two texts.
        endpoints: paths of the server that answer with it.
        is_causal: whether its model reads from left to right (True) or both ways (False); None for either.

    Attributes:
        config: of the model.
        tokenizer: of the model.
        max_length: most ids in a sequence.
        engine: what runs the model; may be replaced.
        labels: the names of the model's outputs, in their order; None where they have none.
    """

    name: ClassVar[str] = ""
    architectures: ClassVar[tuple[type[PretrainedModel], ...]] = ()
    needs_fine_tuning: ClassVar[bool] = True
    settings: ClassVar[type[TaskFile]] = TaskFile
    two_texts: ClassVar[str] = ""
    endpoints: ClassVar[tuple[str, ...]] = ()
    is_causal: ClassVar[bool | None] = None

    labels: list[str] | None = None

    def __init_subclass__(cls, *, name: str = "", **more: Any) -> None:
        """Registers a subclass under its name; one without a name is a base of others.

        Raises:
            ConfigError: another pipeline has that name.
        """
        super().__init_subclass__(**more)
        cls.name = name
        known = _REGISTRY.setdefault(name, cls) if name else cls
        # 同一个文件被重新导入时会再登记一次：那不是重名
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ConfigError(f"pipeline {name!r} of {cls.__module__}: {known.__module__} has one of that name")

    def __init__(self, model: PretrainedModel, tokenizer: Tokenizer, inference: InferenceConfig = DEFAULT):
        """Prepares a model.

        Args:
            model: one of `architectures`.
            tokenizer: of the model.
            inference: where and how it computes, and how long a sequence may be.

        Raises:
            CheckpointError: tokenizer and model do not belong together.
            ConfigError: the model cannot do this, or the precision is not available on this device.
        """
        require_fit(tokenizer, model.config)
        if self.is_causal not in (None, model.config.is_decoder):
            reads = "from left to right" if model.config.is_decoder else "both ways"
            other = "generate" if model.config.is_decoder else "fill-mask"
            raise ConfigError(f"the model reads {reads}, which is not for {self.name}; use {other}")
        if self.two_texts:
            require_pairs(model.config, self.two_texts)
        self.config = model.config
        self.tokenizer = tokenizer
        self.max_length = inference.length_for(model.config)
        self.engine: SequenceRunner = Engine(model, inference)

    @classmethod
    def load(
        cls: type[PipelineT],
        folder: str | Path,
        *,
        precision: Precision | None = None,
        device: Device = None,
        batch_tokens: int = 0,
        engine: EngineKind = "torch",
    ) -> PipelineT:
        """Loads a model folder: what `bertsmith finetune` has written, or another of the same architecture.

        Args:
            folder: a model folder with its tokenizer.
            precision: as in `InferenceConfig`.
            device: as in `InferenceConfig`.
            batch_tokens: as in `InferenceConfig`.
            engine: as in `InferenceConfig`.

        Raises:
            CheckpointError: the folder holds no such model, or its `task.json` is damaged or of another task.
            ConfigError: the model is for another pipeline, or the precision is not available on this device.
        """
        told = cls.settings_in(folder)
        model, tokenizer = cls.model_in(folder), load_tokenizer(folder)
        return cls.over(
            model, tokenizer, told, precision=precision, device=device, batch_tokens=batch_tokens, engine=engine
        )

    @classmethod
    def over(
        cls: type[PipelineT],
        model: PretrainedModel,
        tokenizer: Tokenizer,
        told: TaskFile,
        *,
        precision: Precision | None = None,
        device: Device = None,
        batch_tokens: int = 0,
        engine: EngineKind = "torch",
    ) -> PipelineT:
        """Puts the pipeline over a model in memory, with the settings that a folder has; see `load`.

        Args:
            model: one of `architectures`.
            tokenizer: of the model.
            told: from `settings_in`.
            precision: as in `InferenceConfig`.
            device: as in `InferenceConfig`.
            batch_tokens: as in `InferenceConfig`.
            engine: as in `InferenceConfig`.
        """
        # 与训练时一样长：切分的位置不同，预测就会与评估时报告的不一致
        inference = InferenceConfig(device, precision, told.max_length, batch_tokens, engine)
        return cls(model, tokenizer, inference, **told.arguments())

    @classmethod
    def settings_in(cls, folder: str | Path) -> TaskFile:
        """Returns what a folder tells the pipeline; the defaults where it tells nothing.

        Raises:
            CheckpointError: `task.json` is damaged, or of a task that says something else.
        """
        return read_settings(folder, cls.settings, cls.name)

    @classmethod
    def model_in(cls, folder: str | Path) -> Any:
        """Loads the model; heads that the pipeline does not read are left out."""
        return cls.architectures[0].from_pretrained(folder)

    @classmethod
    def is_for(cls, architecture: str, config: ModelConfig) -> bool:
        """Tells whether a folder without `task.json` is good for this pipeline.

        Args:
            architecture: what its `config.json` names, such as `ModelForMaskedLM`.
            config: of its model.
        """
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
    """Returns every pipeline that is known so far, by name."""
    _import_own()
    return dict(_REGISTRY)


def _import_own() -> None:
    """Imports the pipelines of this package, which registers them."""
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.stem != "__init__":
            import_module(f"bertsmith.inference.{file.stem}")


def pipeline_named(name: str) -> type[Pipeline]:
    """Returns a pipeline.

    Raises:
        ConfigError: none has that name.
    """
    if name not in _REGISTRY:
        _import_own()
    if name not in _REGISTRY:
        for entry in metadata.entry_points(group="bertsmith.pipelines"):
            entry.load()
    return named(name, _REGISTRY, "pipeline")
