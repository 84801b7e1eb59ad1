"""Matryoshka: a vector whose first numbers are a vector, too (Kusupati et al. 2022, eq. 1).

Another loss is taken over the vectors cut to each of several widths, and averaged; afterwards `--dims` keeps what an
index has room for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.objectives.vectors.batch import VectorBatch
from bertsmith.objectives.vectors.loss import VectorLoss


class Matryoshka(VectorLoss):
    """The mean of a loss over several widths of the same vectors."""

    def __init__(self, loss: VectorLoss, dims: Sequence[int]) -> None:
        """Wraps a loss.

        Args:
            loss: taken over each width.
            dims: the widths, positive and different.

        Raises:
            ConfigError: they are not.
        """
        if not dims or min(dims) < 1 or len(set(dims)) < len(dims):
            raise ConfigError(f"dims {list(dims)} must be different positive numbers, at least one")
        self.loss, self.dims, self.needs = loss, tuple(dims), loss.needs

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the loss; see `VectorLoss`."""
        return torch.stack([self.loss(vectors[:, :width], batch) for width in self.dims]).mean()
