"""Cosine regression: the cosine of a pair is its score (Reimers and Gurevych 2019, §3, the regression objective)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from bertsmith.objectives.vectors.batch import VectorBatch
from bertsmith.objectives.vectors.loss import VectorLoss, pair_cosines


class CosineRegression(VectorLoss, name="cosine"):
    """Mean squared difference between the cosines of pairs and their scores in [0, 1]."""

    needs = "scores"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the loss; see `VectorLoss`."""
        return F.mse_loss(pair_cosines(vectors, batch), batch.targets)
