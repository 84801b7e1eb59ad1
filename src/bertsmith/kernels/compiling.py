"""Whether `torch.compile` can write kernels for a GPU here."""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch

from bertsmith.errors import ConfigError
from bertsmith.kernels.processor import ASYNCHRONOUS


def require_compiler(device: torch.device | str) -> None:
    """Makes sure that kernels can be compiled, before a run begins that needs them.

    Args:
        device: where the model computes.

    Raises:
        ConfigError: it is no GPU, or what compiles for it is missing.
    """
    kind = torch.device(device).type
    if kind not in ASYNCHRONOUS:
        # CPU 上我们自己的内核已经更快，编译反而会绕开它们
        raise ConfigError(f"--compile is for GPUs, and this run computes on {kind}; leave it out")
    if importlib.util.find_spec("triton") is None:
        raise ConfigError("--compile needs Triton, which torch's packages for CUDA bring; install one, or leave it out")
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        raise ConfigError("--compile needs a C compiler: install gcc, or name one in the variable CC, or leave it out")
