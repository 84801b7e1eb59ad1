"""The batch of every fine-tuning task: sequences, and what is to be predicted of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.pairs import NO_LABEL

__all__ = ["NO_LABEL", "LabelledBatch"]


@dataclass(frozen=True)
class LabelledBatch:
    """N sequences as tokens, and their `labels`; what these look like is up to the objective."""

    tokens: RaggedBatch
    labels: Tensor

    def to(self, device: torch.device | str) -> LabelledBatch:
        """Returns the same batch on another device."""
        return LabelledBatch(self.tokens.to(device), self.labels.to(device))
