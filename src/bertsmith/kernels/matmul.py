"""The one matmul of the network, `hidden @ weight.T + bias`, by the fastest library for it on this processor.

torch multiplies float32 on x86 with MKL, which keeps its AVX-512 kernels for Intel's own processors. oneDNN compiles
its kernels for whatever processor it finds: on an AMD EPYC with AVX-512 it is more than twice as fast, to the same
accuracy. The choice depends on the processor alone, so that a run that is resumed computes the same bits.

For prediction alone there is int8 as well, through oneDNN's kernels: each row of the weight and each row of the states
is stretched over its own 8-bit scale, so that one outlier costs its own row precision and no other.
"""

from __future__ import annotations

import functools
import platform
import statistics
import time
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.processor import onednn_multiplies_float32_faster

_FEWEST_ROWS = 16
"""Below this a call of oneDNN costs more than it saves."""
FEW_ROWS = 48
"""Up to this a packed float32 weight is faster, by a third for a dozen rows: reading the weight is most of the work."""
_WIDEST_OUTPUT = 8192
"""Above this (the vocabulary) MKL is faster at the gradient of the weights."""
_STEPS = 254
"""Of an 8-bit scale, from the least number of a row to the largest; a 255th is left for an integer zero."""
_ROUNDING = 1.5 * 2**23
"""Added to a small float32 it leaves the nearest integer in the lowest bits: the sum has no room for a fraction."""
_LARGEST_INT8 = 127
_SMALLEST_SCALE = 1e-30
"""Of a row of zeros: well above what a processor may flush to zero."""
_OPERATORS = {
    "mkldnn": {
        "_linear_pointwise": "Tensor, Tensor, Optional[Tensor], str, List[Optional[number]], Optional[str]",
        "_reorder_linear_weight": "Tensor, Optional[int]",
        "_is_mkldnn_bf16_supported": "",
    },
    "onednn": {
        "qlinear_prepack": "Tensor, Optional[List[int]]",
        "qlinear_pointwise": "Tensor, float, int, Tensor, Tensor, Tensor, Optional[Tensor], float, int, Optional[int],"
        " str, List[Optional[number]], str",
    },
}
"""torch's own operators that are called here by name, and what they take: they are private, and may change."""


def linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiplies states with a weight matrix, in the dtype of the states: [..., out].

    Args:
        hidden: [..., in] float32 or bf16.
        weight: [out, in] float32; or `packed`, in the dtype of the states.
        bias: [out] float32, or None.
    """
    if weight.is_mkldnn:
        return _multiply(hidden, weight, None if bias is None else bias.to(hidden.dtype))
    if hidden.dtype != torch.float32:
        return F.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype))
    # 编译与导出时走标准算子：它们认不得 oneDNN 的内部算子
    if hidden.device.type != "cpu" or hidden.numel() < _FEWEST_ROWS * hidden.shape[-1] or torch.compiler.is_compiling():
        return F.linear(hidden, weight, bias)
    if not onednn_is_faster():
        return F.linear(hidden, weight, bias)
    product: Tensor = _OneDnnLinear.apply(hidden, weight, bias)  # type: ignore[no-untyped-call]
    return product


def packed(weight: Tensor) -> Tensor:
    """Lays a matrix [out, in], bf16 or float32, out as oneDNN reads it, for weights used many times without a gradient.

    Returns:
        The same numbers in an opaque layout, up to a third faster to multiply with; `weight` itself where there is no
        oneDNN to read them, or the processor has no instructions for its bf16 kernels.
    """
    if weight.device.type != "cpu" or not (
        _has_bf16_kernels() if weight.dtype == torch.bfloat16 else has_packed_kernels()
    ):
        return weight
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return reordered


def _has_operators(library: str) -> bool:
    """Tells whether this version of torch has the private operators of a library, and they take what is given here."""
    for name, taken in _OPERATORS[library].items():
        operator = getattr(getattr(torch.ops, library), name, None)
        # 私有算子换了参数时，按旧的次序传进去可能不报错而算出别的：对不上就当作没有
        if operator is None or ", ".join(str(each.type) for each in operator.default._schema.arguments) != taken:
            return False
    return True


@functools.cache
def has_packed_kernels() -> bool:
    """Tells whether oneDNN multiplies packed float32 here: in torch's builds for x86."""
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return is_x86 and torch.backends.mkldnn.is_available() and _has_operators("mkldnn")


@functools.cache
def _has_bf16_kernels() -> bool:
    """Tells whether oneDNN multiplies packed bf16 here: it needs AVX-512, or AVX2 with conversions to bf16."""
    return has_packed_kernels() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Int8Weight(NamedTuple):
    """A matrix in 8 bits: weight ≈ scales[:, None] * integers.

    Attributes:
        integers: [out, in], in the opaque layout of oneDNN's kernels.
        scales: [out] float32.
        zeros: [out] int32, all 0: the scale of a weight is symmetric.
        row_sums: [out] float32, of the matrix as it is after rounding.
    """

    integers: Tensor
    scales: Tensor
    zeros: Tensor
    row_sums: Tensor


def quantized(weight: Tensor) -> Int8Weight:
    """Rounds a matrix [out, in], float32 on the CPU, to 8 bits, with a scale for each output."""
    largest = weight.abs().amax(1)
    if not _adds_pairs_in_32_bits():
        # 没有 VNNI 的处理器先把相邻两个乘积加进 16 位：同号的一对权重之和超过 128 就会溢出，按最大的一对定标可保精确
        pairs = weight[:, : weight.shape[1] // 2 * 2].unflatten(1, (-1, 2)).sum(2)
        largest = torch.maximum(largest, pairs.abs().amax(1))
    scales = largest.clamp(min=_SMALLEST_SCALE) / _LARGEST_INT8
    integers = torch.round(weight / scales[:, None]).to(torch.int8)
    row_sums = integers.float().sum(1) * scales
    laid_out = torch.ops.onednn.qlinear_prepack(integers, None)
    return Int8Weight(laid_out, scales, torch.zeros_like(scales, dtype=torch.int32), row_sums)


def linear_int8(hidden: Tensor, weight: Int8Weight, bias: Tensor | None) -> Tensor:
    """Multiplies float32 states [T, in] on the CPU with an 8-bit matrix [out, in]: float32 [T, out].

    The states are rounded too. A row x becomes step * (q + zero) with q from 0 to 255, so
    W x + b ≈ step * W q + step * zero * W 1 + b. That the row has a scale of its own makes the result independent of
    what else is in the batch.
    """
    lowest = hidden.amin(1, keepdim=True)
    # 整行相等时步长为 0：垫一个极小的数，不会出现 0/0
    step = ((hidden.amax(1, keepdim=True) - lowest) / _STEPS).clamp_(min=_SMALLEST_SCALE)
    inverse = step.reciprocal()
    # 向下取整：一行两端的数怎样舍入都落在 0 到 255 之内，不必再截断
    zero = torch.floor(lowest * inverse)
    # 一次乘加完成缩放、平移和四舍五入；整数再转字节只取最低的 8 位，比浮点数直接转快四倍
    rounded = torch.addcmul(_ROUNDING - zero, hidden, inverse).view(torch.int32).to(torch.uint8)
    integers, scales, zeros, row_sums = weight
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        rounded, 1.0, 0, integers, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    shifted = zero * step * row_sums if bias is None else torch.addcmul(bias, zero * step, row_sums)
    return torch.addcmul(shifted, product, step, out=shifted)


@functools.cache
def has_int8_kernels() -> bool:
    """Tells whether oneDNN multiplies 8-bit integers here: in torch's builds for x86."""
    return (
        torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64") and _has_operators("onednn")
    )


@functools.cache
def _adds_pairs_in_32_bits() -> bool:
    """Tells whether the processor has VNNI: products of bytes are added in 32 bits, and cannot overflow."""
    found = torch.cpu.get_capabilities()
    return any(bool(found.get(name)) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))


@functools.cache
def onednn_is_faster() -> bool:
    """Tells whether oneDNN beats torch's default at float32 here, and can be called."""
    return onednn_multiplies_float32_faster() and _has_operators("mkldnn")


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


MEASURED_SECONDS = 0.2
"""Time given to one measurement, after a warm-up."""

MOST_TOKENS, MOST_HIDDEN = 8192, 4096
"""Larger matmuls are measured at this size: the rate changes little beyond it, time and memory do."""


def measure_matmul_flops(
    hidden_size: int, tokens: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> float:
    """Measures the matmul that costs a block most, [T, H] x [H, 4H] of the feed-forward layer: operations per second.

    A multiply-add counts two; the result is the median of at least three measurements. Divided by the operations per
    token it gives the tokens per second of a model that does nothing but matmuls; the share of it that a run reaches is
    its model FLOPs utilisation.
    """
    device = torch.device(device)
    rows, width = min(tokens, MOST_TOKENS), min(hidden_size, MOST_HIDDEN)
    # 用自己的随机数生成器：测速不得改变全局随机状态，否则会影响训练的可复现性
    generator = torch.Generator(device).manual_seed(0)
    states = torch.randn(rows, width, generator=generator, device=device, dtype=dtype)
    weight = torch.randn(4 * width, width, generator=generator, device=device, dtype=dtype)
    # GPU 上的调用是异步的：一次连发多个再等待，测到的才是计算而不是启动的时间
    repeats = 20 if device.type == "cuda" else 1
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    durations: list[float] = []
    with torch.inference_mode():
        while len(durations) < 4 or sum(durations[1:]) < MEASURED_SECONDS:
            wait(device)
            start = time.perf_counter()
            for _ in range(repeats):
                linear(states, weight, None)
            wait(device)
            durations.append(time.perf_counter() - start)
    # 第一次是预热
    return repeats * 2 * rows * width * 4 * width / statistics.median(durations[1:])
