"""Distillation of an encoder: texts are as alike as a teacher finds them (Tung and Mori 2019, eq. 4).

What is learned is the cosine of every two texts of the batch, not the teacher's numbers, so that teacher and student
may have vectors of different widths.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.objectives.vectors.batch import VectorBatch
from bertsmith.objectives.vectors.loss import VectorLoss


class SimilarityDistillation(VectorLoss, name="similarities"):
    """Mean squared difference between the cosines of all two texts of a batch and those of the teacher's vectors."""

    needs = "teacher"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the loss; see `VectorLoss`."""
        own, wanted = (F.normalize(each, dim=-1) for each in (vectors, batch.targets))
        # 对角线恒为 1，不教任何东西：只取两两不同的文本
        others = ~torch.eye(len(own), dtype=torch.bool, device=own.device)
        return F.mse_loss((own @ own.T)[others], (wanted @ wanted.T)[others])
