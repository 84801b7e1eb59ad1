"""What a model is trained to do: one file per loss."""

from bertsmith.objectives.classification import ClassificationBatch, ClassificationObjective
from bertsmith.objectives.masked_lm import MaskedLMLoss
from bertsmith.objectives.next_sentence import NSPLoss
from bertsmith.objectives.pretraining import PreTrainingObjective

__all__ = ["ClassificationBatch", "ClassificationObjective", "MaskedLMLoss", "NSPLoss", "PreTrainingObjective"]
