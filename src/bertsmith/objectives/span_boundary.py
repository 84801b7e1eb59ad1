"""The span boundary loss: a hidden piece is told by the tokens around its span alone (Joshi et al. 2020, §3.2).

To predict the inside of a span from its two neighbours, the model must gather there what the span means.
"""

from __future__ import annotations

from torch import Tensor, nn

from bertsmith.objectives.loss_output import LossOutput
from bertsmith.objectives.masked_lm import measure_pieces


class SpanBoundaryLoss(nn.Module):
    """Mean of -log p(true piece | both boundaries, its place in the span) over the M hidden pieces, in nats."""

    def forward(self, logits: Tensor, labels: Tensor, *, total: int | None = None) -> LossOutput:
        """Measures predictions.

        Args:
            logits: [M, V] of any float dtype, decoded from `SpanBoundaryHead`.
            labels: [M] int64, the true ids.
            total: as in `MaskedLMLoss`.

        Returns:
            The loss, with sums `sbo_loss` and `sbo_accuracy`.
        """
        return measure_pieces("sbo", logits, labels, total=total)
