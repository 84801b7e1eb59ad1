"""The left-to-right LM loss: every token predicts the next (the ablation of Devlin et al. 2019, §5.1)."""

from __future__ import annotations

from torch import Tensor, nn

from bertsmith.objectives.loss_output import LossOutput
from bertsmith.objectives.masked_lm import measure_pieces


class CausalLMLoss(nn.Module):
    """Mean of -log p(next piece) over all tokens that have a next one, in nats; `[SEP]` is predicted too."""

    def forward(self, logits: Tensor, labels: Tensor, *, total: int | None = None) -> LossOutput:
        """Measures predictions.

        Args:
            logits: [M, V] of any float dtype, from states that have read nothing to their right.
            labels: [M] int64, the next ids.
            total: as in `MaskedLMLoss`.

        Returns:
            The loss, with sums `ltr_loss` and `ltr_accuracy`.
        """
        return measure_pieces("ltr", logits, labels, total=total)
