"""The masked-LM loss: cross-entropy over the vocabulary at the masked positions (Devlin et al. 2019, §3.1 task 1)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.objectives.loss_output import LossOutput


class MaskedLMLoss(nn.Module):
    """Mean of -log p(true piece) over the M chosen positions, in nats."""

    def forward(self, logits: Tensor, labels: Tensor, *, total: int | None = None) -> LossOutput:
        """Measures predictions.

        Args:
            logits: [M, V] of any float dtype.
            labels: [M] int64, the true ids.
            total: positions in the whole batch, where these are a share of it: the losses of the shares then add up
                to the mean over the batch. None where this is all.

        Returns:
            The loss, with sums `mlm_loss` and `mlm_accuracy`.
        """
        return measure_pieces("mlm", logits, labels, total=total)


def measure_pieces(name: str, logits: Tensor, labels: Tensor, *, total: int | None) -> LossOutput:
    """Measures predictions of pieces; sums `NAME_loss` and `NAME_accuracy`, the rest as in `MaskedLMLoss`."""
    # 交叉熵在 float32 中算：bf16 只有 8 位有效数字，三万项的 softmax 求和会失真
    count = len(labels)
    # 求和再除：一批里万一没有可遮盖的词，损失是 0 而不是 NaN
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    hits = int((logits.detach().argmax(-1) == labels).sum())
    sums = {f"{name}_loss": (float(loss.detach()), count), f"{name}_accuracy": (float(hits), count)}
    return LossOutput(loss / max(1, count if total is None else total), sums)
