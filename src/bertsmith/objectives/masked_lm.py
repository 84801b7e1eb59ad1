"""The masked-LM loss: cross-entropy over the vocabulary at the masked positions (Devlin et al. 2019, §3.1 task 1)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.objectives.measure import Measure


class MaskedLMLoss(nn.Module):
    """Mean of -log p(true piece) over the M chosen positions, in nats."""

    def forward(self, logits: Tensor, labels: Tensor) -> Measure:
        """Measures predictions.

        Args:
            logits: [M, V] of any float dtype.
            labels: [M] int64, the true ids.

        Returns:
            The loss, with sums `mlm_loss` and `mlm_accuracy`.
        """
        # 交叉熵在 float32 中算：bf16 只有 8 位有效数字，三万项的 softmax 求和会失真
        count = len(labels)
        # 求和再除：一批里万一没有可遮盖的词，损失是 0 而不是 NaN
        total = F.cross_entropy(logits.float(), labels, reduction="sum")
        hits = int((logits.detach().argmax(-1) == labels).sum())
        sums = {"mlm_loss": (float(total.detach()), count), "mlm_accuracy": (float(hits), count)}
        return Measure(total / max(1, count), sums)
