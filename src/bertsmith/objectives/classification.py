"""The classification loss: cross-entropy over the classes of whole texts (Devlin et al. 2019, §4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertForSequenceClassification
from bertsmith.objectives.measure import Measure


@dataclass(frozen=True)
class ClassificationBatch:
    """N texts as tokens, and their classes `labels` [N] int64."""

    tokens: RaggedBatch
    labels: Tensor

    def to(self, device: torch.device | str) -> ClassificationBatch:
        """Returns the same batch on another device."""
        return ClassificationBatch(self.tokens.to(device), self.labels.to(device))


class ClassificationObjective:
    """Mean of -log p(true class), in nats, with accuracy."""

    def __call__(self, model: BertForSequenceClassification, batch: ClassificationBatch) -> Measure:
        """Measures a classifier on a batch; sums `loss` and `accuracy`."""
        logits = model(batch.tokens).float()
        loss = F.cross_entropy(logits, batch.labels)
        count = len(batch.labels)
        hits = int((logits.detach().argmax(-1) == batch.labels).sum())
        return Measure(loss, {"loss": (float(loss.detach()) * count, count), "accuracy": (hits, count)})
