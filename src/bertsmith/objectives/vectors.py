"""The losses over vectors, found by their names, and the objective: texts to vectors to loss.

A large batch need not be encoded at once (gradient caching: Gao et al. 2021, "Scaling Deep Contrastive Learning Batch
Size under Memory Limited Setup"). The vectors of all texts are computed in small groups whose activations are thrown
away; the loss is taken over all vectors; in the backward pass each group is computed again, with the same draws of
dropout, to carry the gradient of its vectors on. The gradient is that of the whole batch, the memory that of a group.
That is checkpointing with the encoder as the one segment, so `torch.utils.checkpoint` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.objectives.pretraining import LossOutput
from bertsmith.settings import named


@dataclass(frozen=True)
class VectorBatch:
    """N queries, a positive for each, and M hard negatives: K = 2N + M texts.

    Attributes:
        tokens: the K texts, the shortest first.
        places: [K] int64, where in `tokens` each text stands: the queries, then their positives, then the negatives.
        identities: [K] int64, equal for texts that say the same: copies of one text, or texts of one class.
        owners: [M] int64, the query that each negative was chosen for.
        targets: float32: a score for each pair [N], the margin of each negative [M], a teacher's vectors [K, D], or
            nothing [0], as the loss needs.
    """

    tokens: RaggedBatch
    places: Tensor
    identities: Tensor
    owners: Tensor
    targets: Tensor

    @classmethod
    def of(
        cls,
        texts: Sequence[Sequence[int]],
        identities: Sequence[int],
        owners: Sequence[int] = (),
        targets: Tensor | None = None,
    ) -> VectorBatch:
        """Lays texts out as a batch."""
        # 按长度排好：长短相近的挨在一起，注意力少填充；梯度缓存也能按长度切块
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        places = torch.empty(len(texts), dtype=torch.int64)
        places[torch.tensor(order)] = torch.arange(len(texts))
        return cls(
            RaggedBatch.from_sequences([texts[number] for number in order]),
            places,
            torch.tensor(identities),
            torch.tensor(owners, dtype=torch.int64),
            torch.empty(0) if targets is None else targets,
        )

    @property
    def num_queries(self) -> int:
        """N."""
        return (len(self.places) - len(self.owners)) // 2

    @property
    def false_negatives(self) -> Tensor:
        """[N, N + M] bool: the positives and negatives that do answer a query, but are not its own positive.

        They say the same as its positive or as the query itself, or are the positive of a copy of the query.
        """
        count = self.num_queries
        queries, texts = self.identities[:count], self.identities[count:]
        same = (texts[:count, None] == texts) | (queries[:, None] == texts)
        # 同一个查询的另一个正例也不是负例
        same[:, :count] |= queries[:, None] == queries
        same[:, :count].fill_diagonal_(False)
        return same

    def to(self, device: torch.device | str) -> VectorBatch:
        """Returns the same batch on another device."""
        return VectorBatch(*(getattr(self, one.name).to(device) for one in fields(self)))


Needs = Literal["positives", "scores", "margins", "teacher"]
"""What a loss reads beside the texts: nothing, a score of each pair, a margin of each negative, a teacher's vectors."""
Read = Callable[[Any, RaggedBatch], Tensor]
"""Maps a model and N sequences to their vectors [N, H]."""

_REGISTRY: dict[str, type[VectorLoss]] = {}


class VectorLoss:
    """A loss over the vectors of a batch."""

    name: ClassVar[str]
    needs: Needs

    def __init_subclass__(cls, *, name: str = "", **more: Any) -> None:
        """Registers a loss under its name; one without a name wraps another."""
        super().__init_subclass__(**more)
        if name:
            cls.name = name
            _REGISTRY[name] = cls

    def __init__(self, temperature: float = 0.05) -> None:
        """Prepares a loss; cosines are divided by `temperature` where they stand in an exponent."""
        if not 0.0 < temperature < float("inf"):
            raise ConfigError(f"temperature {temperature} must be a positive number; 0.05 is usual")
        self.temperature = temperature

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the scalar loss of `vectors` [K, H] float32: queries, positives, negatives; of any length."""
        raise NotImplementedError


def vector_losses() -> dict[str, type[VectorLoss]]:
    """Returns every loss by its name."""
    return dict(sorted(_REGISTRY.items()))


def vector_loss_named(name: str) -> type[VectorLoss]:
    """Returns a loss; raises `ConfigError` where there is none of that name."""
    return named(name, vector_losses(), "loss")


class VectorObjective:
    """A loss over the vectors that a model gives the texts of a batch."""

    def __init__(self, loss: VectorLoss, read: Read, mini_batch_size: int = 0) -> None:
        """Puts the parts together; `mini_batch_size` texts are encoded at a time, 0 for all at once."""
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
    unit = F.normalize(vectors, dim=-1)
    count = batch.num_queries
    return (unit[:count] * unit[count : 2 * count]).sum(-1)


class CoSENT(VectorLoss, name="cosent"):
    """log(1 + Σ exp((cos_i - cos_j) / τ)) over all two pairs i, j of which j has the higher score (Su 2022).

    A smooth count of the pairs that stand in the wrong order. Spearman's correlation, by which such models are
    measured, asks for the order alone, and so does this; the scale of the scores does not matter.
    """

    needs = "scores"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the scalar loss."""
        cosines = pair_cosines(vectors, batch) / self.temperature
        gaps = cosines[:, None] - cosines
        out_of_order = gaps[batch.targets[:, None] < batch.targets]
        # 开头的 0 就是公式里的 1：一批里分数全都相同时损失为 0，而不是负无穷
        return torch.logsumexp(torch.cat([gaps.new_zeros(1), out_of_order]), 0)


class CosineRegression(VectorLoss, name="cosine"):
    """Mean squared difference between cosines of pairs and their scores in [0, 1] (Reimers and Gurevych 2019, §3)."""

    needs = "scores"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the scalar loss."""
        return F.mse_loss(pair_cosines(vectors, batch), batch.targets)


class InfoNCE(VectorLoss, name="info-nce"):
    """Mean of -log p(own positive | query) and -log p(own query | positive), in nats.

    A softmax over the cosines of a query with all texts of the batch, its own positive being the right class (van den
    Oord et al. 2018, eq. 4; the other positives as negatives: Henderson et al. 2017, §4.2); and the same from a
    positive to all queries, so that both sides are told apart (Radford et al. 2021, figure 3). Hard negatives are
    further columns of the first softmax (Karpukhin et al. 2020, §3.2).
    """

    needs = "positives"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the scalar loss."""
        unit, count = F.normalize(vectors, dim=-1), batch.num_queries
        scores = unit[:count] @ unit[count:].T / self.temperature
        # 说的是同一件事的文本不是负例：不遮住它们，就等于教模型把对的推开
        scores = scores.masked_fill(batch.false_negatives, -torch.inf)
        own = torch.arange(count, device=scores.device)
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores[:, :count].T, own)) / 2


class MarginMSE(VectorLoss, name="margin-mse"):
    """Mean squared difference between margins of cosines and those of the teacher (Hofstätter et al. 2020, §3.2).

    The teacher is usually a cross-encoder, which reads query and text together; its scores live on a scale of their
    own, so what is learned is the difference between two of them. The paper compares dot products; here it is cosines,
    with the teacher's scores brought to [0, 1].
    """

    needs = "margins"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the scalar loss."""
        unit, count = F.normalize(vectors, dim=-1), batch.num_queries
        negatives = (unit[:count][batch.owners] * unit[2 * count :]).sum(-1)
        margins = pair_cosines(vectors, batch)[batch.owners] - negatives
        # 一批里可能恰好一个反例也没有：那时损失是 0，而不是 NaN
        return (margins - batch.targets).square().sum() / max(1, len(margins))


class SimilarityDistillation(VectorLoss, name="similarities"):
    """Mean squared difference between the cosines of all two texts and those of a teacher (Tung and Mori 2019, eq. 4).

    Cosines and not the teacher's numbers, so that teacher and student may have vectors of different widths.
    """

    needs = "teacher"

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the scalar loss."""
        own, wanted = (F.normalize(each, dim=-1) for each in (vectors, batch.targets))
        # 对角线恒为 1，不教任何东西：只取两两不同的文本
        others = ~torch.eye(len(own), dtype=torch.bool, device=own.device)
        return F.mse_loss((own @ own.T)[others], (wanted @ wanted.T)[others])


class Matryoshka(VectorLoss):
    """Mean of a loss over vectors cut to several widths; `--dims` may then keep one (Kusupati et al. 2022, eq. 1)."""

    def __init__(self, loss: VectorLoss, dims: Sequence[int]) -> None:
        if not dims or min(dims) < 1 or len(set(dims)) < len(dims):
            raise ConfigError(f"dims {list(dims)} must be different positive numbers, at least one")
        self.loss, self.dims, self.needs = loss, tuple(dims), loss.needs

    def __call__(self, vectors: Tensor, batch: VectorBatch) -> Tensor:
        """Returns the scalar loss."""
        return torch.stack([self.loss(vectors[:, :width], batch) for width in self.dims]).mean()
