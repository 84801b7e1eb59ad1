"""LAMB: Adam whose step is scaled, matrix by matrix, to the size of the matrix (You et al. 2020, algorithm 2).

With batches of thousands of sequences Adam's rate has to grow with the batch, and then the matrices whose gradients
are large for their weights are thrown off first. LAMB moves each matrix by a share of its own norm, so that one rate
suits all of them; the paper trains BERT in 76 minutes with batches of 32,768.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from bertsmith.train.optimizers.kind import Groups, OptimizerKind


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments, with bias correction and decoupled weight decay.

    Biases and norms (parameters of one axis) take the plain Adam step, as in the authors' code: they start at 0 or 1,
    and a step by a share of that says nothing.

    Attributes:
        found_inf: scalar float32 on the device of the weights; at 1 a step leaves everything as it is. None is 0.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float) -> None:
        """Prepares the optimizer.

        Args:
            groups: parameters by group, each with its own `weight_decay`.
            lr: the rate η, a share of a matrix's norm per step.
            betas: decay of the mean of the gradients and of their squares.
            eps: added to the root of the second moment.
        """
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient.

        Args:
            closure: not supported; there for the signature of `torch.optim`.
        """
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        learned: float | Tensor = 1.0
        if self.found_inf is not None:
            # 跳过的一步：梯度当作 0，各处的变化再乘以 0
            gradient, learned = torch.where(self.found_inf > 0, 0.0, gradient), 1 - self.found_inf
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += learned
        # 步数在 CPU 上就取成整数；在 GPU 上留作张量，取出来要等设备
        steps, (beta1, beta2) = state["step"], group["betas"]
        steps = int(steps) if steps.device.type == "cpu" and self.found_inf is None else steps.clamp(min=1)
        state["exp_avg"].lerp_(gradient, (1 - beta1) * learned)
        state["exp_avg_sq"].mul_(1 - (1 - beta2) * learned).addcmul_(gradient, gradient, value=1 - beta2)
        root = (state["exp_avg_sq"] / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        update = (state["exp_avg"] / (1 - beta1**steps)).div_(root).add_(parameter, alpha=group["weight_decay"])
        # 信任比 ‖x‖/‖u‖：每个矩阵每步移动自身范数的固定比例；范数为 0 时退回普通的 Adam 步
        if parameter.dim() > 1:
            weight_norm, update_norm = parameter.norm(), update.norm()
            trust = torch.where((weight_norm > 0) & (update_norm > 0), weight_norm / update_norm, 1.0)
            update.mul_(trust)
        parameter.add_(update * learned, alpha=-group["lr"])


def build(groups: Groups, epsilon: float) -> torch.optim.Optimizer:
    """Returns LAMB over groups."""
    return Lamb(groups, lr=0.0, betas=(0.9, 0.999), eps=epsilon)


OPTIMIZER = OptimizerKind(build)
