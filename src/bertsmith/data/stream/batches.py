"""What a pre-training step reads: a global batch, or one rank's share of it.

Two forms of the same: `DrawnBatch` is plain arrays, which the stream draws and which travel between processes;
`PreTrainingBatch` is tensors, which the model reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.pairs import NO_LABEL


@dataclass(frozen=True)
class PreTrainingBatch:
    """One step's food, or one rank's share of it.

    Attributes:
        tokens: N sequences `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`, corrupted where masked LM is the objective.
        masked_positions: [M] int64, indices among the T tokens of the states that predict: the chosen pieces, or for
            left-to-right LM all tokens but the last of each sequence.
        masked_labels: [M] int64, the true ids: of the same token, or of the next one.
        next_sentence_labels: [N] int64, 0 is next (or in order), 1 is random (or swapped), -100 has no second segment.
        masked_spans: [M, 3] int64 with span masking, see `MaskedTokens`; None otherwise.
        global_masked: M of the global batch.
        global_labelled: labelled sequences of the global batch.
        global_tokens: T of the global batch. These three are counted here where a batch is all there is.
    """

    tokens: RaggedBatch
    masked_positions: Tensor
    masked_labels: Tensor
    next_sentence_labels: Tensor
    masked_spans: Tensor | None = None
    global_masked: int = -1
    global_labelled: int = -1
    global_tokens: int = -1

    def __post_init__(self) -> None:
        """Counts what was not given."""
        if self.global_masked < 0:
            object.__setattr__(self, "global_masked", len(self.masked_labels))
        if self.global_labelled < 0:
            object.__setattr__(self, "global_labelled", int((self.next_sentence_labels != NO_LABEL).sum()))
        if self.global_tokens < 0:
            object.__setattr__(self, "global_tokens", self.tokens.num_tokens)

    def to(self, device: torch.device | str) -> PreTrainingBatch:
        """Returns the same batch on another device."""
        return replace(
            self,
            tokens=self.tokens.to(device),
            masked_positions=self.masked_positions.to(device),
            masked_labels=self.masked_labels.to(device),
            next_sentence_labels=self.next_sentence_labels.to(device),
            masked_spans=None if self.masked_spans is None else self.masked_spans.to(device),
        )

    def split(self, parts: int) -> list[PreTrainingBatch]:
        """Returns the batch in parts of a few sequences each, for gradient accumulation; the global counts stay.

        Args:
            parts: how many; where there are fewer sequences, as many as those.
        """
        tokens = self.tokens
        drawn = DrawnBatch(
            tokens.input_ids.cpu().numpy(),
            tokens.cu_seqlens.diff().long().cpu().numpy(),
            tokens.token_type_ids.cpu().numpy(),
            self.masked_positions.cpu().numpy(),
            self.masked_labels.cpu().numpy(),
            self.next_sentence_labels.cpu().numpy(),
            None if self.masked_spans is None else self.masked_spans.cpu().numpy(),
            self.global_masked,
            self.global_labelled,
            self.global_tokens,
        )
        parts = min(parts, tokens.num_sequences)
        return [drawn.share(part, parts).to_batch().to(tokens.input_ids.device) for part in range(parts)]


class DrawnBatch(NamedTuple):
    """A batch as plain arrays, which travel between processes; the fields are those of `PreTrainingBatch`."""

    input_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    masked_positions: NDArray[np.int64]
    masked_labels: NDArray[np.int64]
    next_sentence_labels: NDArray[np.int64]
    masked_spans: NDArray[np.int64] | None
    global_masked: int
    global_labelled: int
    global_tokens: int

    def to_batch(self) -> PreTrainingBatch:
        """Returns the batch as tensors."""
        return PreTrainingBatch(
            tokens=RaggedBatch.from_flat(self.input_ids, self.lengths, self.token_type_ids),
            masked_positions=torch.from_numpy(self.masked_positions),
            masked_labels=torch.from_numpy(self.masked_labels),
            next_sentence_labels=torch.from_numpy(self.next_sentence_labels),
            masked_spans=None if self.masked_spans is None else torch.from_numpy(self.masked_spans),
            global_masked=self.global_masked,
            global_labelled=self.global_labelled,
            global_tokens=self.global_tokens,
        )

    def share(self, rank: int, world_size: int) -> DrawnBatch:
        """Returns every `world_size`-th sequence from number `rank` on; the global counts stay."""
        own = np.arange(len(self.lengths)) % world_size == rank
        kept = np.repeat(own, self.lengths)
        # 留下的词重新编号：累计计数就是它们在新批次里的下标
        renumbered = np.cumsum(kept) - 1
        chosen = kept[self.masked_positions]
        spans = None
        if self.masked_spans is not None:
            spans = self.masked_spans[chosen]
            spans[:, :2] = renumbered[spans[:, :2]]
        return self._replace(
            input_ids=self.input_ids[kept],
            lengths=self.lengths[own],
            token_type_ids=self.token_type_ids[kept],
            masked_positions=renumbered[self.masked_positions[chosen]],
            masked_labels=self.masked_labels[chosen],
            next_sentence_labels=self.next_sentence_labels[own],
            masked_spans=spans,
        )


def digest(shares: Sequence[PreTrainingBatch]) -> str:
    """Returns a fingerprint of a global batch, which does not depend on how many ranks share it.

    Args:
        shares: the parts of all ranks, in the order of the ranks; one for a single process.
    """
    split = [list(_sequences(share)) for share in shares]
    hashed = hashlib.blake2b(digest_size=16)
    for number in range(sum(len(share) for share in split)):
        hashed.update(split[number % len(split)][number // len(split)])
    return hashed.hexdigest()


def _sequences(batch: PreTrainingBatch) -> Iterator[bytes]:
    """Yields all that a batch says of each of its sequences."""
    targets = torch.full_like(batch.tokens.input_ids, NO_LABEL)
    targets[batch.masked_positions] = batch.masked_labels
    tokens = torch.stack([batch.tokens.input_ids, batch.tokens.token_type_ids, targets]).cpu().numpy()
    bounds = batch.tokens.cu_seqlens.tolist()
    for label, first, last in zip(batch.next_sentence_labels.tolist(), bounds, bounds[1:], strict=False):
        yield tokens[:, first:last].tobytes() + label.to_bytes(8, "little", signed=True)
