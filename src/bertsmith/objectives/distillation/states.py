"""Last states: those of the student are to point where the teacher's point (Sanh et al. 2019, §3)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from bertsmith.objectives.distillation.loss import DistillationLoss, Seen, register


class States(DistillationLoss):
    """1 − cosine of the last states of every token, in [0, 2]."""

    name, title = "states", "last-state"
    is_equally_wide = True

    def __call__(self, student: Seen, teacher: Seen, temperature: float) -> tuple[Tensor, int]:  # noqa: ARG002
        """Compares the states [T, H]; see `DistillationLoss`."""
        own, other = (seen.states.float() for seen in (student, teacher))
        return (1 - F.cosine_similarity(own, other, dim=-1)).sum(), len(own)


register(States())
