"""The optimizer and its schedule, as in the paper's appendix A.2.

Adam with decoupled weight decay; the rate rises linearly over the warm-up and then falls linearly to zero.
"""

from __future__ import annotations

import torch
from torch import nn


def build_optimizer(model: nn.Module, *, weight_decay: float) -> torch.optim.AdamW:
    """Returns AdamW with two groups: matrices, which decay, and biases and norms, which do not.

    Args:
        model: its parameters are float32.
        weight_decay: 0.01 in the paper.

    Returns:
        An optimizer with learning rate 0; the trainer sets the rate before every step.
    """
    # 偏置和 LayerNorm 都是一维：把它们拉向 0 没有正则化作用，只会妨碍归一化
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-6, fused=True)


def learning_rate_at(step: int, *, peak: float, warmup_steps: int, total_steps: int) -> float:
    """Returns the rate for step `step` (counted from 0): rises to `peak` over the warm-up, then falls to 0.

    Post-norm Transformers need the rise: before the norms have settled, large steps throw them off for good.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * max(0, total_steps - step) / max(1, total_steps - warmup_steps)
