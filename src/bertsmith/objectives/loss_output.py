"""`LossOutput`: what one batch says about a model, in sums that can be added up over batches.

On a GPU the sums stay there until somebody reads them: reading one makes the host wait until the device has done all it
was given, and then the device waits for the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from bertsmith.kernels.processor import ASYNCHRONOUS

Figure: TypeAlias = "float | Tensor"
"""A number, or a scalar on a GPU that nobody has read yet."""


@dataclass(frozen=True)
class LossOutput:
    """The loss to differentiate, and figures to report.

    Attributes:
        loss: scalar, float32.
        sums: figure → (sum over items, number of items), so that averages over batches of different sizes are exact.
    """

    loss: Tensor
    sums: Mapping[str, tuple[Figure, Figure]]


@dataclass
class RunningAverages:
    """Adds up the sums of many batches."""

    totals: Mapping[str, tuple[Figure, Figure]] = field(default_factory=dict)

    def add(self, sums: Mapping[str, tuple[Figure, Figure]]) -> None:
        """Adds one batch."""
        # 加总“和”与“个数”，最后才相除：各批大小不同，平均数的平均会偏
        totals = dict(self.totals)
        for name, (value, count) in sums.items():
            old_value, old_count = totals.get(name, (0.0, 0))
            totals[name] = (old_value + value, old_count + count)
        self.totals = totals

    def read(self) -> dict[str, tuple[float, int]]:
        """Returns the totals as numbers, and keeps them so; waits for the device once where they lie there."""
        unread = [each for pair in self.totals.values() for each in pair if isinstance(each, Tensor)]
        # 叠成一个张量再取：有多少个数也只等一次
        numbers = iter(torch.stack([each.double() for each in unread]).tolist() if unread else ())
        found = {}
        for name, pair in self.totals.items():
            value, count = (next(numbers) if isinstance(each, Tensor) else each for each in pair)
            found[name] = (float(value), round(count))
        self.totals = found
        return found

    def averages(self) -> dict[str, float]:
        """Returns figure → average; figures without any item are left out."""
        return {name: value / count for name, (value, count) in self.read().items() if count}


def figure(value: Tensor) -> Figure:
    """Returns a scalar to report: on CUDA unread, in float64, elsewhere as a number."""
    return value.detach().double() if value.device.type in ASYNCHRONOUS else float(value.detach())


def average_of(measures: Iterable[LossOutput]) -> dict[str, float]:
    """Returns the averages over all items of all batches."""
    running = RunningAverages()
    for measure in measures:
        running.add(measure.sums)
    return running.averages()
