"""The optimizer, its parameter groups and its schedule.

The paper's (appendix A.2) is Adam with decoupled weight decay, and a rate that rises linearly over the warm-up and
then falls linearly to zero. The others are files of `optimizers`, and there are two more shapes of the schedule. Parts
of a model can learn at rates of their own: `parameter_groups` says which and how fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import Linear
from bertsmith.model import Backbone, layer_numbers
from bertsmith.train.optimizers.kind import optimizer_named

Schedule = Literal["linear", "cosine", "trapezoid"]
TRAPEZOID_FALL = 0.2
"""Share of the steps in which a trapezoid falls."""


def build_optimizer(
    model: nn.Module,
    *,
    weight_decay: float,
    layer_decay: float = 1.0,
    kind: str = "adamw",
    epsilon: float = 1e-6,
    matrix_factor: float = 1.0,
) -> torch.optim.Optimizer:
    """Returns an optimizer over the groups of `parameter_groups`; with its defaults two, of which one decays.

    Args:
        model: its parameters are float32.
        weight_decay: 0.01 in the paper.
        layer_decay: as in `parameter_groups`.
        kind: `adamw`, or another file of `optimizers`.
        epsilon: added to the root of the second moment.
        matrix_factor: rate of hidden matrices by that of the rest, for an optimizer with a rule of its own for them.

    Returns:
        An optimizer with learning rate 0; the trainer sets the rate before every step.

    Raises:
        ConfigError: as `parameter_groups`; there is no such optimizer; or it is for matrices and none learns.
    """
    chosen = optimizer_named(kind)
    matrices = hidden_matrices(model) if chosen.takes_matrices else {}
    if chosen.takes_matrices and not matrices:
        raise ConfigError(f"optimizer {kind!r} is for matrices that give states, and none of them learns; use adamw")
    groups = parameter_groups(model, 0.0, weight_decay=weight_decay, layer_decay=layer_decay, matrices=matrices)
    for group in groups:
        group["rate_factor"] *= matrix_factor if group["stacked"] else 1.0
    return chosen.build(groups, epsilon)


def hidden_matrices(model: nn.Module) -> dict[Tensor, int]:
    """Returns the matrices that give states and learn, with the number of matrices that each weight holds.

    They are those of the blocks, and the layers of pooler and heads that give states in turn, as the layer before the
    masked-LM decoder does. An embedding is none: it is a table of vectors. What gives the scores of labels or pieces is
    none either: its rows are read one by one.
    """
    backbones = [module for module in model.modules() if isinstance(module, Backbone)]
    blocks = [block for each in backbones for block in each.encoder.blocks]
    in_blocks = {parameter for block in blocks for parameter in block.parameters()}
    widths = {width for each in backbones for width in (each.config.hidden_size, each.config.embedding_size)}
    layers = [module for module in model.modules() if isinstance(module, Linear) and module.weight.requires_grad]
    # 预测头里的方阵也算：留给 AdamW，整个模型都学得慢（600 步时 4.80 对 4.60 nat）
    return {each.weight: each.stacked for each in layers if each.weight in in_blocks or each.out_features in widths}


def parameter_groups(
    model: nn.Module,
    learning_rate: float,
    *,
    layer_decay: float = 1.0,
    weight_decay: float = 0.01,
    matrices: Mapping[Tensor, int] | None = None,
) -> list[dict[str, Any]]:
    """Sorts the parameters that learn by how fast they learn and whether they decay.

    Lower layers hold what all texts share and need less change than the top, which the task reads (Howard and Ruder
    2018, "discriminative fine-tuning"). Frozen parameters are in no group. Create the optimizer after every change
    of the model's shape.

    Args:
        model: any model; it may hold modules besides its encoder.
        learning_rate: that of the heads and the pooler, at least 0.
        layer_decay: the rate of each layer is that of the layer above it times this, in (0, 1]; with L layers the
            embeddings get `learning_rate * layer_decay ** (L + 1)`.
        weight_decay: of matrices, at least 0; biases and norms do not decay.
        matrices: weights that go into groups of their own, and how many matrices each holds; None for none.

    Returns:
        Groups as `torch.optim` takes them: `params`, `weight_decay`, `lr`, `rate_factor`, by which `lr` differs from
        `learning_rate`, for a schedule, and `stacked`, the matrices in each weight of a group of `matrices`, 0 in the
        others. Those that decay come first.

    Raises:
        ConfigError: a number is out of range, or every parameter is frozen.
    """
    check_rates(learning_rate, layer_decay, weight_decay)
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
        step: steps taken.
        peak: the highest rate.
        warmup_steps: length of the rise.
        total_steps: the step after which the rate is 0.
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


def check_rates(learning_rate: float, layer_decay: float, weight_decay: float) -> None:
    """Makes sure that rates can be used.

    Raises:
        ConfigError: a number is out of range.
    """
    for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
        if not 0.0 <= value < math.inf:
            raise ConfigError(f"{name} {value} must be 0 or more")
    if not 0.0 < layer_decay <= 1.0:
        raise ConfigError(f"layer_decay {layer_decay} is outside (0, 1]")
