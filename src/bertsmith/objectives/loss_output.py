"""`LossOutput`: what one batch says about a model, in sums that can be added up over batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class LossOutput:
    """The loss to differentiate, and figures to report.

    Attributes:
        loss: scalar, float32.
        sums: figure → (sum over items, number of items), so that averages over batches of different sizes are exact.
    """

    loss: Tensor
    sums: Mapping[str, tuple[float, int]]


@dataclass
class RunningAverages:
    """Adds up the sums of many batches."""

    totals: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, sums: Mapping[str, tuple[float, int]]) -> None:
        """Adds one batch."""
        # 加总“和”与“个数”，最后才相除：各批大小不同，平均数的平均会偏
        for name, (value, count) in sums.items():
            old_value, old_count = self.totals.get(name, (0.0, 0))
            self.totals[name] = (old_value + value, old_count + count)

    def averages(self) -> dict[str, float]:
        """Returns figure → average; figures without any item are left out."""
        return {name: value / count for name, (value, count) in self.totals.items() if count}


def average_of(measures: Iterable[LossOutput]) -> dict[str, float]:
    """Returns the averages over all items of all batches."""
    running = RunningAverages()
    for measure in measures:
        running.add(measure.sums)
    return running.averages()
