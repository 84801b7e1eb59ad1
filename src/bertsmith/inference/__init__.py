"""Prediction: the engine that runs a model over many texts, and the pipelines over it, all of which are named here.

The names below are loaded when they are first used: a short request on ONNX Runtime needs none of torch.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertsmith.inference.answer import Answer as Answer
    from bertsmith.inference.answer import AnswerCandidate as AnswerCandidate
    from bertsmith.inference.answer import Answered as Answered
    from bertsmith.inference.classify import Choice as Choice
    from bertsmith.inference.classify import Choose as Choose
    from bertsmith.inference.classify import Classify as Classify
    from bertsmith.inference.classify import LabelsPrediction as LabelsPrediction
    from bertsmith.inference.classify import MultiLabel as MultiLabel
    from bertsmith.inference.classify import NextSentence as NextSentence
    from bertsmith.inference.classify import Prediction as Prediction
    from bertsmith.inference.classify import Rank as Rank
    from bertsmith.inference.classify import Ranked as Ranked
    from bertsmith.inference.classify import Regress as Regress
    from bertsmith.inference.embed import Embed as Embed
    from bertsmith.inference.engine import Engine as Engine
    from bertsmith.inference.engine import InferenceConfig as InferenceConfig
    from bertsmith.inference.engine import Precision
    from bertsmith.inference.engine import PrecisionChoice as PrecisionChoice
    from bertsmith.inference.engine import PrecisionTrial as PrecisionTrial
    from bertsmith.inference.engine import SequenceRunner as SequenceRunner
    from bertsmith.inference.fill_mask import Candidate as Candidate
    from bertsmith.inference.fill_mask import FillMask as FillMask
    from bertsmith.inference.fill_mask import Generate as Generate
    from bertsmith.inference.fill_mask import Generated as Generated
    from bertsmith.inference.graph_cache import EngineKind
    from bertsmith.inference.linear import Part
    from bertsmith.inference.pipeline import Device
    from bertsmith.inference.pipeline import Pipeline as Pipeline
    from bertsmith.inference.tag import FeatureTag as FeatureTag
    from bertsmith.inference.tag import Tag as Tag
    from bertsmith.inference.tag import TextEntity as TextEntity
    from bertsmith.inference.tag import WordTags as WordTags

_NAMES = {
    "answer": "Answer AnswerCandidate Answered",
    "classify": "Choice Choose Classify LabelsPrediction MultiLabel NextSentence Prediction Rank Ranked Regress",
    "embed": "Embed",
    "engine": "Engine InferenceConfig PrecisionChoice PrecisionTrial SequenceRunner",
    "fill_mask": "Candidate FillMask Generate Generated",
    "pipeline": "Pipeline",
    "tag": "FeatureTag Tag TextEntity WordTags",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = ["load_pipeline", *_HOMES]


def __getattr__(name: str) -> Any:
    """Loads a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bertsmith.inference' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bertsmith.inference.{_HOMES[name]}"), name)


def load_pipeline(
    name: str,
    folder: str | Path,
    *,
    precision: Precision | None = None,
    device: Device = None,
    batch_tokens: int = 0,
    engine: EngineKind = "torch",
    only: Part | None = None,
) -> Any:
    """Loads a model folder for one use.

    Args:
        name: of the pipeline, such as `fill-mask`; see `all_pipelines`.
        folder: a model folder with its tokenizer.
        precision: `float32`, `bf16`, `int8`, or `auto` for the fastest that is faithful on this machine; None takes
            bf16 where the hardware multiplies it faster, else float32.
        device: None takes the GPU where there is one.
        batch_tokens: tokens of a forward pass; 0 takes what suits the device.
        engine: what computes on the CPU: `torch`; `onnxruntime`, in float32; `openvino`, in float32 or bf16; or `auto`
            for the fastest of those that are installed, for short and for long batches apart, measured once. Graphs are
            made once and kept. `embed` then needs no torch for a short request.
        only: `words` or `encoder`: one part of a folder of `bertsmith solve`, which holds both.

    Returns:
        The pipeline, such as `FillMask`; its class says what it is called with.

    Raises:
        ConfigError: no pipeline has that name, the folder is for another one, or the precision is not available here.
        CheckpointError: the folder does not hold such a model.
    """

    def load() -> Any:
        from bertsmith.errors import ConfigError
        from bertsmith.inference.pipeline import pipeline_named

        how: dict[str, Any] = {"precision": precision, "device": device, "batch_tokens": batch_tokens, "engine": engine}
        kind: Any = pipeline_named(name)
        if only is not None and not kind.has_parts:
            raise ConfigError(f"--only is not for {kind.name}; leave it out")
        if only is not None:
            how["only"] = only
        return kind.load(folder, **how)

    # 显卡上没有图；指明了设备而不是 CPU 的，照常载入
    if name != "embed" or engine == "torch" or str(device or "cpu") != "cpu":
        return load()
    from bertsmith.inference.graph_cache import load_quick

    return load_quick(folder, f"{engine} {precision or ''} {device or ''}", load)
