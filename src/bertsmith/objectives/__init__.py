"""What a model is trained to do, in pre-training and in fine-tuning; each objective is found by its name."""

from bertsmith.objectives.distillation import DistilledObjective, TeacherSettings
from bertsmith.objectives.labelled import (
    ChoiceObjective,
    ClassificationObjective,
    LabelledBatch,
    MultiLabelObjective,
    RegressionObjective,
    SpanObjective,
    TaggingObjective,
)
from bertsmith.objectives.pretraining import (
    CausalLMLoss,
    Figure,
    LossOutput,
    MaskedLMLoss,
    NSPLoss,
    Objective,
    PreTrainingObjective,
    RunningAverages,
    SOPLoss,
    SpanBoundaryLoss,
    average_of,
    objective_named,
)
from bertsmith.objectives.replaced_tokens import ReplacedTokenLoss, ReplacedTokenObjective

__all__ = [
    "CausalLMLoss",
    "ChoiceObjective",
    "ClassificationObjective",
    "DistilledObjective",
    "Figure",
    "LabelledBatch",
    "LossOutput",
    "MaskedLMLoss",
    "MultiLabelObjective",
    "NSPLoss",
    "Objective",
    "PreTrainingObjective",
    "RegressionObjective",
    "ReplacedTokenLoss",
    "ReplacedTokenObjective",
    "RunningAverages",
    "SOPLoss",
    "SpanBoundaryLoss",
    "SpanObjective",
    "TaggingObjective",
    "TeacherSettings",
    "average_of",
    "objective_named",
]
