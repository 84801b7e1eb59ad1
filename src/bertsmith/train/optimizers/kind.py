"""What the trainer knows of an optimizer: how it is made, and whether hidden matrices are a matter of their own to it.

An optimizer is a file of this package with an `OPTIMIZER`; its name is that of the file. Its state is a dictionary of
tensors for each parameter, so that `train.state` can save it without knowing which optimizer it belongs to.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

import bertsmith.train.optimizers as package
from bertsmith.errors import ConfigError

Groups = list[dict[str, Any]]
"""Parameters by group, as `train.optimizer.parameter_groups` makes them."""


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer by its name.

    Attributes:
        build: makes it of groups and of the number that is added to roots of second moments.
        takes_matrices: whether it has a rule of its own for the matrices that give states
            (`train.optimizer.hidden_matrices`), which are then in groups of their own, with a rate of their own
            (`matrix_rate`).
    """

    build: Callable[[Groups, float], torch.optim.Optimizer]
    takes_matrices: bool = False


def optimizer_names() -> list[str]:
    """Returns the names of all optimizers: the files of this package, but for this one."""
    return [module.name for module in pkgutil.iter_modules(package.__path__) if module.name != "kind"]


def optimizer_named(name: str) -> OptimizerKind:
    """Returns an optimizer.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in optimizer_names():
        raise ConfigError(f"optimizer {name!r} is unknown; use {', '.join(optimizer_names())}")
    found: OptimizerKind = import_module(f"{package.__name__}.{name}").OPTIMIZER
    return found
