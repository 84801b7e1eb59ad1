"""The sentence-order loss: do two consecutive segments stand in their order? (Lan et al. 2020, §3.1).

Next-sentence prediction can be solved by topic alone; here both segments have one topic, so that only coherence tells.
The head is that of next-sentence prediction.
"""

from __future__ import annotations

from torch import Tensor, nn

from bertsmith.objectives.loss_output import LossOutput
from bertsmith.objectives.next_sentence import measure_labels


class SOPLoss(nn.Module):
    """Mean binary cross-entropy over the sequences that carry a label, in nats; chance is log 2 = 0.693."""

    def forward(self, logits: Tensor, labels: Tensor, *, total: int | None = None) -> LossOutput:
        """Measures predictions.

        Args:
            logits: [N, 2] of any float dtype; class 0 is "in order", class 1 "swapped".
            labels: [N] int64, 0 or 1, or -100 for a sequence that has no second segment.
            total: as in `NSPLoss`.

        Returns:
            The loss, with sums `sop_loss` and `sop_accuracy`.
        """
        return measure_labels("sop", logits, labels, total=total)
