"""The one matmul of the network, `hidden @ weight.T + bias`, by the fastest library for it on this processor.

torch multiplies float32 on x86 with MKL, which keeps its AVX-512 kernels for Intel's own processors. oneDNN, which is
in the same package and does torch's bf16, compiles its kernels for whatever processor it finds: on an AMD EPYC with
AVX-512 it multiplies float32 more than twice as fast, to the same accuracy. The choice depends on the processor alone,
never on a measurement, so that a run that is resumed computes the same bits.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_FEWEST_ROWS = 16
"""Below this a call of oneDNN costs more than it saves."""
_WIDEST_OUTPUT = 8192
"""Above this (the vocabulary) MKL is faster at the gradient of the weights."""


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies states with a weight matrix, in the dtype of the states.

    Args:
        hidden: [..., in] float32 or bf16.
        weight: [out, in] float32; or `packed`, in the dtype of the states.
        bias: [out] float32, or None.

    Returns:
        [..., out].
    """
    if weight.is_mkldnn:
        return _multiply(hidden, weight, None if bias is None else bias.to(hidden.dtype))
    if hidden.dtype != torch.float32:
        return F.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype))
    # 编译与导出时走标准算子：它们认不得 oneDNN 的内部算子
    if hidden.is_cuda or hidden.numel() < _FEWEST_ROWS * hidden.shape[-1] or torch.compiler.is_compiling():
        return F.linear(hidden, weight, bias)
    if not onednn_is_faster():
        return F.linear(hidden, weight, bias)
    product: Tensor = _OneDnnLinear.apply(hidden, weight, bias)  # type: ignore[no-untyped-call]
    return product


def packed(weight: Tensor) -> Tensor:
    """Lays a matrix out as oneDNN's kernels read it, for weights that are used many times without a gradient.

    Args:
        weight: [out, in] bf16.

    Returns:
        The same numbers in an opaque layout, up to a third faster to multiply with; `weight` itself where there is
        no oneDNN to read them, or the processor has no instructions for its bf16 kernels.
    """
    if weight.is_cuda or not _has_bf16_kernels():
        return weight
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return reordered


@functools.cache
def _has_bf16_kernels() -> bool:
    """Tells whether oneDNN multiplies packed bf16 here: it needs AVX-512, or AVX2 with conversions to bf16."""
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def onednn_is_faster() -> bool:
    """Tells whether oneDNN beats torch's default at float32 here: on x86 processors that are not Intel's."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        return False
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpuinfo.is_file() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return "GenuineIntel" not in cpuinfo.read_text(encoding="utf-8", errors="replace")


class _OneDnnLinear(torch.autograd.Function):
    """`F.linear` in float32 through oneDNN, forward and backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # 冻结的权重不要梯度，也就不必留下输入：适配器训练的内存主要省在这里
        ctx.save_for_backward(hidden if ctx.needs_input_grad[1] else None, weight)
        return _multiply(hidden, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        need_hidden, need_weight, need_bias = ctx.needs_input_grad
        to_hidden = _multiply(gradient, weight.t(), None) if need_hidden else None
        to_weight = None
        if need_weight:
            columns = hidden.flatten(0, -2)
            wide = rows.shape[-1] > _WIDEST_OUTPUT
            to_weight = rows.t() @ columns if wide else _multiply(rows.t(), columns.t(), None)
        return to_hidden, to_weight, rows.sum(0) if need_bias else None


def _multiply(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """`left @ right.T + bias`: [..., K] and [N, K] give [..., N]."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product
