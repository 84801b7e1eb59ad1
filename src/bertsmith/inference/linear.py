"""A linear model alone or beside an encoder: its file, and the pipelines whose folders may hold one.

`words.safetensors` holds the features that training saw, as hashes, with their weights. Beside an encoder the outputs
of both (log odds or numbers) are multiplied, each by what dev asked for, and added up; either can be asked for alone.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.files import atomic_path
from bertsmith.hub import model_folder
from bertsmith.inference.engine import DEFAULT, InferenceConfig
from bertsmith.inference.pipeline import Pipeline, label_names
from bertsmith.inference.task_file import read_task_file
from bertsmith.model.folder import sort_notes
from bertsmith.tokenizer import Tokenizer

WORDS_FILE = "words.safetensors"
FORMAT = "1"

Part = Literal["words", "encoder"]
"""A part of a folder that `bertsmith solve` made."""
Mix = tuple[float, float, float]
LinearT = TypeVar("LinearT", bound="LinearModel")
LinearPipelineT = TypeVar("LinearPipelineT", bound="LinearPipeline")


class LinearModel:
    """A linear model over hashed features; each kind is a frozen dataclass.

    Attributes:
        features: [F] int32, the numbers of the features that it knows, rising.
        weights: [F, C] float32; `bias` is [C] float32.
        states: a layer that gives the outputs of an encoder without a head; `Words` alone may hold one.
        mix: by what the encoder's outputs and these are multiplied, and what is added; without an encoder 0, 1, 0.
    """

    most: ClassVar[int]
    """All numbers of features are below."""
    may_be_odds: ClassVar[bool] = False
    """Whether one column of weights may stand for two classes, as their log odds."""

    labels: tuple[str, ...]
    features: NDArray[np.int32]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    mix: Mix
    states: Any = None

    @property
    @abstractmethod
    def pipeline(self) -> str:
        """The name of the pipeline that it is for."""

    @abstractmethod
    def logits(self, *inputs: Any) -> Tensor:
        """Returns [R, K] float32, as an encoder's head gives them."""

    def beside(self: LinearT, _other: LinearT | None) -> LinearT:
        """Returns the same with what another model of the folder holds for the encoder; here nothing."""
        return self

    def mixed(self: LinearT, mix: Mix) -> LinearT:
        """Returns the same with another `mix`."""
        mixed: Any = replace(cast("Any", self), mix=mix)
        return cast("LinearT", mixed)

    @cached_property
    def places(self) -> NDArray[np.int32]:
        """[most + 1], where each feature is among those that it knows; -1 for the others, and at the end."""
        places = np.full(self.most + 1, -1, dtype=np.int32)
        places[self.features] = np.arange(len(self.features), dtype=np.int32)
        return places

    def save(self, folder: Path) -> None:
        """Writes `words.safetensors` into a folder."""
        values = {each.name: getattr(self, each.name) for each in fields(cast("Any", self))}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        # 没有的那一层不写进文件
        told = {name: value for name, value in values.items() if name not in arrays and value not in (None, "")}
        with atomic_path(folder / WORDS_FILE) as temporary:
            save_file(arrays, temporary, metadata={"format": FORMAT, "words": json.dumps(told)})
            sort_notes(temporary)

    @classmethod
    def of(cls: type[LinearT], told: Mapping[str, Any], arrays: dict[str, Any]) -> LinearT:
        """Puts together what a file holds; ValueError, KeyError or TypeError where it does not fit."""
        ours, theirs, offset = map(float, told["mix"])
        said: dict[str, Any] = {name: str(told[name]) for name in ("problem", "pooling") if name in told}
        # 答案的四项输出是固定的，文件里没有标签
        if "labels" in told:
            said["labels"] = tuple(told["labels"])
        found = cast("Any", cls)(**arrays, **said, mix=(ours, theirs, offset))
        size, count, layer = len(found.features), len(found.bias), len(arrays.get("states_bias", ()))
        fits: dict[str, tuple[int, ...]] = {
            "features": (size,),
            "rarity": (size,),
            "weights": (size, count),
            "bias": (count,),
            "transitions": (count, count),
            "states": (len(arrays.get("states", ())), layer),
            "states_bias": (layer,),
        }
        is_whole = len({"states", "states_bias", "pooling"} & {*arrays, *said}) in (0, 3)
        as_many = count == len(found.labels) or (cls.may_be_odds and count == 1)
        if not (is_whole and as_many) or any(array.shape != fits[name] for name, array in arrays.items()):
            raise ValueError("its shapes do not fit together")
        return cast("LinearT", found)


def read_words(folder: str | Path, kind: type[LinearT]) -> LinearT | None:
    """Returns the linear model of a folder; None where there is none.

    Raises CheckpointError where the file is damaged, or holds one of another kind.
    """
    path = model_folder(folder) / WORDS_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            told = file.metadata()
            if told["format"] != FORMAT:
                raise ValueError(f"of format {told['format']}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        found = kind.of(json.loads(told["words"]), arrays)
        if len(found.features) and not 0 <= found.features.min() <= found.features.max() < kind.most:
            raise ValueError("a feature is out of range")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); copy the folder again, or run solve again") from None
    return found


@dataclass
class LinearEngine:
    """Stands where a pipeline of words alone has no engine: what a server says of it."""

    batch_tokens: int = 0
    precision: str = "float32"
    kind: str = "words"
    long_kind: str = "words"
    choice: None = None
    device: str = "cpu"
    shares_cores: bool = True


class LinearPipeline(Pipeline):
    """A pipeline whose folders may hold words alone, or words beside the encoder, whose outputs are added.

    `words` is the linear model; None for none.
    """

    has_parts = True
    words_kind: ClassVar[type[LinearModel]]

    labels: list[str]
    words: LinearModel | None = None

    def __init__(
        self, model: Any, tokenizer: Tokenizer | None, inference: InferenceConfig = DEFAULT, **settings: Any
    ) -> None:
        """Takes an encoder with its tokenizer, or a linear model without one; `settings` as in `Pipeline`."""
        if tokenizer is None:
            self._settle(settings)
            self.words, self.labels, self.max_length = model, list(model.labels), 0
            self.tokenizer, self.engine = cast("Any", None), cast("Any", LinearEngine())
            return
        super().__init__(model, tokenizer, inference, **settings)
        self.labels = label_names(model.config)

    @classmethod
    def load(
        cls: type[LinearPipelineT], folder: str | Path, *, only: Part | None = None, **how: Any
    ) -> LinearPipelineT:
        """Loads a folder as `Pipeline.load` does; with `only`, one part of those that `bertsmith solve` put there."""
        task = read_task_file(folder).get("task", cls.name)
        # 先看任务再读：别的任务的词，不是损坏的词
        if task != cls.name and (model_folder(folder) / WORDS_FILE).exists():
            raise CheckpointError(f"{folder}: was fine-tuned for {task!r}, not for {cls.name!r}")
        words = read_words(folder, cls.words_kind)
        # 两部分各自是否在：没有词，或者词独自成为答案
        holds = {"words": words is not None and bool(words.mix[1]), "encoder": words is None or bool(words.mix[0])}
        if only is not None and not holds[only]:
            raise ConfigError(f"{folder}: holds {'an encoder' if only == 'words' else 'words'} alone; leave --only out")
        if words is not None and words.pipeline != cls.name:
            raise CheckpointError(f"{folder}: its words are for {words.pipeline!r}, not for {cls.name!r}")
        # 编码器没有自己的头时，它的输出要靠词文件里的那一层
        if words is None or (only == "encoder" and words.states is None):
            return super().load(folder, **how)
        if only is not None:
            words = words.mixed((0.0, 1.0, 0.0) if only == "words" else (1.0, 0.0, 0.0))
        if not words.mix[0]:
            made = cast("Any", cls)(words, None, InferenceConfig(**how), **cls.settings_in(folder).arguments())
            return cast("LinearPipelineT", made)
        pipeline = cls.load_beside(folder, words, **how)
        pipeline.words = words
        return pipeline

    @classmethod
    def load_beside(cls: type[LinearPipelineT], folder: str | Path, words: Any, **how: Any) -> LinearPipelineT:
        """Loads the encoder beside a linear model."""
        pipeline = super().load(folder, **how)
        if words.labels and tuple(pipeline.labels) != words.labels:
            raise CheckpointError(f"{folder}: its words have other labels than its encoder; run solve again")
        return pipeline

    def together(self, inputs: Sequence[Any], encoder: Callable[[], Tensor]) -> Tensor:
        """Returns the outputs of the parts that there are; `encoder` gives those of the encoder when it is called."""
        if self.words is None:
            return encoder()
        if self.tokenizer is None:
            return self.words.logits(*inputs)
        ours, theirs, offset = self.words.mix
        found = ours * encoder() + offset
        return found + theirs * self.words.logits(*inputs) if theirs else found
