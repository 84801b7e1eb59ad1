"""The batch of every loss over vectors: texts, which of them belong together, and what a teacher says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch


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
        """Lays texts out as a batch.

        Args:
            texts: ids of the queries, of their positives, and of the negatives.
            identities: as the attribute.
            owners: as the attribute; there are as many negatives.
            targets: as the attribute; None for nothing.
        """
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
