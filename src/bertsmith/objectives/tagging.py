"""The tagging loss: cross-entropy of every word's tag, read at its first piece (Devlin et al. 2019, §5.3)."""

from __future__ import annotations

import torch.nn.functional as F

from bertsmith.model import ModelForTokenClassification
from bertsmith.objectives.labelled import NO_LABEL, LabelledBatch
from bertsmith.objectives.loss_output import LossOutput


class TaggingObjective:
    """Mean of -log p(true tag) over the real words of a batch, in nats, with accuracy."""

    def __call__(self, model: ModelForTokenClassification, batch: LabelledBatch) -> LossOutput:
        """Measures a tagger on a batch with labels [T] int64, `NO_LABEL` wherever no word begins.

        Sums `loss` and `accuracy`, by word.
        """
        # 先挑出词首再算损失：续接词片和特殊符号没有标签，不必算它们的 logits 损失
        words = (batch.labels != NO_LABEL).nonzero().squeeze(-1)
        labels = batch.labels.index_select(0, words)
        logits = model(batch.tokens).index_select(0, words).float()
        count = len(labels)
        loss = F.cross_entropy(logits, labels, reduction="sum") / max(1, count)
        hits = int((logits.detach().argmax(-1) == labels).sum())
        return LossOutput(loss, {"loss": (float(loss.detach()) * count, count), "accuracy": (hits, count)})
