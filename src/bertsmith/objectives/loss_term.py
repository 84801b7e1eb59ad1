"""`LossTerm`: one loss of a pre-training objective, the cross-entropy of one head's predictions.

Objectives are sums of terms (`pretraining`); the file of each term holds its idea.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from torch import Tensor, nn

from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.kernels.cross_entropy import PieceScores, cross_entropy
from bertsmith.objectives.loss_output import LossOutput, figure


class Titled(Protocol):
    """A loss whose figures are `NAME_loss` and, of predictions, `NAME_accuracy`; the title is for people."""

    name: ClassVar[str]
    title: ClassVar[str]


class LossTerm(nn.Module):
    """Mean of -log p(true class) over the predictions that have a label, in nats.

    Attributes:
        name: of its figures, `NAME_loss` and `NAME_accuracy`.
        title: of the term in reports, such as "masked-LM".
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def forward(self, scores: Tensor | PieceScores, labels: Tensor, *, total: int | None = None) -> LossOutput:
        """Measures predictions.

        Args:
            scores: [M, V] or [N, 2], of any float dtype.
            labels: [M] or [N] int64, the true classes; -100 where there is none.
            total: labels of the whole batch, where these are a share of it: the losses of the shares then add up to
                the mean over the batch. None where this is all.

        Returns:
            The loss (0 without any label), with sums `NAME_loss` and `NAME_accuracy`.
        """
        count = figure((labels != NO_LABEL).sum())
        # 先求和再除：一批中没有任何标签时损失为 0，而不是 NaN
        loss, hits = cross_entropy(scores, labels, ignored=NO_LABEL)
        sums = {f"{self.name}_loss": (figure(loss), count), f"{self.name}_accuracy": (figure(hits), count)}
        labelled = count if total is None else total
        divisor = labelled.clamp(min=1) if isinstance(labelled, Tensor) else max(1, labelled)
        return LossOutput((loss / divisor).float(), sums)
