"""Plain stochastic gradient descent: every weight moves against its own gradient, and nothing else is remembered.

For models of two tables, such as word vectors, whose rows are met now and then: moments would go on moving a word long
after its sentence. Transformers do not learn from it (Zhang et al. 2020).
"""

from __future__ import annotations

import torch

from bertsmith.kernels.processor import ASYNCHRONOUS
from bertsmith.train.optimizers.kind import Groups, OptimizerKind


def build(groups: Groups, _epsilon: float) -> torch.optim.Optimizer:
    """Returns torch's own; on CUDA the fused one, which can leave a step out without being asked by the host."""
    on_cuda = any(parameter.device.type in ASYNCHRONOUS for group in groups for parameter in group["params"])
    return torch.optim.SGD(groups, lr=0.0, fused=True if on_cuda else None)


OPTIMIZER = OptimizerKind(build)
