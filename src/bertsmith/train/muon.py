"""Muon: every hidden matrix moves by an orthogonal matrix, all other parameters by AdamW (Jordan et al. 2024).

A gradient has a few large directions and many small ones; Adam, which scales number by number, mostly follows the large
ones. Muon keeps the directions of the momentum and makes all of them equally long: from U S Vᵀ it moves by U Vᵀ. No
singular values are computed: a few polynomial steps drive all of them towards 1 (`orthogonalized`).

A weight that holds several matrices is moved matrix by matrix (`Linear.stacked`), and those of one shape in one batched
matmul; `torch.optim.Muon` moves one whole weight after the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from bertsmith.kernels.layers import best_compute_dtype

MOMENTUM = 0.95
"""Share of the momentum that stays at a step."""

POLYNOMIALS = (
    (8.0934, -23.6204, 17.4462),
    (3.6366, -2.7219, 0.5365),
    (2.6613, -1.9772, 0.4526),
)
"""Coefficients of x, x³ and x⁵ by step: each polynomial is the one nearest to 1 over where the step before leaves the
singular values (Amsel et al. 2025), for values from 0.01 of the matrix's norm. Three such steps bring them between
0.73 and 1.27; Newton and Schulz's one polynomial needs five."""

_NORM_MARGIN = 1.01
"""Rounding must not lift a singular value over 1, where the polynomials grow without bound."""


class Muon(torch.optim.Optimizer):
    """Muon for the groups that say how many matrices their weights hold (`stacked`), AdamW for the others.

    Attributes:
        found_inf: scalar float32 on the device of the weights; at 1 a step leaves everything as it is. None is 0.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, eps: float) -> None:
        """Prepares the optimizer; each group has a `weight_decay`, and those with `stacked` are [out, in] matrices."""
        # `fused` 写在外层的组里：读回状态时，torch 按它把步数放回权重所在的设备
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "stacked": 0, "fused": True})
        others = [{**group} for group in self.param_groups if not group["stacked"]]
        self.found_inf: Tensor | None = None
        self._adamw = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.999), eps=eps, fused=True) if others else None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient."""
        assert closure is None
        if self._adamw is not None:
            others = [group for group in self.param_groups if not group["stacked"]]
            # 两者共用一份状态：存盘与读回只看见一个优化器
            self._adamw.state = self.state
            for inner, group in zip(self._adamw.param_groups, others, strict=True):
                inner["lr"], inner["weight_decay"] = group["lr"], group["weight_decay"]
            self._adamw.found_inf = self.found_inf  # type: ignore[attr-defined]
            self._adamw.step()
        # 跳过坏的一步时，权重不衰减、不移动：两者都乘以 0
        is_finite = 1.0 if self.found_inf is None else 1 - self.found_inf
        by_shape = defaultdict(list)
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None] if group["stacked"] else []
            if not weights:
                continue
            nesterov = self._nesterov_momenta(weights)
            # 一串张量一次交给内核：GPU 上逐个启动几百个小内核，比算它们还久
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"] * is_finite)
            for weight, momentum in zip(weights, nesterov, strict=True):
                # 查询、键、值各是各的矩阵：合在一起正交化会让它们互相牵制
                for matrix, part in zip(*(each.chunk(group["stacked"]) for each in (weight, momentum)), strict=True):
                    by_shape[min(matrix.shape), max(matrix.shape)].append((matrix, part, group["lr"]))
        for matrices in by_shape.values():
            self._move(matrices, is_finite)

    def _nesterov_momenta(self, weights: list[Tensor]) -> list[Tensor]:
        """Updates the momenta of weights with gradients, and returns the Nesterov momenta: one step further."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta: list[Tensor] = [self.state[weight]["momentum"] for weight in weights]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if self.found_inf is not None:
            # 坏的梯度换成动量自己：向自己插值，动量就不动
            bad = self.found_inf > 0
            gradients = [torch.where(bad, old, new) for old, new in zip(momenta, gradients, strict=True)]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        return list(torch._foreach_lerp(gradients, momenta, MOMENTUM))

    @staticmethod
    def _move(matrices: list[tuple[Tensor, Tensor, float]], is_finite: float | Tensor) -> None:
        """Moves matrices of one shape, or its transpose, each with its rate; where `is_finite` is 0 they stay."""
        lying = [momentum if len(momentum) <= momentum.shape[1] else momentum.mT for _, momentum, _ in matrices]
        steps = orthogonalized(torch.stack(lying)) * is_finite
        for (matrix, _, rate), step in zip(matrices, steps, strict=True):
            rows, columns = matrix.shape
            # 正交矩阵让每个输出的变化只随 sqrt(行/列) 变：学习率从此与宽度无关
            matrix.add_(step if rows <= columns else step.mT, alpha=-rate * math.sqrt(max(1.0, rows / columns)))


def orthogonalized(matrices: Tensor) -> Tensor:
    """Returns the nearest orthogonal matrices, roughly: singular values between 0.73 and 1.27; zeros stay zeros.

    Singular values below a hundredth of the matrix's norm end lower: up to 78 times as large as they were. Each step
    maps X = U S Vᵀ to a X + b X Xᵀ X + c (X Xᵀ)² X: singular values a s + b s³ + c s⁵, and the same directions.

    Args:
        matrices: [B, rows, columns] float32, rows ≤ columns.
    """
    # 只要方向：bf16 的精度足够，有原生指令的地方快几倍
    states = matrices.to(best_compute_dtype(matrices.device))
    states = states / (_NORM_MARGIN * states.norm(dim=(-2, -1), keepdim=True)).clamp_min(1e-30)
    for first, third, fifth in POLYNOMIALS:
        gram = states @ states.mT
        gram = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        states = torch.baddbmm(states, gram, states, beta=first)
    return states.to(matrices.dtype)
