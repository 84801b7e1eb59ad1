"""Skipped batches that a GPU knows of and the host does not yet.

To ask after every step whether its loss was finite would make the host wait for the device, and the device for the
host. The device keeps the account instead; the host reads it now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.objectives.loss_output import Figure


@dataclass(frozen=True)
class Skips:
    """What happened since the account was last read.

    Attributes:
        skipped: batches that were skipped.
        in_a_row: those since the last one that was learned from.
        most_in_a_row: the longest such row.
    """

    skipped: int
    in_a_row: int
    most_in_a_row: int


class UnreadSkips:
    """The account, on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._account: Tensor | None = None  # [3] int64: the attributes of `Skips`

    def count(self, learned: Tensor, *, in_a_row: int) -> None:
        """Adds a step.

        Args:
            learned: scalar bool, whether the weights moved.
            in_a_row: batches skipped in a row before the first step that is not read yet.
        """
        if self._account is None:
            # 用填充而不是拷贝造张量：从主机拷贝会等设备
            row = torch.full((), in_a_row, dtype=torch.int64, device=self.device)
            self._account = torch.stack([torch.zeros_like(row), row, row])
        skipped, row, most = self._account.unbind()
        row = torch.where(learned, 0, row + 1)
        self._account = torch.stack([skipped + ~learned, row, torch.maximum(most, row)])

    def read(self) -> Skips | None:
        """Returns the account and begins another; None where no step was taken. Waits for the device."""
        if self._account is None:
            return None
        found = Skips(*self._account.tolist())
        self._account = None
        return found


def only_if(learned: Tensor, sums: Mapping[str, tuple[Figure, Figure]]) -> dict[str, tuple[Figure, Figure]]:
    """Returns sums that are 0 where a batch was skipped: a sum that is not finite must not spoil the average."""
    return {name: (_only_if(learned, value), _only_if(learned, count)) for name, (value, count) in sums.items()}


def _only_if(learned: Tensor, value: Figure) -> Tensor:
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=torch.float64, device=learned.device)
    return torch.where(learned, value, 0)
