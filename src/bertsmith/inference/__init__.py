"""Prediction: the engine that runs a model over many texts, and the pipelines over it, all of which are named here."""

from bertsmith.inference.answer import Answer, AnswerCandidate, Answered
from bertsmith.inference.choose import Choice, Choose
from bertsmith.inference.classify import Classify, LabelsPrediction, MultiLabel, Prediction, Regress
from bertsmith.inference.embed import Embed, Similarity
from bertsmith.inference.engine import Engine, InferenceConfig, SequenceRunner
from bertsmith.inference.features import FeatureTag
from bertsmith.inference.fill_mask import Candidate, FillMask
from bertsmith.inference.generate import Generate, Generated
from bertsmith.inference.next_sentence import NextSentence
from bertsmith.inference.pipeline import Pipeline, load_pipeline
from bertsmith.inference.precision import PrecisionChoice, PrecisionTrial
from bertsmith.inference.rank import Rank, Ranked
from bertsmith.inference.tag import Tag, TextEntity, WordTags

__all__ = [
    "Answer",
    "AnswerCandidate",
    "Answered",
    "Candidate",
    "Choice",
    "Choose",
    "Classify",
    "Embed",
    "Engine",
    "FeatureTag",
    "FillMask",
    "Generate",
    "Generated",
    "InferenceConfig",
    "LabelsPrediction",
    "MultiLabel",
    "NextSentence",
    "Pipeline",
    "PrecisionChoice",
    "PrecisionTrial",
    "Prediction",
    "Rank",
    "Ranked",
    "Regress",
    "SequenceRunner",
    "Similarity",
    "Tag",
    "TextEntity",
    "WordTags",
    "load_pipeline",
]
