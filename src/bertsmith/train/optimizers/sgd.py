"""Plain stochastic gradient descent: every weight moves against its own gradient, and nothing else is remembered.

For models of two tables, such as word vectors, whose rows are met now and then: moments would go on moving a word long
after its sentence. Transformers do not learn from it (Zhang et al. 2020).
"""

from __future__ import annotations

import torch

from bertsmith.train.optimizers.kind import Groups, OptimizerKind


def build(groups: Groups, _epsilon: float) -> torch.optim.Optimizer:
    """Returns torch's own; off the CPU the fused one, which can leave a step out without being asked by the host."""
    on_cpu = all(parameter.device.type == "cpu" for group in groups for parameter in group["params"])
    return torch.optim.SGD(groups, lr=0.0, fused=None if on_cpu else True)


OPTIMIZER = OptimizerKind(build)
