"""Margin-MSE: how much better a positive fits than a negative, as a teacher sees it (Hofstätter et al. 2020, §3.2).

The teacher is usually a cross-encoder, which reads query and text together; its scores live on a scale of their own, so
what is learned is the difference between two of them. The paper compares dot products; here it is cosines, with the
teacher's scores brought to [0, 1].
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from bertsmith.objectives.vectors.batch import VectorBatch
from bertsmith.objectives.vectors.loss import VectorLoss, pair_cosines


class MarginMSE(VectorLoss, name="margin-mse"):
    """Mean squared difference between the margins of the cosines and those of the teacher."""

    needs = "margins"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the loss; see `VectorLoss`."""
        unit, count = F.normalize(vectors, dim=-1), batch.num_queries
        negatives = (unit[:count][batch.owners] * unit[2 * count :]).sum(-1)
        margins = pair_cosines(vectors, batch)[batch.owners] - negatives
        # 一批里可能恰好一个反例也没有：那时损失是 0，而不是 NaN
        return (margins - batch.targets).square().sum() / max(1, len(margins))
