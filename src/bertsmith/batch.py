"""`RaggedBatch`: the one shape in which tokens travel.

A batch is its real tokens laid end to end, and nothing else: no padding, so no work on padding and no attention mask
to get wrong. `cu_seqlens` says where each sequence starts and ends. The padded world is met at two bridges only,
`RaggedBatch.from_padded` on the way in and `RaggedBatch.pad` on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError

ValueT = TypeVar("ValueT")


class derived(Generic[ValueT]):  # noqa: N801
    """A property that is computed when first read and then kept, like `functools.cached_property`.

    That one holds a lock before Python 3.12, at which `torch.compile` would break its graph.
    """

    def __init__(self, compute: Callable[[Any], ValueT]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, batch: None, owner: type) -> derived[ValueT]: ...
    @overload
    def __get__(self, batch: object, owner: type) -> ValueT: ...
    def __get__(self, batch: object, owner: type) -> derived[ValueT] | ValueT:
        """Computes the value; the instance then holds it under the same name, so this is not called again."""
        if batch is None:
            return self
        # 推理模式下造出的张量不能参与反向：同一批数据先评估、后训练也要能用，所以在推理模式之外计算
        with torch.inference_mode(False):
            value = self.compute(batch)
        vars(batch)[self.compute.__name__] = value
        return value


@dataclass(frozen=True)
class RaggedBatch:
    """N sequences as T concatenated tokens.

    Attributes:
        input_ids: [T] int64, vocabulary ids.
        token_type_ids: [T] int64, 0 for the first segment, 1 for the second.
        position_ids: [T] int64, counted from 0 within each sequence.
        cu_seqlens: [N+1] int32, cumulative lengths from 0 to T; sequence n is `cu_seqlens[n]:cu_seqlens[n+1]`.
        max_seqlen: length of the longest sequence.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int

    @classmethod
    def from_sequences(
        cls, sequences: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None = None
    ) -> RaggedBatch:
        """Builds a batch from lists of ids.

        Args:
            sequences: N non-empty sequences of ids.
            token_type_ids: segment of every token, in the same lengths; all 0 when None.

        Raises:
            InputError: there is no sequence, one is empty, or the segments have other lengths.
        """
        lengths = np.fromiter((len(sequence) for sequence in sequences), dtype=np.int64, count=len(sequences))
        if token_type_ids is not None and [len(types) for types in token_type_ids] != lengths.tolist():
            raise InputError("token_type_ids and sequences differ in length; give one segment id for every token")
        input_ids = np.concatenate([np.asarray(s, dtype=np.int64) for s in sequences]) if len(sequences) else None
        types = None if token_type_ids is None else np.concatenate([np.asarray(t, np.int64) for t in token_type_ids])
        return cls.from_flat(np.zeros(0, np.int64) if input_ids is None else input_ids, lengths, types)

    @classmethod
    @torch.inference_mode(False)
    def from_flat(
        cls, input_ids: NDArray[np.int64], lengths: NDArray[np.int64], token_type_ids: NDArray[np.int64] | None = None
    ) -> RaggedBatch:
        """Builds a batch from ids that are already laid end to end.

        Args:
            input_ids: [T] integers.
            lengths: [N] integers that add up to T.
            token_type_ids: [T] integers; all 0 when None.

        Raises:
            InputError: there is no sequence, one is empty, or the lengths do not add up.
        """
        if len(lengths) == 0:
            raise InputError("an empty batch: give at least one sequence")
        if lengths.min() <= 0:
            raise InputError(f"sequence {int(lengths.argmin())} of the batch is empty; leave it out")
        cu_seqlens = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=cu_seqlens[1:])
        if cu_seqlens[-1] != len(input_ids):
            raise InputError(f"lengths add up to {cu_seqlens[-1]}, but there are {len(input_ids)} tokens")
        # 位置编号：全局下标减去所属序列的起点，一次向量化得到，无需逐条循环
        positions = np.arange(len(input_ids)) - np.repeat(cu_seqlens[:-1], lengths)
        types = np.zeros(len(input_ids), np.int64) if token_type_ids is None else token_type_ids
        return cls(
            input_ids=torch.from_numpy(input_ids.astype(np.int64)),
            token_type_ids=torch.from_numpy(types.astype(np.int64)),
            position_ids=torch.from_numpy(positions),
            cu_seqlens=torch.from_numpy(cu_seqlens.astype(np.int32)),
            max_seqlen=int(lengths.max()),
        )

    @classmethod
    def from_padded(
        cls, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> RaggedBatch:
        """Drops the padding of a rectangular batch.

        Args:
            input_ids: [N, S] int.
            attention_mask: [N, S], 1 on real tokens; each row is ones followed by zeros. All ones when None.
            token_type_ids: [N, S] int; all 0 when None.

        Raises:
            InputError: the shapes differ, or a row is empty or not padded on the right.
        """
        if input_ids.dim() != 2:
            raise InputError(f"input_ids has shape {list(input_ids.shape)}; a padded batch is [N, S]")
        real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        if real.shape != input_ids.shape or types.shape != input_ids.shape:
            raise InputError("input_ids, attention_mask and token_type_ids must have the same shape [N, S]")
        lengths = real.sum(1)
        if not torch.equal(real, torch.arange(input_ids.shape[1], device=real.device) < lengths[:, None]):
            raise InputError("attention_mask has a gap or left padding; bertsmith takes rows padded on the right only")
        flat = cls.from_flat(input_ids[real].cpu().numpy(), lengths.cpu().numpy(), types[real].cpu().numpy())
        return flat.to(input_ids.device)

    @property
    def num_sequences(self) -> int:
        """N, the number of sequences."""
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        """T, the number of real tokens."""
        return len(self.input_ids)

    @derived
    def lengths(self) -> list[int]:
        """The N sequence lengths as Python integers (on a GPU this waits for the device once)."""
        return self.cu_seqlens.diff().tolist()

    @derived
    def _parts(self) -> dict[int, list[RaggedBatch]]:
        return {}

    def parts(self, cut_cost: int) -> list[RaggedBatch]:
        """Cuts the batch between neighbours into batches that are rectangles with less padding.

        Args:
            cut_cost: what one more rectangle costs, in attention weights [S, S] that are computed for padding.

        Returns:
            The same sequences in the same order; the batch itself where cutting saves less than it costs. It saves
            most where neighbours are alike: sorted by length.
        """
        # 每一层都要问，答案却只和长度有关：同一批只算一次
        if cut_cost not in self._parts:
            self._parts[cut_cost] = self._cut(cut_cost)
        # 不切时存的是空表：存自己会成环，用完的批次要等垃圾回收才放掉
        return self._parts[cut_cost] or [self]

    def _cut(self, cut_cost: int) -> list[RaggedBatch]:
        """Returns the parts; none where one rectangle is best."""
        ends, count, longest, needed, computed = [0], 0, 0, 0, 0
        for length in [*self.lengths, 0]:
            longest_with = max(longest, length)
            # 长度匀称地递增时，每块的补齐恰好等于切一刀的代价，总代价最小；末尾的 0 只为收口
            if count and (length == 0 or (count + 1) * longest_with**2 - needed - length**2 > cut_cost):
                ends.append(ends[-1] + count)
                computed += count * longest**2
                count, needed, longest_with = 0, 0, length
            count, longest, needed = count + 1, longest_with, needed + length**2
        cuts = len(ends) - 2
        if cuts == 0 or computed + cuts * cut_cost >= self.num_sequences * self.max_seqlen**2:
            return []
        return [self._slice(first, last) for first, last in pairwise(ends)]

    @torch.inference_mode(False)
    def _slice(self, first: int, last: int) -> RaggedBatch:
        """Returns the sequences from `first` to before `last`."""
        ends = self.cu_seqlens[first : last + 1]
        tokens = slice(int(ends[0]), int(ends[-1]))
        return RaggedBatch(
            self.input_ids[tokens],
            self.token_type_ids[tokens],
            self.position_ids[tokens],
            ends - ends[0],
            max(self.lengths[first:last]),
        )

    @derived
    def first_token_positions(self) -> Tensor:
        """[N] int64, where the `[CLS]` of each sequence is among the T tokens."""
        return self.cu_seqlens[:-1].long()

    @derived
    def has_equal_lengths(self) -> bool:
        """Whether the batch is a rectangle, so that [T, ...] viewed as [N, S, ...] is exact."""
        return self.num_tokens == self.num_sequences * self.max_seqlen

    @derived
    def padded_positions(self) -> Tensor:
        """[T] int64, where each token lies in a flattened [N * max_seqlen] rectangle."""
        sequence = torch.repeat_interleave(self.cu_seqlens.diff().long(), output_size=self.num_tokens)
        return sequence * self.max_seqlen + self.position_ids

    @derived
    def padding_mask(self) -> Tensor:
        """[N, max_seqlen] bool, True on real tokens."""
        steps = torch.arange(self.max_seqlen, device=self.cu_seqlens.device)
        return steps < self.cu_seqlens.diff()[:, None]

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Lays a per-token tensor out as a rectangle.

        Args:
            values: [T, ...].
            fill: what stands where there is no token.

        Returns:
            [N, max_seqlen, ...], rows padded on the right.
        """
        if self.has_equal_lengths:
            return values.view(self.num_sequences, self.max_seqlen, *values.shape[1:])
        rectangle = values.new_full((self.num_sequences * self.max_seqlen, *values.shape[1:]), fill)
        rectangle = rectangle.index_copy(0, self.padded_positions, values)
        return rectangle.view(self.num_sequences, self.max_seqlen, *values.shape[1:])

    def unpad(self, rectangle: Tensor) -> Tensor:
        """Takes the real tokens back out of a rectangle: [N, max_seqlen, ...] to [T, ...]."""
        flat = rectangle.reshape(self.num_sequences * self.max_seqlen, *rectangle.shape[2:])
        return flat if self.has_equal_lengths else flat.index_select(0, self.padded_positions)

    @torch.inference_mode(False)
    def to(self, device: torch.device | str) -> RaggedBatch:
        """Returns the same batch on another device."""
        return RaggedBatch(
            self.input_ids.to(device),
            self.token_type_ids.to(device),
            self.position_ids.to(device),
            self.cu_seqlens.to(device),
            self.max_seqlen,
        )
