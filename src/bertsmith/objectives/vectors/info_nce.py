"""InfoNCE: which of the texts of a batch belongs to which query.

A softmax over the cosines of a query with all texts of the batch, its own positive being the right class (van den Oord
et al. 2018, eq. 4; with the other positives as negatives: Henderson et al. 2017, §4.2); and the same from a positive to
all queries, so that both sides are told apart (Radford et al. 2021, figure 3). Hard negatives are further columns of
the first softmax (Karpukhin et al. 2020, §3.2).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.objectives.vectors.batch import VectorBatch
from bertsmith.objectives.vectors.loss import VectorLoss


class InfoNCE(VectorLoss, name="info-nce"):
    """Mean of -log p(own positive | query) and -log p(own query | positive), in nats."""

    needs = "positives"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the loss; see `VectorLoss`."""
        unit, count = F.normalize(vectors, dim=-1), batch.num_queries
        scores = unit[:count] @ unit[count:].T / self.temperature
        # 说的是同一件事的文本不是负例：不遮住它们，就等于教模型把对的推开
        scores = scores.masked_fill(batch.false_negatives, -torch.inf)
        own = torch.arange(count, device=scores.device)
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores[:, :count].T, own)) / 2
