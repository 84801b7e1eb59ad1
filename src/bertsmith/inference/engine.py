"""The engine: many sequences through a model, fast and in order.

Sequences are sorted by length and packed to a budget of tokens, so that a call is never too small to be efficient nor
too large for memory; results come back in the caller's order. Nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertConfig, PretrainedBert
from bertsmith.model.layers import best_compute_dtype, best_device

TOKEN_BUDGET = 4096
"""Tokens per forward call: large enough to keep the matmuls busy, small enough to stay in the caches."""


@dataclass(frozen=True)
class RunsOn:
    """Where and how a pipeline computes.

    Attributes:
        device: None takes the GPU where there is one.
        compute_dtype: of the matmuls; None takes bfloat16 where the hardware has it.
        max_length: most ids in a sequence; 0 takes what the model reads.
    """

    device: torch.device | str | None = None
    compute_dtype: torch.dtype | None = None
    max_length: int = 0

    def length_for(self, config: BertConfig) -> int:
        """Returns the most ids in a sequence that both the model and this setting allow."""
        return min(self.max_length or config.max_position_embeddings, config.max_position_embeddings)


DEFAULT = RunsOn()


class Engine:
    """Runs a model over lists of id sequences."""

    def __init__(
        self,
        model: PretrainedBert,
        runs_on: RunsOn = DEFAULT,
    ) -> None:
        """Prepares a model for prediction.

        Args:
            model: any of `bertsmith.model`'s models; it is put into evaluation mode.
            runs_on: where and how.
        """
        self.device = best_device() if runs_on.device is None else torch.device(runs_on.device)
        self.model: PretrainedBert = model.to(self.device).eval()
        self.model.set_compute_dtype(runs_on.compute_dtype or best_compute_dtype(self.device))

    @torch.inference_mode()
    def run(
        self,
        sequences: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None,
        read: Callable[[Any, RaggedBatch], Tensor],
    ) -> Tensor:
        """Maps every sequence to one row.

        Args:
            sequences: N non-empty sequences of ids with their special tokens.
            token_type_ids: segments in the same lengths, or None for all 0.
            read: calls the model on a batch of n sequences and returns [n, ...].

        Returns:
            [N, ...] float32 on the CPU, in the order of `sequences`.
        """

        def split(batch: RaggedBatch) -> Sequence[Tensor]:
            return read(self.model, batch).float().cpu().unbind()

        return torch.stack(self._rows(sequences, token_type_ids, split))

    @torch.inference_mode()
    def run_tokens(
        self,
        sequences: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None,
        read: Callable[[Any, RaggedBatch], Tensor],
    ) -> list[Tensor]:
        """Maps every token to one row.

        Args:
            sequences: as in `run`.
            token_type_ids: likewise.
            read: calls the model on a batch of T tokens and returns [T, ...].

        Returns:
            For each sequence, in order, [S, ...] float32 on the CPU.
        """

        def split(batch: RaggedBatch) -> Sequence[Tensor]:
            rows: Sequence[Tensor] = read(self.model, batch).float().cpu().split(batch.lengths)
            return rows

        return self._rows(sequences, token_type_ids, split)

    def _rows(
        self,
        sequences: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None,
        read: Callable[[RaggedBatch], Sequence[Tensor]],
    ) -> list[Tensor]:
        """Returns what `read` gives for each sequence, in the caller's order."""
        rows: list[Tensor] = [torch.empty(0)] * len(sequences)
        for pack in packs_by_length([len(sequence) for sequence in sequences], TOKEN_BUDGET):
            types = None if token_type_ids is None else [token_type_ids[index] for index in pack]
            batch = RaggedBatch.from_sequences([sequences[index] for index in pack], types).to(self.device)
            for index, result in zip(pack, read(batch), strict=True):
                rows[index] = result
        return rows


def packs_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Groups sequences of similar length.

    Args:
        lengths: of N sequences.
        budget: most tokens in a group; a longer single sequence makes a group of its own.

    Yields:
        Lists of indices; together every index once.
    """
    pack: list[int] = []
    used = 0
    # 按长度排序：同一批内长度相近，注意力里几乎没有填充
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if pack and used + lengths[index] > budget:
            yield pack
            pack, used = [], 0
        pack.append(index)
        used += lengths[index]
    if pack:
        yield pack
