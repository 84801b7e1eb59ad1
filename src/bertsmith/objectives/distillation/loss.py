"""What a distillation loss is, and the registry in which each is found by its name.

soft        the teacher's distribution over the pieces at every mask (Sanh et al. 2019)
states      the direction of the last states (Sanh et al. 2019); teacher and student are equally wide
relations   how queries, keys and values relate within the last layer (Wang et al. 2021); any widths
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from torch import Tensor

from bertsmith.model import Backbone
from bertsmith.options import named


@dataclass(frozen=True)
class Seen:
    """What a model made of a batch.

    Attributes:
        logits: [M, V] of the pieces at the masks.
        states: [T, H] of the last layer.
        qkv: [T, 3, A, D], queries, keys and values of the last layer, before any rotation.
        lengths: of the N sequences, T in all.
    """

    logits: Tensor
    states: Tensor
    qkv: Tensor
    lengths: list[int]


class DistillationLoss(ABC):
    """Compares a student with its teacher.

    Attributes:
        name: by which it is chosen; its figure is `NAME_loss`.
        title: in reports.
        weight: by which it is multiplied.
        is_equally_wide: whether both must have states of the same width.
        is_of_masks: whether its items are the masks, and both models must predict pieces; else the tokens.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    weight: ClassVar[float] = 1.0
    is_equally_wide: ClassVar[bool] = False
    is_of_masks: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, student: Seen, teacher: Seen, temperature: float) -> tuple[Tensor, int]:
        """Returns the sum over items, float32, and how many items there are.

        Args:
            student: with gradients.
            teacher: without.
            temperature: of the soft targets.
        """


@contextmanager
def recorded_qkv(backbone: Backbone) -> Iterator[list[Tensor]]:
    """Yields a list that ends with the output [T, 3 A D] of the last block's projection."""
    seen: list[Tensor] = []

    def keep(_module: Any, _given: Any, output: Tensor) -> None:
        # 不求梯度时旋转就地改写它：老师的要先另存，才和学生的一样是旋转之前的
        seen.append(output if output.requires_grad else output.clone())

    # 共享权重的家族里“最后一块”会跑 L 次：取最后一次
    handle = backbone.encoder.blocks[-1].attention.qkv.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


_REGISTERED: dict[str, DistillationLoss] = {}


def register(loss: DistillationLoss) -> None:
    """Makes a loss known by its name."""
    _REGISTERED[loss.name] = loss


def distillation_losses() -> dict[str, DistillationLoss]:
    """Returns every loss by its name; the files of this package are the list."""
    package: Any = import_module("bertsmith.objectives.distillation")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(_REGISTERED)


def distillation_loss_named(name: str) -> DistillationLoss:
    """Returns a loss.

    Raises:
        ConfigError: there is none of that name.
    """
    return named(name, distillation_losses(), "teacher loss")
