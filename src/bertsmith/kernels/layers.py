"""Linear, Embedding, LayerNorm, Dropout, the rotation and the gate, with precision and cost in plain sight.

Parameters are always float32: they are the master weights that the optimizer moves by tiny steps. A matmul runs in the
dtype of the activations it is given; a norm keeps its mean, variance and scale in float32. So one cast, at the end of
the embedding, decides the precision of the whole model, and no hidden context changes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.kernels.matmul import FEW_ROWS, Int8Weight, linear, linear_int8, packed, quantized
from bertsmith.kernels.processor import multiplies_bf16_faster

WeightT = TypeVar("WeightT", Tensor, Int8Weight)


class Linear(nn.Linear):
    """`nn.Linear` that computes in its input's dtype over float32 weights.

    Attributes:
        int8: float32 states meet an 8-bit copy of the weight; only while no gradient is taken, and on the CPU.
        stacked: matrices of one shape that the weight holds, one above the other, such as query, key and value; an
            optimizer that moves whole matrices must know them apart.
    """

    int8 = False
    stacked = 1
    _kept: tuple[tuple[torch.dtype, int, int], Any, Tensor] | None = None

    def reset_parameters(self) -> None:
        """Draws first weights, unless there is no memory for them yet."""
        # meta 张量上的随机初始化没有结果，却会载入整个编译器（约两秒）
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, hidden: Tensor) -> Tensor:
        """Maps [..., in] to [..., out], in the dtype of `hidden`."""
        if self.int8 and not torch.is_grad_enabled() and hidden.dtype == torch.float32 and hidden.device.type == "cpu":
            return linear_int8(hidden, self._keep(torch.int8, lambda: quantized(self.weight.detach())), self.bias)
        return linear(hidden, self._weight_for(hidden), self.bias)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the kept copy out of copies and pickles of the module: it can be made again."""
        return {name: value for name, value in vars(self).items() if name != "_kept"}

    def _weight_for(self, hidden: Tensor) -> Tensor:
        """The weight as the states need it; while no gradient is taken a packed copy is made once and kept."""
        dtype = hidden.dtype
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            # nn.Module 的赋值要查几张表：没有副本就不赋值，短请求里省下百分之二
            if self._kept is not None:
                self._kept = None
            return self.weight.to(dtype)
        # 行数少时时间都花在读权重上：排好的副本顺序读取；行数多时原样更快
        if dtype == self.weight.dtype and (hidden.device.type != "cpu" or hidden.numel() > FEW_ROWS * self.in_features):
            return self.weight
        return self._keep(dtype, lambda: packed(self.weight.to(dtype)))

    def _keep(self, dtype: torch.dtype, make: Callable[[], WeightT]) -> WeightT:
        # 版本号与地址任一变了（优化器改写、换了权重），旧的副本就作废；推理模式下载入的权重没有版本号
        version = 0 if self.weight.is_inference() else self.weight._version
        key = (dtype, version, self.weight.data_ptr())
        # 只读一次再返回局部变量：别的线程这时可能正放掉或换掉副本
        kept = self._kept
        if kept is None or kept[0] != key:
            # 一并留住原权重：它的内存若先还回去，新换上的权重可能恰好落在同一地址，旧副本就会被误用
            kept = self._kept = (key, make(), self.weight.detach())
        weight: WeightT = kept[1]
        return weight


class Embedding(nn.Embedding):
    """`nn.Embedding` that, like `Linear`, can be built without memory at no cost."""

    def reset_parameters(self) -> None:
        """Draws first weights, unless there is no memory for them yet."""
        if not self.weight.is_meta:
            super().reset_parameters()


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` with float32 statistics whatever its input's dtype."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalises the last axis of [..., H] and returns the dtype it was given."""
        if hidden.device.type == "cpu":
            # CPU 的内核直接支持 bf16 输入配 float32 参数，统计量在 float32 中累加，省去两次转换
            return F.layer_norm(hidden, self.normalized_shape, self.weight, self.bias, self.eps)
        normed = F.layer_norm(hidden.float(), self.normalized_shape, self.weight, self.bias, self.eps)
        return normed.to(hidden.dtype)


class Dropout(nn.Module):
    """Sets a share of the elements to zero while training, and scales the rest so that the mean stays.

    torch draws one Bernoulli number after the other on the CPU. Sixteen random bits decide as well, and they come four
    to a word, several times as fast; the share is exact to 1/65536.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, hidden: Tensor) -> Tensor:
        """Drops elements of a tensor of any shape; the identity in evaluation mode or at probability 0."""
        if not self.training or self.probability == 0.0:
            return hidden
        if hidden.device.type != "cpu":
            return F.dropout(hidden, self.probability)
        # 一个 64 位随机整数拆成四个 16 位：与阈值比较即得保留与否，随机性来自 torch 的默认生成器，仍由种子决定
        words = torch.empty(-(-hidden.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        sixteenths = words.view(torch.int16)[: hidden.numel()].view(hidden.shape)
        dropped = round(self.probability * 2**16)
        keep = (sixteenths >= dropped - 2**15).to(hidden.dtype).mul_(2**16 / (2**16 - dropped))
        return hidden * keep


DEVICE_VARIABLE = "BERTSMITH_DEVICE"
"""Environment variable that names the device; `--device` sets it for a command and the processes it starts."""


# 上下文变量而不是环境变量：两个线程可以同时在两块 GPU 上各算各的
_CHOSEN: ContextVar[torch.device | None] = ContextVar("device", default=None)


@contextmanager
def on_device(device: torch.device | str | None) -> Iterator[torch.device]:
    """Lets the block compute on a device such as `cuda:1`, in this thread, and yields it; None is the `best_device`."""
    token = _CHOSEN.set(best_device() if device is None else device_named(str(device)))
    try:
        yield best_device()
    finally:
        _CHOSEN.reset(token)


def best_device() -> torch.device:
    """Returns the device to compute on: that of `on_device`, or of `BERTSMITH_DEVICE`; else a GPU, else the CPU."""
    if (chosen := _CHOSEN.get()) is not None:
        return chosen
    if name := os.environ.get(DEVICE_VARIABLE):
        return device_named(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_named(name: str) -> torch.device:
    """Returns a device of this machine; `ConfigError` where there is none of that name."""
    there = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    there += ["mps"] if torch.backends.mps.is_available() else []
    if name in there or (name == "cuda" and "cuda:0" in there):
        return torch.device(name)
    raise ConfigError(f"device {name!r}: torch sees none of that name here; there are {', '.join(there)}")


def native_precision(device: torch.device | str) -> Literal["float32", "bf16"]:
    """Returns `bf16` where the hardware multiplies it faster, else `float32`."""
    return "bf16" if best_compute_dtype(device) == torch.bfloat16 else "float32"


def best_compute_dtype(device: torch.device | str = "cpu") -> torch.dtype:
    """Returns bfloat16 where the hardware multiplies it faster than float32, else float32."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if multiplies_bf16_faster() else torch.float32


ROWS = 256
"""Tokens that are turned, or gated, at a time on the CPU: their numbers stay in the cache between the steps."""


def rotate(qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns the pairs (x_i, x_{i + D/2}) of queries and keys: (x cos - y sin, y cos + x sin); the values stay.

    Args:
        qkv: [T, 3, A, D], as is the result; it is overwritten while no gradient is taken.
        cosine: [T, D/2] float32, as is `sine`.
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


def gated(states: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Multiplies the activation of the first half of every state by the second half: [T, I] (Shazeer 2020, equation 6).

    Args:
        states: [T, 2 I]; on the CPU its first half is overwritten while no gradient is taken.
    """
    expanded, gate = states.chunk(2, dim=-1)  # each [T, I]
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or states.device.type != "cpu":
        return activation(expanded) * gate
    for part, opening in zip(expanded.split(ROWS), gate.split(ROWS), strict=True):
        # 结果写回左半边：长文本上少占两份 [T, I]，也少读写两遍内存
        torch.mul(activation(part), opening, out=part)
    return expanded
