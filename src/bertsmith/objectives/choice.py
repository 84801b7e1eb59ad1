"""The multiple-choice loss: which of several continuations is the right one (Devlin et al. 2019, §4.4)."""

from __future__ import annotations

import torch.nn.functional as F

from bertsmith.model import ModelForMultipleChoice
from bertsmith.objectives.labelled import LabelledBatch
from bertsmith.objectives.loss_output import LossOutput


class ChoiceObjective:
    """Mean of -log p(right choice), in nats, with accuracy; the softmax is over the choices of a question."""

    def __call__(self, model: ModelForMultipleChoice, batch: LabelledBatch) -> LossOutput:
        """Measures a model on a batch with labels [Q] int64 and, for every question, equally many sequences.

        Sums `loss` and `accuracy`, by question.
        """
        # 各选项与题目分别成句，各得一个分数，再在同一题的选项之间做 softmax：头只要一个向量
        count = len(batch.labels)
        logits = model(batch.tokens, batch.tokens.num_sequences // count).float()
        loss = F.cross_entropy(logits, batch.labels)
        hits = int((logits.detach().argmax(-1) == batch.labels).sum())
        return LossOutput(loss, {"loss": (float(loss.detach()) * count, count), "accuracy": (hits, count)})
