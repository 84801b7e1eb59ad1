"""The models of a lab: what the server has loaded, and what only looking inside needs.

Predictions go through the server's own pipelines, so that the page and the HTTP endpoints share one queue. Maps,
embedding norms and attributions need the bare encoder or its gradients; they are loaded when they are first asked for
(weights are mapped files: the machine holds them once) and used by one visitor at a time.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.tasks import all_tasks
from bertsmith.hub import model_folder
from bertsmith.inference import Embed
from bertsmith.model import Backbone
from bertsmith.objectives.replaced_tokens import GENERATOR
from bertsmith.retrieval.search import SearchIndex
from bertsmith.serve.pages import ServedModel, as_request
from bertsmith.serve.settings import ServeSettings
from bertsmith.tokenizer import Tokenizer
from bertsmith_school.learn.lesson import Text
from bertsmith_school.learn.study import Study
from bertsmith_school.looking.attribution import Attribution, attribute
from bertsmith_school.looking.maps import AttentionMaps, load_for_maps, maps_of
from bertsmith_school.looking.scored import Explainable

T = TypeVar("T")

MOST_CHARACTERS = 20_000
"""Characters of a text that one types; files are for the command line."""

_LONGEST_PATH = 4_096
"""Characters of a folder's name; no system takes more."""

_MAPS_KEPT = 2
"""Texts whose maps are kept: enough to compare two, few enough for long texts and large models."""


class LabError(InputError):
    """Something that the lab cannot do with what it was given, said in both languages."""

    def __init__(self, en: str, zh: str) -> None:
        super().__init__(en)
        self.text = Text(en, zh)


class LabModel:
    """A model folder in the lab."""

    def __init__(self, served: ServedModel, settings: ServeSettings) -> None:
        self.name = served.name
        self.served = served
        if served.tokenizer is None or served.config is None:
            raise ConfigError(f"{served.name}: holds words alone, and the lab shows encoders; leave it out")
        self.tokenizer, self.config = served.tokenizer, served.config
        self._settings = settings
        # 梯度和前向钩子会临时改动模型：同一时刻只让一位访客进入
        self._inside = threading.RLock()
        self._kept: dict[Callable[[str], Any], Any] = {}
        self._maps = functools.lru_cache(_MAPS_KEPT)(self._computed_maps)

    @property
    def task(self) -> str | None:
        """What its head was fine-tuned for; None for a model that was not."""
        # 取向量不需要微调：一个只会给出向量的编码器没有头可看
        tuned = {kind for kind, task in all_tasks().items() if task.spec.pipeline.needs_fine_tuning}
        return next((kind for kind in self.served.pipelines if kind in tuned), None)

    @contextmanager
    def pipeline(self, kind: str) -> Iterator[Any]:
        """Lends one of the server's pipelines."""
        if kind not in self.served.pipelines:
            raise missing_head(self, kind)
        with as_request(self._settings.deadline, self._settings.limits):
            yield self.served.pipelines[kind]

    def maps(self, text: str, pair: str | None) -> AttentionMaps:
        """Returns the attention maps of a text or pair; asking again for the same one costs nothing."""
        with self._inside:
            return self._maps(text, pair)

    def _computed_maps(self, text: str, pair: str | None) -> AttentionMaps:
        return maps_of(*self._loaded(load_for_maps), text, pair)

    @property
    def encoder(self) -> Backbone:
        """The encoder, without its heads."""
        return self._loaded(load_for_maps)[0]

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Returns a vector of length 1 for each text, [N, H]; of a fine-tuned model those of its encoder."""
        if "embed" in self.served.pipelines:
            with self.pipeline("embed") as pipeline:
                vectors: NDArray[np.float32] = pipeline(list(texts))
                return vectors
        with self._inside:
            return self._loaded(Embed.load)(list(texts))

    def attribute(self, texts: Sequence[str]) -> Attribution:
        """Explains what the head predicts for one input, see `Explainable.score`."""
        with self._inside:
            return attribute(self._loaded(Explainable.load).score(texts))

    def study(self) -> Study:
        """Returns the model as the lessons want it."""
        return self._loaded(Study.load)

    def _loaded(self, load: Callable[[str], T]) -> T:
        """Loads the folder in one of the ways that only looking inside needs, once."""
        with self._inside:
            if load not in self._kept:
                self._kept[load] = load(self.served.folder)
            kept: T = self._kept[load]
            return kept


class LabModels:
    """All models of a lab, by name; the first is shown at first."""

    def __init__(
        self,
        served: Sequence[ServedModel],
        settings: ServeSettings,
        indexes: Mapping[str, SearchIndex] | None = None,
        load: Callable[[str], ServedModel] | None = None,
    ) -> None:
        self._models = {model.name: LabModel(model, settings) for model in served}
        self._settings = settings
        self._load = load
        self._opening = threading.Lock()
        self._opened: tuple[object, LabModel] | None = None
        self.indexes = dict(indexes or {})

    @property
    def names(self) -> list[str]:
        """The names, in the order in which they were given."""
        return list(self._models)

    def named(self, name: str) -> LabModel:
        """Returns a model."""
        if name not in self._models:
            raise LabError("There is no such model; choose another one above.", "没有这个模型，请在上面另选一个。")
        return self._models[name]

    @property
    def may_open(self) -> bool:
        """Whether visitors may name folders, see `opened`."""
        return self._load is not None

    def opened(self, given: str | None) -> LabModel:
        """Returns a model of the lab by its name, or of a folder on this machine; the folder opened last is kept."""
        if not given:
            raise LabError("Choose another model to compare with.", "请选一个模型来比较。")
        if given in self._models or self._load is None:
            return self.named(given)
        # 绝对路径：像 org/name 的写法不会被当作 Hub 上的名字去下载
        folder = os.path.abspath(os.path.expanduser(given[:_LONGEST_PATH]))
        if not os.path.isdir(folder):
            raise LabError(f"{folder}: there is no such folder.", f"{folder}：没有这个文件夹。")
        config = Path(folder) / "config.json"
        if not config.is_file():
            raise LabError(
                f"{folder}: is no model folder: it has no config.json.", f"{folder}：不是模型文件夹，没有 config.json。"
            )
        with self._opening:
            # 训练中的模型会整个换新：文件变了就重新读
            key = (folder, config.stat().st_mtime_ns)
            if self._opened is None or self._opened[0] != key:
                self._opened = (key, LabModel(self._load(folder), self._settings))
            return self._opened[1]

    @contextmanager
    def index(self, name: str) -> Iterator[SearchIndex]:
        """Lends one of the indexes."""
        if name not in self.indexes:
            raise LabError("There is no such index.", "没有这个索引。")
        # 索引更新之后，下一个问题就用新的
        self.indexes[name] = self.indexes[name].newest()
        with as_request(self._settings.deadline, self._settings.limits):
            yield self.indexes[name]


_HEADS = {
    "fill-mask": Text("masked-LM head", "掩码语言模型头"),
    "next-sentence": Text("next-sentence head", "下一句预测头"),
}


def missing_head(model: LabModel, kind: str) -> LabError:
    """Says that a model cannot do what a tab is for."""
    head = _HEADS.get(kind, Text(f"head for {kind}", f" {kind} 头"))
    if kind == "fill-mask" and (model_folder(model.served.folder) / GENERATOR).is_dir():
        # 判别器不填空，填空的是和它一起训练的生成器，就在它的文件夹里
        return LabError(
            f"The model `{model.name}` tells which words were replaced and fills no masks; its generator does, in the"
            f" folder `{GENERATOR}` inside it: open the lab with that as another `--model`.",
            f"模型 `{model.name}` 判断哪些词被换过，不填空；填空的是它文件夹里的 `{GENERATOR}`："
            "打开实验室时再用一个 `--model` 加上那个文件夹。",
        )
    return LabError(
        f"The model `{model.name}` has no {head.en}: it cannot do this. Other tabs work with it; choose another model"
        " above to use this one.",
        f"模型 `{model.name}` 没有{head.zh}，做不了这件事。别的标签页可以用它；要用这一页，请在上面换一个模型。",
    )


def received(text: str | None, name: Text, *, may_be_empty: bool = False) -> str:
    """Checks a text that somebody typed, and replaces half characters (lone surrogates), which no encoding takes."""
    text = text or ""
    if not text.strip() and not may_be_empty:
        raise LabError(f"{name.en}: write something first.", f"“{name.zh}”是空的，请先写点什么。")
    if len(text) > MOST_CHARACTERS:
        raise LabError(
            f"{name.en}: {len(text):,} characters are too many, {MOST_CHARACTERS:,} at most are read here; the"
            " command line takes files.",
            f"“{name.zh}”有 {len(text):,} 个字符，太长了，这里最多读 {MOST_CHARACTERS:,} 个；长文件请用命令行。",
        )
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def starting_text(tokenizer: Tokenizer, options: Sequence[str]) -> str:
    """Returns the one of some texts that the vocabulary covers best: fewest unknown pieces, then fewest of all."""

    def cost(text: str) -> tuple[int, int]:
        ids = tokenizer.encode(text, parse_special=True)
        return sum(index == tokenizer.unk_token_id for index in ids), len(ids)

    return min(options, key=cost)
