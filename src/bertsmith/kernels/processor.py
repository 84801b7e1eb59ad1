"""What the processor is good at, as far as the choice of a kernel depends on it.

What an instruction set can do and what it is worth are two things: the same instruction takes one cycle on one make and
two on another. What is said here was measured, and depends on the processor alone, never on a measurement of the
moment, so that a run that is resumed computes the same bits.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

ASYNCHRONOUS = ("cuda", "meta")
"""Devices ahead of which the host runs, so that reading a number back makes it wait. `meta`, whose tensors have shapes
and no numbers, stands for CUDA in tests: whatever reads a number fails there."""


@functools.cache
def is_intel() -> bool:
    """Tells whether the processor is of Intel's make; False where the system does not say."""
    listed = Path("/proc/cpuinfo")
    return listed.is_file() and "GenuineIntel" in listed.read_text(encoding="utf-8", errors="replace")


def multiplies_bf16_faster() -> bool:
    """Tells whether the processor multiplies bf16 matrices faster than float32 ones.

    With AMX, by far. AVX512-BF16 runs at full rate on AMD's processors and at a quarter of it on Intel's: there bf16
    reaches half of float32's rate (Xeon of the fourth generation whose AMX is hidden: 84 and 155 GFLOP/s a core).
    """
    found = torch.cpu.get_capabilities()
    # 指令集里有 bf16 不等于快：英特尔没有 AMX 时，bf16 只有 float32 的一半
    return bool(found.get("amx_bf16")) or (bool(found.get("avx512_bf16")) and not is_intel())


@functools.cache
def onednn_multiplies_float32_faster() -> bool:
    """Tells whether oneDNN beats torch's default at float32: on x86 with AVX-512 that is not Intel's, on Linux.

    MKL, torch's default, keeps its AVX-512 kernels for Intel's processors. With AVX2 alone MKL is as fast forwards and
    up to 1.7 times as fast at the gradient of the weights.
    """
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        return False
    if not torch.cpu.get_capabilities().get("avx512_f"):
        return False
    return platform.machine() == "x86_64" and Path("/proc/cpuinfo").is_file() and not is_intel()
