"""The average of the weights over many steps: the middle of what the last steps scatter around.

With a large rate and small batches each step moves the weights past where they should be, and the scores of one step
and the next differ. Their average does not move like that (Polyak and Juditsky 1992; Izmailov et al. 2018). It is kept
in the state of the optimizer, beside the moments, so that a run that is broken off goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

AVERAGE = "average"
"""Name of the average in the state of a weight."""

UPDATES = 16
"""Of the average within its horizon: after every step it would cost a few per cent of a large model's time."""


def follow_weights(optimizer: torch.optim.Optimizer, step: int, horizon: float) -> None:
    """Moves the averages towards the weights; call it after every step.

    Args:
        optimizer: has taken the step.
        step: how many were taken, from 1 on.
        horizon: steps that the average reaches back, in the sense of an exponential average.
    """
    every = max(1, round(horizon / UPDATES))
    if step % every:
        return
    for group in optimizer.param_groups:
        # 还没有动量的参数没有学过：往空的状态里放东西，优化器会以为它已经初始化
        learned = [weight for weight in group["params"] if optimizer.state.get(weight)]
        for weight in learned:
            if AVERAGE not in optimizer.state[weight]:
                optimizer.state[weight][AVERAGE] = weight.detach().clone()
        if learned:
            averages: list[Tensor] = [optimizer.state[weight][AVERAGE] for weight in learned]
            # 起初是全部步的平均，之后才按指数忘记：开头的权重不会拖住它
            share = min(1.0, max(every / horizon, every / step))
            torch._foreach_lerp_(averages, [weight.detach() for weight in learned], share)


@contextmanager
def averaged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Puts the averages in place of the weights, as far as there are any; afterwards the weights are as before."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    known = [weight for weight in weights if AVERAGE in optimizer.state.get(weight, {})]
    kept = [weight.detach().clone() for weight in known]
    try:
        with torch.no_grad():
            for weight in known:
                weight.copy_(optimizer.state[weight][AVERAGE])
        yield
    finally:
        with torch.no_grad():
            for weight, before in zip(known, kept, strict=True):
                weight.copy_(before)
