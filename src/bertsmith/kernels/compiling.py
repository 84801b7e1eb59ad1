"""`torch.compile` for the blocks of a model on a GPU, and whether it can write kernels here."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from bertsmith.errors import ConfigError

MOST_GRAPHS = 64
"""Of the blocks of a family: of every kind in training and evaluation, with and without dropout. torch's own limit of 8
would leave some kinds uncompiled without a word."""


def require_compiler(device: torch.device | str) -> None:
    """Makes sure that kernels can be compiled, by compiling one, before a run begins that needs them."""
    kind = torch.device(device).type
    if kind != "cuda":
        # CPU 上我们自己的内核已经更快，编译反而会绕开它们
        raise ConfigError(f"--compile is for GPUs, and this run computes on {kind}; leave it out")
    try:
        torch.compile(torch.square)(torch.ones(8, device=device))
    except Exception as error:
        # 缺什么各不相同（Triton、C 编译器、Python.h、太旧的 GPU）：编译器自己说得最清楚
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"--compile cannot compile here ({said[0]}); it needs Triton, gcc and Python's headers, or leave it out"
        ) from error


def compile_each(blocks: Iterable[nn.Module]) -> None:
    """Lets `torch.compile` fuse what every block does around its matmuls; see `PretrainedModel.compile_blocks`."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, MOST_GRAPHS)
    # 层本身就是编译的单位：DDP 不必再按梯度桶去切
    config.optimize_ddp = False
    for block in blocks:
        block.compile(dynamic=True)
