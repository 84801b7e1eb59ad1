"""Prediction: the engine that runs a model over many texts, and the pipelines over it."""

from bertsmith.inference.pipelines import Candidate, Classify, Embed, FillMask, Prediction, load_pipeline

__all__ = ["Candidate", "Classify", "Embed", "FillMask", "Prediction", "load_pipeline"]
