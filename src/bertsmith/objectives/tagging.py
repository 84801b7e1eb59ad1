"""The tagging loss: cross-entropy of every word's tag, read at its first piece (Devlin et al. 2019, §5.3)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from bertsmith.model import ModelForTokenClassification
from bertsmith.objectives.labelled import NO_LABEL, LabelledBatch, LabelledObjective
from bertsmith.objectives.loss_output import LossOutput


class TaggingObjective(LabelledObjective):
    """Mean of -log p(true tag) over the real words of a batch, in nats, with accuracy."""

    def rows(self, model: ModelForTokenClassification, batch: LabelledBatch) -> Tensor:
        """Returns a row for each word; the labels [T] are `NO_LABEL` wherever no word begins."""
        # 先挑出词首再算损失：续接词片和特殊符号没有标签，不必算它们的 logits 损失
        logits: Tensor = model(batch.tokens).index_select(0, _words(batch)).float()
        return logits

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures logits [W, K] of the words against their labels; sums `loss` and `accuracy`, by word."""
        labels = batch.labels.index_select(0, _words(batch))
        count = len(labels)
        loss = F.cross_entropy(rows, labels, reduction="sum") / max(1, count)
        hits = int((rows.detach().argmax(-1) == labels).sum())
        return LossOutput(loss, {"loss": (float(loss.detach()) * count, count), "accuracy": (hits, count)})


def _words(batch: LabelledBatch) -> Tensor:
    return (batch.labels != NO_LABEL).nonzero().squeeze(-1)
