"""The question-answering loss: where the answer starts and where it ends (Devlin et al. 2019, §4.2, §4.3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.model import ModelForQuestionAnswering
from bertsmith.objectives.labelled import LabelledBatch, LabelledObjective
from bertsmith.objectives.loss_output import LossOutput, figure


class SpanObjective(LabelledObjective):
    """Mean of -log p(start) and -log p(end), in nats; the probabilities are over the tokens of a sequence."""

    def rows(self, model: ModelForQuestionAnswering, batch: LabelledBatch) -> Tensor:
        """Returns [2 N, S]: a row for the start in each sequence, then one for each end."""
        # 起点和终点各是一次“在所有词元里选一个”的分类；没有答案时两者都指向 [CLS]
        return torch.cat([_rows(part, batch.tokens) for part in model(batch.tokens)])

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures scores.

        Args:
            rows: of starts and ends.
            batch: labels [N, 2] int64: the first and last token of the answer, counted within the sequence; both 0,
                the `[CLS]`, where the sequence holds no answer.

        Returns:
            The loss; sums `loss`, and `accuracy`, the share of sequences with start and end both right.
        """
        start, end = rows.chunk(2)
        losses = F.cross_entropy(start, batch.labels[:, 0]) + F.cross_entropy(end, batch.labels[:, 1])
        loss = losses / 2
        count = len(batch.labels)
        predicted = torch.stack([start.detach().argmax(-1), end.detach().argmax(-1)], 1)
        hits = figure((predicted == batch.labels).all(1).sum())
        return LossOutput(loss, {"loss": (figure(loss) * count, count), "accuracy": (hits, count)})


def _rows(scores: Tensor, batch: RaggedBatch) -> Tensor:
    """Returns scores [T] as [N, S] float32, minus infinity behind the end of a sequence."""
    return batch.pad(scores.float().unsqueeze(-1), fill=-torch.inf).squeeze(-1)
