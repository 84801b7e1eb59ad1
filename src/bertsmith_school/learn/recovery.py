r"""Recovering an attention layer from what goes in and what comes out.

An unknown head computes Z = softmax(X W_Q W_Kᵀ Xᵀ / √D) X W_V (Vaswani et al. 2017, equation 1). Somebody shows us
sequences X and their outputs Z, never the maps. What can be known?

- **W_Q and W_K only as their product** M = W_Q W_Kᵀ: for any invertible R, W_Q R and W_K R⁻ᵀ give the same scores.
- **M only up to what softmax does not see.** Adding to the scores of a row one number c_i for all its keys changes
  nothing. So the data show x_iᵀ M (x_j - x_k) for tokens i, j, k of one sequence, and nothing else of M: with P the
  projection on the span of all tokens and Q that on the span of all differences within a sequence, P M Q is known and
  the rest is free. Where the tokens span all of R^H and so do their differences, that is all of M. Where every token
  meets uᵀx = 1 (a constant feature), u is orthogonal to all differences and M + a uᵀ fits as well, for every a: this is
  the bias of the key, of which softmax takes no notice.
- **W_V on the span of the tokens**: P W_V. Rows of attention add up to 1, so a token on which only c = uᵀx depends is
  still read.
- **The scale √D** cannot be told from the size of M; it must be given, or M / √D is what is meant.
- **Why no more than this is lost.** A sequence of one token shows z = W_Vᵀ x. With W_V known, a sequence of two shows
  z_1 - W_Vᵀ x_2 = a W_Vᵀ (x_1 - x_2), hence the weight a wherever W_Vᵀ (x_1 - x_2) ≠ 0, and
  log(a / (1 - a)) = x_1ᵀ M (x_1 - x_2) / √D: linear equations in M. Longer sequences need as many independent outputs
  as differences, or more of them. Where W_V is 0 nothing of M can be seen; where attention is saturated (weights within
  rounding of 0 and 1) M can be seen only coarsely.

`recover` fits M = B G Cᵀ and W_V = B E by gradients, where the columns of B span the tokens and those of C the
differences: what cannot be seen is 0 from the start and stays so. The columns are scaled to the spread of the data, so
that a direction in which the tokens hardly differ is found in as few steps as the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.seeding import torch_seed

START_SPREAD = 0.3
"""Deviation of the scores of a random start, over the identifiable part."""

STARTS, MAX_STEPS, GOOD_ENOUGH = 4, 2000, 1e-7
"""How often it is tried, gradient evaluations of a try at most, and the error at which no other one is made."""

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Identifiable:
    """What inputs can tell: orthonormal bases of the span of all tokens, [H, r], and of their differences, [H, s]."""

    tokens: Tensor
    differences: Tensor

    @property
    def free_dimensions(self) -> int:
        """How many of the H² numbers of the product stay unknown: H² - r s."""
        return self.tokens.shape[0] ** 2 - self.tokens.shape[1] * self.differences.shape[1]

    def product(self, product: Tensor) -> Tensor:
        """The part of a product [H, H] that shows: P M Q."""
        return self.tokens @ (self.tokens.T @ product @ self.differences) @ self.differences.T

    def value(self, value: Tensor) -> Tensor:
        """The part of a value matrix [H, O] that shows: P W_V."""
        return self.tokens @ (self.tokens.T @ value)


@dataclass(frozen=True)
class Recovery:
    """An estimate of the identifiable part of W_Q W_Kᵀ [H, H] and W_V [H, O].

    The error is the root of the mean squared error over that of the outputs, both about 0: 0 is a perfect fit.
    """

    product: Tensor
    value: Tensor
    error: float
    steps: int
    identifiable: Identifiable


def attend(inputs: Tensor, product: Tensor, value: Tensor, *, head_size: int) -> Tensor:
    """The layer itself: [N, S, H], [H, H] and [H, O] → Z [N, S, O]."""
    scores = inputs @ product @ inputs.transpose(-1, -2) / math.sqrt(head_size)
    return scores.softmax(-1) @ (inputs @ value)


def identifiable(inputs: Tensor) -> Identifiable:
    """Finds what inputs [N, S, H] can tell about a layer; directions of a share below `TOLERANCE` count as absent."""
    tokens = inputs.double()
    # 同一序列内的差：各减去首个词即可张成全部两两之差
    differences = tokens[:, 1:] - tokens[:, :1]
    # 两者用同一把尺子：差若只剩舍入误差，不能算作一个方向
    floor = TOLERANCE * float(torch.linalg.matrix_norm(tokens.flatten(0, 1), 2))
    return Identifiable(_span(tokens.flatten(0, 1), floor), _span(differences.flatten(0, 1), floor))


def recover(inputs: Tensor, outputs: Tensor, *, head_size: int, seed: int = 0) -> Recovery:
    """Estimates the layer that turned inputs into outputs.

    The first start is M = 0, equal attention, with the W_V that fits it best; from there the loss usually falls to 0
    without a bump. Where it does not, starts with random M follow, each with its best W_V.

    Args:
        inputs: [N, S, H], N sequences of S tokens; S at least 2 if anything of M is to be seen.
        outputs: [N, S, O], what the layer made of them.
        head_size: D, of the scale 1/√D.
    """
    _check(inputs, outputs, head_size)
    x, z = inputs.double(), outputs.double()
    known = identifiable(x)
    scale = float(z.square().mean().sqrt())
    source = torch.Generator().manual_seed(torch_seed(seed, "recovery/starts"))
    best: Recovery | None = None
    # 按数据在各方向上的离散程度缩放：方向之间相差悬殊时，梯度法要走上千步
    rows = known.tokens / (x @ known.tokens).square().mean((0, 1)).sqrt()
    columns = known.differences / ((x - x.mean(1, keepdim=True)) @ known.differences).square().mean((0, 1)).sqrt()
    for start in range(STARTS):
        inner = torch.zeros(rows.shape[1], columns.shape[1], dtype=torch.float64)
        if start:
            drawn = torch.randn(inner.shape, generator=source, dtype=torch.float64)
            inner = drawn * START_SPREAD * math.sqrt(head_size / max(1, inner.numel()))
        inner, outer, steps = _descend(x, z / scale, inner, rows, columns, head_size)
        product, value = rows @ inner @ columns.T, rows @ outer
        loss = (attend(x, product, value, head_size=head_size) - z / scale).square().mean()
        found = Recovery(product, value * scale, float(loss.sqrt()), steps, known)
        best = found if best is None or found.error < best.error else best
        if best.error <= GOOD_ENOUGH:
            break
    assert best is not None
    return best


def _descend(
    x: Tensor, z: Tensor, inner: Tensor, rows: Tensor, columns: Tensor, head_size: int
) -> tuple[Tensor, Tensor, int]:
    """Runs L-BFGS, gradient descent that learns the curvature on its way, from one start."""
    mixed = attend(x, rows @ inner @ columns.T, rows, head_size=head_size).flatten(0, 1)
    # 注意力固定时 W_V 是线性最小二乘，直接解出
    outer = torch.linalg.pinv(mixed, rtol=1e-9) @ z.flatten(0, 1)
    parameters = [inner.clone().requires_grad_(), outer.clone().requires_grad_()]
    most = {"max_iter": MAX_STEPS, "max_eval": MAX_STEPS, "history_size": 50}
    exact = {"tolerance_grad": 1e-13, "tolerance_change": 1e-18}
    optimizer = torch.optim.LBFGS(parameters, **most, **exact, line_search_fn="strong_wolfe")  # type: ignore[arg-type]
    steps = 0

    def closure() -> Tensor:
        nonlocal steps
        steps += 1
        optimizer.zero_grad()
        product, value = rows @ parameters[0] @ columns.T, rows @ parameters[1]
        loss = (attend(x, product, value, head_size=head_size) - z).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    inner, outer = (parameter.detach() for parameter in parameters)
    return inner, outer, steps


def _span(rows: Tensor, floor: float) -> Tensor:
    """Returns an orthonormal basis [H, r] of the span of rows [R, H]; singular values up to `floor` count as 0."""
    if not len(rows):
        return rows.new_zeros(rows.shape[-1], 0)
    _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
    basis: Tensor = directions[sizes > floor].T
    return basis


def _check(inputs: Tensor, outputs: Tensor, head_size: int) -> None:
    if inputs.dim() != 3 or outputs.dim() != 3 or inputs.shape[:2] != outputs.shape[:2] or not inputs.numel():
        raise InputError(
            f"inputs {list(inputs.shape)} and outputs {list(outputs.shape)} must be [N, S, H] and [N, S, O], not empty"
        )
    if not (torch.isfinite(inputs).all() and torch.isfinite(outputs).all()):
        raise InputError("inputs and outputs must be finite; there is a NaN or an infinity among them")
    if not (inputs.any() and outputs.any()):
        raise InputError("all inputs or all outputs are 0: they show nothing of the attention")
    if head_size < 1:
        raise InputError(f"head_size {head_size} must be at least 1")


@dataclass(frozen=True)
class Demonstration:
    """A layer of our own, product [H, H] and value [H, O], hidden from `recover`, and what came out."""

    name: str
    recovery: Recovery
    product: Tensor
    value: Tensor
    product_error: float
    seen_product_error: float
    value_error: float


def demonstrate(*, hidden_size: int = 6, head_size: int = 3, seed: int = 0) -> list[Demonstration]:
    """Hides a layer and finds it again, from inputs that show all of it and from two kinds that cannot."""
    source = torch.Generator().manual_seed(torch_seed(seed, "recovery/demonstration"))

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    query, key, value = draw(hidden_size, head_size), draw(hidden_size, head_size), draw(hidden_size, head_size)
    product = query @ key.T / math.sqrt(hidden_size)
    generic = draw(80, 5, hidden_size)
    constant = generic.clone()
    constant[..., 0] = 1
    flat = generic @ draw(hidden_size, hidden_size - 1) @ draw(hidden_size - 1, hidden_size) / hidden_size
    shown = []
    for name, inputs in (("generic", generic), ("a constant feature", constant), ("rank H - 1", flat)):
        outputs = attend(inputs, product, value, head_size=head_size)
        found = recover(inputs, outputs, head_size=head_size, seed=seed)
        known = found.identifiable
        true = ((found.product, product), (found.product, known.product(product)), (found.value, known.value(value)))
        shown.append(Demonstration(name, found, product, value, *(_difference(*pair) for pair in true)))
    return shown


def _difference(found: Tensor, true: Tensor) -> float:
    return float((found - true).abs().max() / true.abs().max())
