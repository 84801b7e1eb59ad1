"""The batch of every fine-tuning task, and what their losses have in common: rows of scores that compete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.objectives.loss_output import LossOutput

__all__ = ["NO_LABEL", "LabelledBatch", "LabelledObjective"]

TEMPERATURE = 2.0
"""By which the scores of student and teacher are divided before they are compared (Hinton et al. 2015, §2)."""


@dataclass(frozen=True)
class LabelledBatch:
    """N sequences as tokens, and their `labels`; what these look like is up to the objective."""

    tokens: RaggedBatch
    labels: Tensor

    def to(self, device: torch.device | str) -> LabelledBatch:
        """Returns the same batch on another device."""
        return LabelledBatch(self.tokens.to(device), self.labels.to(device))


class LabelledObjective(ABC):
    """A loss over rows of scores; the scores of a row compete for one answer."""

    @abstractmethod
    def rows(self, model: Any, batch: LabelledBatch) -> Tensor:
        """Returns what a model says of a batch: [R, C] float32, minus infinity where a row is shorter than others."""

    @abstractmethod
    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Returns the loss of `rows` and its sums; see the call of each objective."""

    def __call__(self, model: Any, batch: LabelledBatch) -> LossOutput:
        """Measures a model on a batch."""
        return self.measure(self.rows(model, batch), batch)

    def imitation(self, rows: Tensor, taught: Tensor) -> Tensor:
        """Returns T² · KL(teacher ‖ student), averaged over the rows, in nats.

        Args:
            rows: of the student, with gradients.
            taught: of the teacher, equally shaped.
        """
        real = torch.isfinite(taught)
        # 老师认为“也有几分像”的答案，是硬标签里没有的知识；温度让这几分看得见
        own, other = ((scores / TEMPERATURE).log_softmax(-1).masked_fill(~real, 0.0) for scores in (rows, taught))
        divergence = (F.kl_div(own, other, reduction="none", log_target=True) * real).sum()
        return divergence * TEMPERATURE**2 / max(1, len(rows))
