"""What a model is trained to do: one file per objective.

Those of pre-training are found by name (`pretraining.objective_named`); those of fine-tuning belong to its tasks.
"""

from bertsmith.objectives.causal_lm import CausalLMLoss
from bertsmith.objectives.choice import ChoiceObjective
from bertsmith.objectives.classification import ClassificationObjective, MultiLabelObjective, RegressionObjective
from bertsmith.objectives.labelled import LabelledBatch
from bertsmith.objectives.masked_lm import MaskedLMLoss
from bertsmith.objectives.next_sentence import NSPLoss
from bertsmith.objectives.pretraining import Objective, PreTrainingObjective, objective_named
from bertsmith.objectives.replaced_tokens import ReplacedTokenLoss, ReplacedTokenObjective
from bertsmith.objectives.sentence_order import SOPLoss
from bertsmith.objectives.span_boundary import SpanBoundaryLoss
from bertsmith.objectives.spans import SpanObjective
from bertsmith.objectives.tagging import TaggingObjective

__all__ = [
    "CausalLMLoss",
    "ChoiceObjective",
    "ClassificationObjective",
    "LabelledBatch",
    "MaskedLMLoss",
    "MultiLabelObjective",
    "NSPLoss",
    "Objective",
    "PreTrainingObjective",
    "RegressionObjective",
    "ReplacedTokenLoss",
    "ReplacedTokenObjective",
    "SOPLoss",
    "SpanBoundaryLoss",
    "SpanObjective",
    "TaggingObjective",
    "objective_named",
]
