"""Pipelines: a model folder and a text in, an answer out.

`load_pipeline(kind, folder)` returns a callable. Each is the few lines between the tokenizer and the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, overload

import torch

from bertsmith.errors import ConfigError
from bertsmith.inference.answer import Answer
from bertsmith.inference.choose import Choose
from bertsmith.inference.classify import Classify, MultiLabel, Regress
from bertsmith.inference.embed import Embed, Similarity
from bertsmith.inference.features import load_feature_tagger
from bertsmith.inference.precision import Precision
from bertsmith.inference.pretrained import FillMask, NextSentence
from bertsmith.inference.rank import Rank
from bertsmith.inference.tag import Tag

Device = torch.device | str | None
Pipeline = FillMask | NextSentence | Embed | Similarity | Classify | MultiLabel | Regress | Tag | Answer | Choose | Rank
PIPELINES = {
    "fill-mask": FillMask,
    "next-sentence": NextSentence,
    "embed": Embed,
    "similarity": Similarity,
    "classify": Classify,
    "multilabel": MultiLabel,
    "regress": Regress,
    "tag": Tag,
    "answer": Answer,
    "choose": Choose,
    "rank": Rank,
}


@overload
def load_pipeline(
    kind: Literal["fill-mask"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> FillMask: ...
@overload
def load_pipeline(
    kind: Literal["next-sentence"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> NextSentence: ...
@overload
def load_pipeline(
    kind: Literal["embed"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Embed: ...
@overload
def load_pipeline(
    kind: Literal["similarity"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Similarity: ...
@overload
def load_pipeline(
    kind: Literal["classify"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Classify: ...
@overload
def load_pipeline(
    kind: Literal["multilabel"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> MultiLabel: ...
@overload
def load_pipeline(
    kind: Literal["regress"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Regress: ...
@overload
def load_pipeline(
    kind: Literal["tag"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Tag: ...
@overload
def load_pipeline(
    kind: Literal["answer"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Answer: ...
@overload
def load_pipeline(
    kind: Literal["choose"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Choose: ...
@overload
def load_pipeline(
    kind: Literal["rank"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Rank: ...
@overload
def load_pipeline(
    kind: Literal["features"], folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Tag: ...
def load_pipeline(
    kind: str, folder: str | Path, *, precision: Precision | None = None, device: Device = None
) -> Pipeline:
    """Loads a model folder for one use.

    Args:
        kind: a name of `PIPELINES`, or `features`.
        folder: a model folder with its tokenizer.
        precision: `float32`, `bf16`, `int8`, or `auto` for the fastest that is faithful on this machine; None takes
            bf16 where the hardware multiplies it natively, else float32.
        device: None takes the GPU where there is one.

    Raises:
        ConfigError: no pipeline has that name, the folder is for another one, or the precision is not to be had here.
        CheckpointError: the folder does not hold such a model.
    """
    # 特征标注器不是一个模型，而是冻结的编码器加一个小网络：由它自己的文件夹说明怎样拼起来
    if kind == "features":
        return load_feature_tagger(folder, precision=precision, device=device)
    if kind not in PIPELINES:
        raise ConfigError(f"pipeline {kind!r} is unknown; use one of {', '.join(PIPELINES)}, features")
    return PIPELINES[kind].load(folder, precision=precision, device=device)  # type: ignore[attr-defined, no-any-return]
