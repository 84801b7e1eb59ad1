"""CoSENT: pairs in the order of their scores (Su 2022, "CoSENT: a more effective sentence vector scheme").

log(1 + Σ exp((cos_i - cos_j) / τ)) over all two pairs i, j of the batch of which j has the higher score: a smooth
count of the pairs that stand in the wrong order. Spearman's correlation, by which such models are measured, asks for
the order alone, and so does this; the scale of the scores does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.objectives.vectors.batch import VectorBatch
from bertsmith.objectives.vectors.loss import VectorLoss, pair_cosines


class CoSENT(VectorLoss, name="cosent"):
    """A smooth count of the pairs whose cosines are not in the order of their scores."""

    needs = "scores"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the loss; see `VectorLoss`."""
        cosines = pair_cosines(vectors, batch) / self.temperature
        gaps = cosines[:, None] - cosines
        out_of_order = gaps[batch.targets[:, None] < batch.targets]
        # 开头的 0 就是公式里的 1：一批里分数全都相同时损失为 0，而不是负无穷
        return torch.logsumexp(torch.cat([gaps.new_zeros(1), out_of_order]), 0)
