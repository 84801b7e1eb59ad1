"""Prediction: the engine that runs a model over many texts, and the pipelines over it, all of which are named here.

The names below are loaded when they are first used: a short request on ONNX Runtime needs none of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Answer": "answer",
    "AnswerCandidate": "answer",
    "Answered": "answer",
    "Candidate": "fill_mask",
    "Choice": "choose",
    "Choose": "choose",
    "Classify": "classify",
    "Embed": "embed",
    "Engine": "engine",
    "FeatureTag": "features",
    "FillMask": "fill_mask",
    "Generate": "generate",
    "Generated": "generate",
    "InferenceConfig": "engine",
    "LabelsPrediction": "classify",
    "MultiLabel": "classify",
    "NextSentence": "next_sentence",
    "Pipeline": "pipeline",
    "PrecisionChoice": "precision",
    "PrecisionTrial": "precision",
    "Prediction": "classify",
    "Rank": "rank",
    "Ranked": "rank",
    "Regress": "classify",
    "SequenceRunner": "engine",
    "Similarity": "embed",
    "Tag": "tag",
    "TextEntity": "tag",
    "WordTags": "tag",
    "load_pipeline": "loading",
}

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from bertsmith.inference.answer import Answer as Answer
    from bertsmith.inference.answer import AnswerCandidate as AnswerCandidate
    from bertsmith.inference.answer import Answered as Answered
    from bertsmith.inference.choose import Choice as Choice
    from bertsmith.inference.choose import Choose as Choose
    from bertsmith.inference.classify import Classify as Classify
    from bertsmith.inference.classify import LabelsPrediction as LabelsPrediction
    from bertsmith.inference.classify import MultiLabel as MultiLabel
    from bertsmith.inference.classify import Prediction as Prediction
    from bertsmith.inference.classify import Regress as Regress
    from bertsmith.inference.embed import Embed as Embed
    from bertsmith.inference.embed import Similarity as Similarity
    from bertsmith.inference.engine import Engine as Engine
    from bertsmith.inference.engine import InferenceConfig as InferenceConfig
    from bertsmith.inference.engine import SequenceRunner as SequenceRunner
    from bertsmith.inference.features import FeatureTag as FeatureTag
    from bertsmith.inference.fill_mask import Candidate as Candidate
    from bertsmith.inference.fill_mask import FillMask as FillMask
    from bertsmith.inference.generate import Generate as Generate
    from bertsmith.inference.generate import Generated as Generated
    from bertsmith.inference.loading import load_pipeline as load_pipeline
    from bertsmith.inference.next_sentence import NextSentence as NextSentence
    from bertsmith.inference.pipeline import Pipeline as Pipeline
    from bertsmith.inference.precision import PrecisionChoice as PrecisionChoice
    from bertsmith.inference.precision import PrecisionTrial as PrecisionTrial
    from bertsmith.inference.rank import Rank as Rank
    from bertsmith.inference.rank import Ranked as Ranked
    from bertsmith.inference.tag import Tag as Tag
    from bertsmith.inference.tag import TextEntity as TextEntity
    from bertsmith.inference.tag import WordTags as WordTags


def __getattr__(name: str) -> Any:
    """Loads a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bertsmith.inference' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bertsmith.inference.{_HOMES[name]}"), name)
