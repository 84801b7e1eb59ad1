"""How fast the machine multiplies matrices of the model's shapes: the yardstick for speeds to expect and to judge."""

from __future__ import annotations

import statistics
import time

import torch

from bertsmith.kernels.matmul import linear

MEASURED_SECONDS = 0.2
"""Time given to one measurement, after a warm-up."""

MOST_TOKENS, MOST_HIDDEN = 8192, 4096
"""Larger matmuls are measured at this size: the rate changes little beyond it, time and memory do."""


def measure_matmul_flops(
    hidden_size: int, tokens: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> float:
    """Measures the matmul that costs a block most, [T, H] x [H, 4H] of the feed-forward layer.

    Divided by the operations per token it gives the tokens per second that a model could reach if it did nothing but
    matmuls; the share of it that a run does reach is its model FLOPs utilisation.

    Args:
        hidden_size: H.
        tokens: T, the tokens of a batch.
        dtype: of both matrices.
        device: where to multiply.

    Returns:
        Operations per second, a multiply-add being two; the median of at least three measurements.
    """
    device = torch.device(device)
    rows, width = min(tokens, MOST_TOKENS), min(hidden_size, MOST_HIDDEN)
    # 用自己的随机数生成器：测速不得改变全局随机状态，否则会影响训练的可复现性
    generator = torch.Generator(device).manual_seed(0)
    states = torch.randn(rows, width, generator=generator, device=device, dtype=dtype)
    weight = torch.randn(4 * width, width, generator=generator, device=device, dtype=dtype)
    # GPU 上的调用是异步的：一次连发多个再等待，测到的才是计算而不是启动的时间
    repeats = 20 if device.type == "cuda" else 1
    durations: list[float] = []
    with torch.inference_mode():
        _seconds_of_matmuls(states, weight, repeats)
        while len(durations) < 3 or sum(durations) < MEASURED_SECONDS:
            durations.append(_seconds_of_matmuls(states, weight, repeats))
    return repeats * 2 * rows * width * 4 * width / statistics.median(durations)


def _seconds_of_matmuls(states: torch.Tensor, weight: torch.Tensor, repeats: int) -> float:
    if states.is_cuda:
        torch.cuda.synchronize(states.device)
    start = time.perf_counter()
    for _ in range(repeats):
        linear(states, weight, None)
    if states.is_cuda:
        torch.cuda.synchronize(states.device)
    return time.perf_counter() - start
