"""AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019), the paper's optimizer (appendix A.2)."""

from __future__ import annotations

import torch

from bertsmith.train.optimizers.kind import Groups, OptimizerKind


def build(groups: Groups, epsilon: float) -> torch.optim.Optimizer:
    """Returns torch's own; `fused` reads and writes weights and moments in one pass."""
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=epsilon, fused=True)


OPTIMIZER = OptimizerKind(build)
