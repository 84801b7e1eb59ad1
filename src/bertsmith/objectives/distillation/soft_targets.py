"""Soft targets: at every mask the student learns the teacher's whole distribution, not the one right piece.

That `paper` would have fitted as well as `book`, and `whale` not at all, is what a teacher knows beyond the text
(Hinton et al. 2015, §2). Both distributions are flattened by a temperature, so that small probabilities count; the
gradients shrink with its square, by which the loss is multiplied.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from bertsmith.objectives.distillation.loss import DistillationLoss, Seen, register


class SoftTargets(DistillationLoss):
    """T² · KL(teacher ‖ student) of the pieces, in nats; the weight is that of DistilBERT's released training."""

    name, title = "soft", "soft-target"
    weight = 5.0
    is_of_masks = True

    def __call__(self, student: Seen, teacher: Seen, temperature: float) -> tuple[Tensor, int]:
        """Compares the logits at the masks; see `DistillationLoss`."""
        # 温度越高，老师的分布越平：次优的词也分到看得见的概率
        own, other = (seen.logits.float().div(temperature).log_softmax(-1) for seen in (student, teacher))
        loss = F.kl_div(own, other, reduction="sum", log_target=True)
        return loss * temperature**2, len(own)


register(SoftTargets())
