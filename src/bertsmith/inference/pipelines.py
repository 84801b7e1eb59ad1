"""Pipelines: a model folder and a text in, an answer out.

`load_pipeline(kind, folder)` returns a callable. Each is the few lines between the tokenizer and the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, overload

from bertsmith.errors import ConfigError
from bertsmith.inference.answer import Answer
from bertsmith.inference.choose import Choose
from bertsmith.inference.classify import Classify, MultiLabel, Regress
from bertsmith.inference.pretrained import Embed, FillMask
from bertsmith.inference.rank import Rank
from bertsmith.inference.tag import Tag

Pipeline = FillMask | Embed | Classify | MultiLabel | Regress | Tag | Answer | Choose | Rank
PIPELINES = {
    "fill-mask": FillMask,
    "embed": Embed,
    "classify": Classify,
    "multilabel": MultiLabel,
    "regress": Regress,
    "tag": Tag,
    "answer": Answer,
    "choose": Choose,
    "rank": Rank,
}


@overload
def load_pipeline(kind: Literal["fill-mask"], folder: str | Path) -> FillMask: ...
@overload
def load_pipeline(kind: Literal["embed"], folder: str | Path) -> Embed: ...
@overload
def load_pipeline(kind: Literal["classify"], folder: str | Path) -> Classify: ...
@overload
def load_pipeline(kind: Literal["multilabel"], folder: str | Path) -> MultiLabel: ...
@overload
def load_pipeline(kind: Literal["regress"], folder: str | Path) -> Regress: ...
@overload
def load_pipeline(kind: Literal["tag"], folder: str | Path) -> Tag: ...
@overload
def load_pipeline(kind: Literal["answer"], folder: str | Path) -> Answer: ...
@overload
def load_pipeline(kind: Literal["choose"], folder: str | Path) -> Choose: ...
@overload
def load_pipeline(kind: Literal["rank"], folder: str | Path) -> Rank: ...
@overload
def load_pipeline(kind: Literal["features"], folder: str | Path) -> Tag: ...
def load_pipeline(kind: str, folder: str | Path) -> Pipeline:
    """Loads a model folder for one use.

    Args:
        kind: a name of `PIPELINES`.
        folder: a model folder with its tokenizer.

    Raises:
        ConfigError: no pipeline has that name, or the folder is for another one.
        CheckpointError: the folder does not hold such a model.
    """
    if kind == "features":
        # 冻结编码器之上的小网络属于微调那一层，用到时才引入：本层的模块不依赖它
        from bertsmith.finetune.features import load_feature_tagger

        return load_feature_tagger(Path(folder))
    if kind not in PIPELINES:
        raise ConfigError(f"pipeline {kind!r} is unknown; use one of {', '.join(PIPELINES)}, features")
    return PIPELINES[kind].load(folder)  # type: ignore[attr-defined, no-any-return]
