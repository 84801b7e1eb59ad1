"""The rotation of queries and keys, in one pass over the memory on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rotate(qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns the pairs (x_i, x_{i + D/2}) of queries and keys: (x cos - y sin, y cos + x sin).

    Args:
        qkv: [T, 3, A, D].
        cosine: [T, D/2] float32.
        sine: [T, D/2] float32.

    Returns:
        [T, 3, A, D]; the values as they were.
    """
    if torch.compiler.is_compiling() or qkv.is_cuda:
        return _turned(qkv, cosine, sine)
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
    cosine, sine = cosine[:, None, None].to(qkv.dtype), sine[:, None, None].to(qkv.dtype)
    (left, right), (new_left, new_right) = qkv[:, :2].chunk(2, dim=-1), result[:, :2].chunk(2, dim=-1)
    torch.mul(left, cosine, out=new_left).addcmul_(right, sine, value=-1)
    torch.mul(right, cosine, out=new_right).addcmul_(left, sine)
    result[:, 2] = qkv[:, 2]
    return result
