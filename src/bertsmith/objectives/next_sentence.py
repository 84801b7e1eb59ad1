"""The next-sentence loss: does B follow A, or is it random? (Devlin et al. 2019, §3.1 task 2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.objectives.loss_output import LossOutput


class NSPLoss(nn.Module):
    """Mean binary cross-entropy over the sequences that carry a label, in nats; chance is log 2 = 0.693."""

    def forward(self, logits: Tensor, labels: Tensor, *, total: int | None = None) -> LossOutput:
        """Measures predictions.

        Args:
            logits: [N, 2] of any float dtype; class 0 is "is next", class 1 "is random".
            labels: [N] int64, 0 or 1, or -100 for a sequence that has no second segment.
            total: labelled sequences of the whole batch, where these are a share of it: the losses of the shares
                then add up to the mean over the batch. None where this is all.

        Returns:
            The loss (0 when no sequence has a label), with sums `nsp_loss` and `nsp_accuracy`.
        """
        return measure_labels("nsp", logits, labels, total=total)


def measure_labels(name: str, logits: Tensor, labels: Tensor, *, total: int | None) -> LossOutput:
    """Measures predictions of pairs; sums `NAME_loss` and `NAME_accuracy`, the rest as in `NSPLoss`."""
    labelled = labels != NO_LABEL
    count = int(labelled.sum())
    # 先求和再除：一批中没有任何标签时损失为 0，而不是 NaN
    loss = F.cross_entropy(logits.float(), labels, ignore_index=NO_LABEL, reduction="sum")
    hits = int(((logits.detach().argmax(-1) == labels) & labelled).sum())
    sums = {f"{name}_loss": (float(loss.detach()), count), f"{name}_accuracy": (float(hits), count)}
    return LossOutput(loss / max(1, count if total is None else total), sums)
