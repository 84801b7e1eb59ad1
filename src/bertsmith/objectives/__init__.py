"""What a model is trained to do: one file per loss."""

from bertsmith.objectives.causal_lm import CausalLMLoss
from bertsmith.objectives.classification import ClassificationBatch, ClassificationObjective
from bertsmith.objectives.masked_lm import MaskedLMLoss
from bertsmith.objectives.next_sentence import NSPLoss
from bertsmith.objectives.pretraining import (
    PreTrainingObjective,
    build_objective,
    build_pretraining_model,
    pretraining_architecture,
)
from bertsmith.objectives.sentence_order import SOPLoss
from bertsmith.objectives.span_boundary import SpanBoundaryLoss

__all__ = [
    "CausalLMLoss",
    "ClassificationBatch",
    "ClassificationObjective",
    "MaskedLMLoss",
    "NSPLoss",
    "PreTrainingObjective",
    "SOPLoss",
    "SpanBoundaryLoss",
    "build_objective",
    "build_pretraining_model",
    "pretraining_architecture",
]
