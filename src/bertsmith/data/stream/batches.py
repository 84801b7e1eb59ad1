"""`PreTrainingBatch`: what a pre-training step reads, a global batch or one rank's share of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch, sent
from bertsmith.data.stream.masking import MaskedTokens
from bertsmith.data.stream.pairs import NO_LABEL


@dataclass(frozen=True)
class PreTrainingBatch:
    """A batch of sequences and what is to be predicted of them.

    Attributes:
        tokens: N sequences `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`, corrupted where masked LM is the objective.
        masked_positions: [M] int64, indices among the T tokens of the states that predict: the chosen pieces, or for
            left-to-right LM all tokens but the last of each sequence.
        masked_labels: [M] int64, the true ids: of the same token, or of the next one.
        next_sentence_labels: [N] int64, 0 is next (or in order), 1 is random (or swapped), -100 has no second segment.
        masked_spans: [M, 3] int64 with span masking, see `MaskedTokens`; None otherwise.
        masked_draws: [M] float32, a random number in [0, 1) for each masked position, where the objective samples;
            drawn with the batch, so that a share of it, or the batch after a crash, has the same. None otherwise.
        global_masked: M of the global batch.
        global_tokens: T of the global batch. These three are counted here where the batch is the whole one.
    """

    tokens: RaggedBatch
    masked_positions: Tensor
    masked_labels: Tensor
    next_sentence_labels: Tensor
    masked_spans: Tensor | None = None
    masked_draws: Tensor | None = None
    global_masked: int = -1
    global_labelled: int = -1
    global_tokens: int = -1

    def __post_init__(self) -> None:
        if self.global_masked < 0:
            object.__setattr__(self, "global_masked", len(self.masked_labels))
        if self.global_labelled < 0:
            object.__setattr__(self, "global_labelled", int((self.next_sentence_labels != NO_LABEL).sum()))
        if self.global_tokens < 0:
            object.__setattr__(self, "global_tokens", self.tokens.num_tokens)

    @classmethod
    def from_arrays(
        cls,
        masked: MaskedTokens,
        lengths: NDArray[np.int64],
        token_type_ids: NDArray[np.int64],
        next_sentence_labels: NDArray[np.int64],
        counts: tuple[int, int, int] = (-1, -1, -1),
    ) -> PreTrainingBatch:
        """Builds a batch of arrays over N sequences of [N] `lengths` laid end to end.

        `counts` are of the global batch: masked pieces, labelled sequences, tokens; -1 where this is the whole one.
        """
        return cls(
            RaggedBatch.from_flat(masked.input_ids, lengths, token_type_ids),
            torch.from_numpy(masked.positions),
            torch.from_numpy(masked.labels),
            torch.from_numpy(next_sentence_labels),
            None if masked.spans is None else torch.from_numpy(masked.spans),
            None if masked.draws is None else torch.from_numpy(masked.draws),
            *counts,
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickles the batch as arrays: torch would send every tensor through a file of its own."""
        return PreTrainingBatch.from_arrays, self._arrays()

    def _arrays(
        self,
    ) -> tuple[MaskedTokens, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], tuple[int, int, int]]:
        tokens, spans, draws = self.tokens, self.masked_spans, self.masked_draws
        masked = MaskedTokens(
            tokens.input_ids.cpu().numpy(),
            self.masked_positions.cpu().numpy(),
            self.masked_labels.cpu().numpy(),
            None if spans is None else spans.cpu().numpy(),
            None if draws is None else draws.cpu().numpy(),
        )
        return (
            masked,
            tokens.cu_seqlens.diff().long().cpu().numpy(),
            tokens.token_type_ids.cpu().numpy(),
            self.next_sentence_labels.cpu().numpy(),
            (self.global_masked, self.global_labelled, self.global_tokens),
        )

    def to(self, device: torch.device | str) -> PreTrainingBatch:
        """Returns the same batch on another device."""
        tensors: dict[str, Any] = {
            name: sent(one, device) for name, one in vars(self).items() if isinstance(one, Tensor)
        }
        return replace(self, tokens=self.tokens.to(device), **tensors)

    def share(self, rank: int, world_size: int) -> PreTrainingBatch:
        """Returns every `world_size`-th sequence from number `rank` on; the global counts stay."""
        if world_size == 1:
            return self
        masked, lengths, token_type_ids, labels, counts = self._arrays()
        own = np.arange(len(lengths)) % world_size == rank
        kept = np.repeat(own, lengths)
        # 留下的词重新编号：累计计数就是它们在新批次里的下标
        renumbered = np.cumsum(kept) - 1
        chosen = kept[masked.positions]
        spans = None
        if masked.spans is not None:
            spans = masked.spans[chosen]
            spans[:, :2] = renumbered[spans[:, :2]]
        draws = None if masked.draws is None else masked.draws[chosen]
        own_masked = MaskedTokens(
            masked.input_ids[kept], renumbered[masked.positions[chosen]], masked.labels[chosen], spans, draws
        )
        shared = PreTrainingBatch.from_arrays(own_masked, lengths[own], token_type_ids[kept], labels[own], counts)
        return shared.to(self.tokens.input_ids.device)

    def split(self, parts: int) -> list[PreTrainingBatch]:
        """Returns the batch in `parts` (or as many as it has sequences), for gradient accumulation; see `share`."""
        parts = min(parts, self.tokens.num_sequences)
        return [self.share(part, parts) for part in range(parts)]
