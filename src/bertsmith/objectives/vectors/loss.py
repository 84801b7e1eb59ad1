"""The base of the losses over vectors, their registry, and the objective: texts to vectors to loss.

Notable:
- a large batch need not be encoded at once (gradient caching: Gao et al. 2021, "Scaling Deep Contrastive Learning Batch
  Size under Memory Limited Setup"). The vectors of all texts are computed in small groups whose activations are thrown
  away; the loss is taken over all vectors; in the backward pass each group is computed again, with the same draws of
  dropout, to carry the gradient of its vectors on. The gradient is that of the whole batch, the memory that of a group
- that is checkpointing with the encoder as the one segment, so `torch.utils.checkpoint` does it, random state included
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.objectives import vectors as package
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.objectives.vectors.batch import VectorBatch

Needs = Literal["positives", "scores", "margins", "teacher"]
"""What a loss reads beside the texts: nothing, a score of each pair, a margin of each negative, a teacher's vectors."""
Read = Callable[[Any, RaggedBatch], Tensor]
"""Maps a model and N sequences to their vectors [N, H]."""

_REGISTRY: dict[str, type[VectorLoss]] = {}


class VectorLoss:
    """A loss over the vectors of a batch.

    Attributes:
        name: the word on the command line.
        needs: what the batch must hold.
    """

    name: ClassVar[str]
    needs: Needs

    def __init_subclass__(cls, *, name: str = "", **more: Any) -> None:
        """Registers a loss under its name; one without a name wraps another."""
        super().__init_subclass__(**more)
        if name:
            cls.name = name
            _REGISTRY[name] = cls

    def __init__(self, temperature: float = 0.05) -> None:
        """Prepares a loss.

        Args:
            temperature: cosines are divided by it where they stand in an exponent; positive.

        Raises:
            ConfigError: it is not.
        """
        if not 0.0 < temperature < float("inf"):
            raise ConfigError(f"temperature {temperature} must be a positive number; 0.05 is usual")
        self.temperature = temperature

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the scalar loss.

        Args:
            vectors: [K, H] float32, of the queries, their positives and the negatives; of any length.
            batch: what belongs together.
        """
        raise NotImplementedError


def vector_losses() -> dict[str, type[VectorLoss]]:
    """Returns every loss by its name; the files of this package are the list."""
    _import_all()
    return dict(sorted(_REGISTRY.items()))


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def vector_loss_named(name: str) -> type[VectorLoss]:
    """Returns a loss.

    Raises:
        ConfigError: there is none of that name.
    """
    known = vector_losses()
    if name not in known:
        raise ConfigError(f"loss {name!r} is unknown; use one of {', '.join(known)}")
    return known[name]


class VectorObjective:
    """A loss over the vectors that a model gives the texts of a batch."""

    def __init__(self, loss: VectorLoss, read: Read, mini_batch_size: int = 0) -> None:
        """Puts the parts together.

        Args:
            loss: over the vectors.
            read: how the model gives a vector.
            mini_batch_size: texts that are encoded at a time; 0 for all at once.
        """
        self.loss, self.read, self.mini_batch_size = loss, read, mini_batch_size

    def __call__(self, model: Any, batch: VectorBatch) -> LossOutput:
        """Measures a model on a batch; sums `loss`, by query."""
        vectors = self._encode(model, batch.tokens).float()[batch.places]
        loss = self.loss(vectors, batch)
        count = batch.num_queries
        return LossOutput(loss, {"loss": (float(loss.detach()) * count, count)})

    def _encode(self, model: Any, tokens: RaggedBatch) -> Tensor:
        size = self.mini_batch_size
        if not 0 < size < tokens.num_sequences:
            return self.read(model, tokens)
        groups = [
            tokens.sequences(first, min(first + size, tokens.num_sequences))
            for first in range(0, tokens.num_sequences, size)
        ]
        # 前向只留向量；反向时逐组重算，随机状态一并还原，dropout 与第一遍相同
        return torch.cat([checkpoint(self.read, model, group, use_reentrant=False) for group in groups])


def pair_cosines(vectors: Tensor, batch: VectorBatch) -> Tensor:
    """Returns [N], the cosine of each query with its positive."""
    unit = normalize(vectors, dim=-1)
    count = batch.num_queries
    return (unit[:count] * unit[count : 2 * count]).sum(-1)
