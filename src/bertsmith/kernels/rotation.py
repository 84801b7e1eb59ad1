"""The rotation of queries and keys: in place where nothing is learned, and on the CPU in parts that fit its cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 256
"""Tokens that are turned at a time on the CPU: their numbers stay in the cache between the four products."""


def rotate(qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns the pairs (x_i, x_{i + D/2}) of queries and keys: (x cos - y sin, y cos + x sin).

    Args:
        qkv: [T, 3, A, D]; it is overwritten while no gradient is taken.
        cosine: [T, D/2] float32.
        sine: [T, D/2] float32.

    Returns:
        [T, 3, A, D]; the values as they were.
    """
    if torch.compiler.is_compiling():
        return _turned(qkv, cosine, sine)
    if not torch.is_grad_enabled():
        return _turn_into(qkv, qkv, cosine, sine)
    result: Tensor = _Rotation.apply(qkv, cosine, sine)  # type: ignore[no-untyped-call]
    return result


def _turned(qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The equation as it reads; a compiler fuses it."""
    cosine, sine = cosine[:, None, None].to(qkv.dtype), sine[:, None, None].to(qkv.dtype)
    (left, right), value = qkv[:, :2].chunk(2, dim=-1), qkv[:, 2:]
    return torch.cat([torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1), value], dim=1)


class _Rotation(torch.autograd.Function):
    """The same without the intermediate tensors; its gradient is the rotation back."""

    @staticmethod
    def forward(context: Any, qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        context.save_for_backward(cosine, sine)
        return _turn_into(torch.empty_like(qkv), qkv, cosine, sine)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = context.saved_tensors
        # 旋转矩阵是正交的：反向就是转回去
        gradient = gradients[0]
        return _turn_into(torch.empty_like(gradient), gradient, cosine, -sine), None, None


def _turn_into(result: Tensor, qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Writes the rotated queries and keys, and the values, into `result`, which may be `qkv` itself."""
    cosine, sine = cosine[:, None, None].to(qkv.dtype), sine[:, None, None].to(qkv.dtype)
    rows = ROWS if qkv.device.type == "cpu" else max(1, len(qkv))
    for old, new, cos, sin in zip(*(each.split(rows) for each in (qkv, result, cosine, sine)), strict=True):
        (left, right), (new_left, new_right) = old[:, :2].chunk(2, dim=-1), new[:, :2].chunk(2, dim=-1)
        # 左半边先另存：就地旋转时，右半边还要用旧的左半边
        turned = (left * cos).addcmul_(right, sin, value=-1)
        torch.mul(right, cos, out=new_right).addcmul_(left, sin)
        new_left.copy_(turned)
        if result is not qkv:
            new[:, 2] = old[:, 2]
    return result
