"""The multiple-choice loss: which of several continuations is the right one (Devlin et al. 2019, §4.4)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.model import ModelForMultipleChoice
from bertsmith.objectives.labelled import LabelledBatch, LabelledObjective
from bertsmith.objectives.loss_output import LossOutput


class ChoiceObjective(LabelledObjective):
    """Mean of -log p(right choice), in nats, with accuracy; the softmax is over the choices of a question."""

    def rows(self, model: ModelForMultipleChoice, batch: LabelledBatch) -> Tensor:
        """Returns a row for each question; labels as in `measure`."""
        # 各选项与题目分别成句，各得一个分数，再在同一题的选项之间做 softmax：头只要一个向量
        scores = model(batch.tokens, 1).float().squeeze(-1)
        equal = batch.tokens.num_sequences // len(batch.labels)
        # 选项数不同的题补成矩形：负无穷的空位在 softmax 里概率为零，也没有梯度
        rows = scores.split(equal if batch.labels.dim() == 1 else batch.labels[:, 0].tolist())
        return pad_sequence(list(rows), batch_first=True, padding_value=-torch.inf)

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures scores of choices; sums `loss` and `accuracy`, by question.

        Args:
            rows: of Q questions.
            batch: labels [Q] int64, the right choice, where every question has equally many; or [Q, 2], how many
                choices there are and which is right.
        """
        right = batch.labels if batch.labels.dim() == 1 else batch.labels[:, 1]
        loss, count = F.cross_entropy(rows, right), len(right)
        hits = int((rows.detach().argmax(-1) == right).sum())
        return LossOutput(loss, {"loss": (float(loss.detach()) * count, count), "accuracy": (hits, count)})
