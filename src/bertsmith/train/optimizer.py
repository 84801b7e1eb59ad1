"""The optimizer, its parameter groups, its schedule, and the average of the weights that it moves.

The paper's (appendix A.2) is Adam with weight decay, which the released code decouples from the gradient, and a rate
that rises linearly over the warm-up and then falls linearly to zero. A new entry of `OPTIMIZERS` becomes a value of
`--optimizer`.

With a large rate and small batches each step moves the weights past where they should be, and the scores of one step
and the next differ. Their average over many steps does not move like that (Polyak and Juditsky 1992; Izmailov et al.
2018). `follow_weights` keeps it in the state of the optimizer, so that a resumed run keeps it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import Linear
from bertsmith.kernels.processor import ASYNCHRONOUS
from bertsmith.model import Backbone, layer_numbers
from bertsmith.settings import named
from bertsmith.train.muon import Muon

Schedule = Literal["linear", "cosine", "trapezoid"]
TRAPEZOID_FALL = 0.2
"""Share of the steps in which a trapezoid falls."""

AVERAGE = "average"
"""Name of the average in the state of a weight."""

UPDATES = 16
"""Of the average within its horizon: after every step it would cost a few per cent of a large model's time."""

Groups = list[dict[str, Any]]
"""Parameters by group, as `parameter_groups` makes them."""


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer by its name.

    Attributes:
        build: makes it of groups and of `eps`, which is added to roots of second moments.
        takes_matrices: whether it moves `hidden_matrices`, in groups of their own, by its own rule and `matrix_rate`.
    """

    build: Callable[..., torch.optim.Optimizer]
    takes_matrices: bool = False


def build_optimizer(
    model: nn.Module,
    *,
    weight_decay: float,
    layer_decay: float = 1.0,
    kind: str = "adamw",
    epsilon: float = 1e-6,
    matrix_factor: float = 1.0,
) -> torch.optim.Optimizer:
    """Returns an optimizer over the groups of `parameter_groups`, with rate 0: the trainer sets it before every step.

    Args:
        weight_decay: 0.01 in the paper.
        matrix_factor: rate of hidden matrices by that of the rest, for an optimizer with a rule of its own for them.
    """
    chosen = optimizer_named(kind)
    matrices = hidden_matrices(model) if chosen.takes_matrices else {}
    if chosen.takes_matrices and not matrices:
        raise ConfigError(f"optimizer {kind!r} is for matrices that give states, and none of them learns; use adamw")
    groups = parameter_groups(model, 0.0, weight_decay=weight_decay, layer_decay=layer_decay, matrices=matrices)
    for group in groups:
        group["rate_factor"] *= matrix_factor if group["stacked"] else 1.0
    return chosen.build(groups, eps=epsilon)


def hidden_matrices(model: nn.Module) -> dict[Tensor, int]:
    """Returns the matrices that give states and learn, with the number of matrices that each weight holds.

    They are those of the blocks, and the layers of pooler and heads that give states in turn. An embedding is none: it
    is a table of vectors, and a matrix that takes them to the width of the states only says how they are written. What
    gives the scores of labels or pieces is none either: its rows are read one by one.
    """
    backbones = [module for module in model.modules() if isinstance(module, Backbone)]
    blocks = [block for each in backbones for block in each.encoder.blocks]
    in_blocks = {parameter for block in blocks for parameter in block.parameters()}
    # 因式分解的嵌入里那个矩阵不算：正交的大步会把数出来的词向量转得面目全非（5.71 对 5.40 nat）
    embedding = {parameter for each in backbones for parameter in each.embedding.parameters()}
    widths = {width for each in backbones for width in (each.config.hidden_size, each.config.embedding_size)}
    layers = [module for module in model.modules() if isinstance(module, Linear) and module.weight.requires_grad]
    # 预测头里的方阵也算：留给 AdamW，整个模型都学得慢（600 步时 4.80 对 4.60 nat）
    giving = [each for each in layers if each.weight in in_blocks or each.out_features in widths]
    return {each.weight: each.stacked for each in giving if each.weight not in embedding}


def parameter_groups(
    model: nn.Module,
    learning_rate: float,
    *,
    layer_decay: float = 1.0,
    weight_decay: float = 0.01,
    matrices: Mapping[Tensor, int] | None = None,
) -> list[dict[str, Any]]:
    """Sorts the parameters that learn by how fast they learn and whether they decay; frozen ones are in no group.

    Lower layers hold what all texts share and need less change than the top, which the task reads (Howard and Ruder
    2018, "discriminative fine-tuning").

    Args:
        learning_rate: that of the heads and the pooler, at least 0.
        layer_decay: the rate of each layer is that of the layer above it times this, in (0, 1]; with L layers the
            embeddings get `learning_rate * layer_decay ** (L + 1)`.
        weight_decay: of matrices, at least 0; biases and norms do not decay.
        matrices: weights that go into groups of their own, and how many matrices each holds; None for none.

    Returns:
        Groups as `torch.optim` takes them, those that decay first. `rate_factor` is `lr` by `learning_rate`, for a
        schedule; `stacked` the matrices in each weight, 0 outside `matrices`.
    """
    for what, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
        if not 0.0 <= value < math.inf:
            raise ConfigError(f"{what} {value} must be 0 or more")
    if not 0.0 < layer_decay <= 1.0:
        raise ConfigError(f"layer_decay {layer_decay} is outside (0, 1]")
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not learning:
        raise ConfigError("every parameter is frozen; there is nothing to train")
    heights = layer_numbers(model)
    top = max(heights.values())
    groups: dict[tuple[bool, float, int], dict[str, Any]] = {}
    for name, parameter in learning.items():
        factor, stacked = layer_decay ** (top - heights[name]), (matrices or {}).get(parameter, 0)
        # 偏置和 LayerNorm 都是一维：把它们拉向 0 没有正则化作用，只会妨碍归一化
        decays = parameter.dim() > 1
        group = {
            "params": [],
            "weight_decay": weight_decay if decays else 0.0,
            "rate_factor": factor,
            "lr": learning_rate * factor,
            "stacked": stacked,
        }
        groups.setdefault((not decays, factor, stacked), group)["params"].append(parameter)
    # 先排会衰减的：组的先后决定优化器状态里的编号，断点续训靠它对上
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def learning_rate_at(step: int, *, peak: float, warmup_steps: int, total_steps: int, schedule: str = "linear") -> float:
    """Returns the rate for step `step` (counted from 0): rises to `peak` over the warm-up, then falls to 0.

    Post-norm Transformers need the rise: before the norms have settled, large steps throw them off for good.

    Args:
        schedule: `linear`, the paper's; `cosine`, half a wave (Loshchilov and Hutter 2017); `trapezoid`, the peak
            until the last fifth of the steps, then a linear fall.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    falling = max(1, total_steps - warmup_steps)
    if schedule == "trapezoid":
        # 预热很长时，下降段最多占预热之后的全部步数
        falling = min(falling, max(1, round(TRAPEZOID_FALL * total_steps)))
    left = min(1.0, max(0, total_steps - step) / falling)
    return peak * (0.5 * (1.0 - math.cos(math.pi * left)) if schedule == "cosine" else left)


class Lamb(torch.optim.Optimizer):
    """Adam whose step is scaled, matrix by matrix, to the size of the matrix (You et al. 2020, algorithm 2).

    With batches of thousands of sequences Adam's rate has to grow, and then the matrices whose gradients are large for
    their weights are thrown off first. LAMB moves each matrix by a share of its own norm, so that one rate suits all of
    them; the paper trains BERT in 76 minutes with batches of 32,768. Biases and norms take the plain Adam step, as in
    the authors' code: they start at 0 or 1, and a step by a share of that says nothing.

    Attributes:
        found_inf: scalar float32 on the device of the weights; at 1 a step leaves everything as it is. None is 0.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, eps: float) -> None:
        """Prepares the optimizer; the rate of a group is a share of a matrix's norm per step, `eps` is Adam's."""
        # `capturable`：读回状态时，torch 按它把步数放回权重所在的设备
        defaults = {"lr": 0.0, "betas": (0.9, 0.999), "eps": eps, "weight_decay": 0.0, "capturable": True}
        super().__init__(groups, defaults)
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient; `closure` is there for the signature of `torch.optim` alone."""
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


def _sgd(groups: Groups, **_of_adam: float) -> torch.optim.Optimizer:
    """Plain gradient descent, for tables such as word vectors: moments would move a word long after its sentence."""
    # CUDA 上用融合版：不必问主机就能跳过一步
    on_cuda = any(parameter.device.type in ASYNCHRONOUS for group in groups for parameter in group["params"])
    return torch.optim.SGD(groups, lr=0.0, fused=True if on_cuda else None)


OPTIMIZERS = {
    # `fused`：权重与矩一遍读写完
    "adamw": OptimizerKind(functools.partial(torch.optim.AdamW, lr=0.0, betas=(0.9, 0.999), fused=True)),
    "lamb": OptimizerKind(Lamb),
    "muon": OptimizerKind(Muon, takes_matrices=True),
    "sgd": OptimizerKind(_sgd),
}
"""Name → optimizer. Its state is a dictionary of tensors for each parameter, so that `train.state` can save it."""


def optimizer_named(name: str) -> OptimizerKind:
    """Returns an optimizer; raises `ConfigError` where there is none of that name."""
    return named(name, OPTIMIZERS, "optimizer")


def follow_weights(optimizer: torch.optim.Optimizer, step: int, horizon: float) -> None:
    """Moves the exponential averages over `horizon` steps towards the weights; call it after each `step`, from 1."""
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
