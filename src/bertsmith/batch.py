"""`RaggedBatch`, the one shape in which tokens travel, and `AttentionMask`, which of them each token reads.

A batch is its real tokens laid end to end, and nothing else: no padding, so no work on padding and no attention mask
to get wrong. `cu_seqlens` says where each sequence starts and ends. The padded world is met at two bridges only,
`RaggedBatch.from_padded` on the way in and `RaggedBatch.pad` on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError

ValueT = TypeVar("ValueT")


class derived(Generic[ValueT]):  # noqa: N801
    """A property kept once read; before Python 3.12 the lock of `cached_property` breaks graphs of `torch.compile`."""

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
        """Builds a batch from N non-empty lists of ids; segments have the same lengths, and are all 0 when None.

        Raises:
            InputError: there is no sequence, one is empty, or the segments have other lengths.
        """
        lengths = np.fromiter((len(sequence) for sequence in sequences), dtype=np.int64, count=len(sequences))
        if token_type_ids is not None and [len(types) for types in token_type_ids] != lengths.tolist():
            raise InputError("token_type_ids and sequences differ in length; give one segment id for every token")
        types = None if token_type_ids is None else _end_to_end(token_type_ids)
        return cls.from_flat(_end_to_end(sequences), lengths, types)

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

    @torch.inference_mode(False)
    def sequences(self, first: int, last: int) -> RaggedBatch:
        """Returns the sequences from `first` to before `last` as a batch of their own, sharing the memory."""
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
    def kept(self) -> dict[tuple[Any, ...], Any]:
        """What every layer reads and is computed once.

        Keys: `("rectangles", cut_cost)`, `("windows", window)`, `("angles", D, base)`.
        """
        return {}

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
        """Lays a per-token tensor out as a rectangle: [N, max_seqlen, ...], rows padded on the right."""
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
        """Returns the same batch on another device; see `sent`."""
        return RaggedBatch(
            sent(self.input_ids, device),
            sent(self.token_type_ids, device),
            sent(self.position_ids, device),
            sent(self.cu_seqlens, device),
            self.max_seqlen,
        )


def _end_to_end(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    # numpy 拼不了零个数组：先放一个空的
    return np.concatenate([np.zeros(0, np.int64), *(np.asarray(row, np.int64) for row in rows)])


def sent(values: Tensor, device: torch.device | str) -> Tensor:
    """Returns a tensor on another device; on the way from the CPU to a GPU the host does not wait for it."""
    # 只有锁页内存的拷贝是异步的：普通内存会让主机等 GPU 做完手里的事
    if values.device.type == "cpu" and torch.device(device).type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """Which tokens of its own sequence a token reads.

    Three kinds: all of them (BERT), itself and those before it (a left-to-right LM), or a prefix that all tokens read
    and otherwise those before it (a prefix LM: Dong et al. 2019, Raffel et al. 2020, figure 4). Each can be narrowed
    to a window around the token (Beltagy et al. 2020, §3.1).

    Attributes:
        prefix_lengths: [N] int64, how many of its first tokens all tokens of a sequence read; None is no prefix.
        window: most tokens between a token and one that it reads, on either side; None is no window.
    """

    is_causal: bool = False
    prefix_lengths: Tensor | None = None
    window: int | None = None

    @classmethod
    def prefix(cls, lengths: Sequence[int] | Tensor) -> AttentionMask:
        """Returns the mask of a prefix LM."""
        prefix_lengths = torch.as_tensor(lengths, dtype=torch.int64)
        if len(prefix_lengths) and int(prefix_lengths.min()) < 0:
            raise InputError(f"prefix length {int(prefix_lengths.min())} is negative; 0 is no prefix")
        return cls(is_causal=True, prefix_lengths=prefix_lengths)

    def split(self, counts: Sequence[int]) -> list[AttentionMask]:
        """Returns the masks of consecutive groups of sequences."""
        if self.prefix_lengths is None:
            return [self] * len(counts)
        self._check(sum(counts))
        return [replace(self, prefix_lengths=lengths) for lengths in self.prefix_lengths.split(list(counts))]

    def within(self, window: int | None) -> AttentionMask:
        """Returns the same mask narrowed to a window; None leaves it as it is."""
        return self if window is None else replace(self, window=window)

    def _check(self, num_sequences: int) -> None:
        if self.prefix_lengths is not None and len(self.prefix_lengths) != num_sequences:
            raise InputError(f"{len(self.prefix_lengths)} prefix lengths for {num_sequences} sequences")

    def hidden_by_place(self, length: int, device: torch.device) -> Tensor | None:
        """Returns which keys are hidden because of their place: they come later, or lie outside the window.

        [1, 1, S, S] bool, or [N, 1, S, S] with prefixes, True where the key must not be read; None hides nothing.
        """
        far = self._hidden_far(length, device)
        if not self.is_causal:
            return far
        later = torch.ones((1, 1, length, length), dtype=torch.bool, device=device).triu(1)
        if self.prefix_lengths is not None:
            # 前缀里的词谁都看得见：只遮住前缀之后的、比自己晚的词
            after_prefix = torch.arange(length, device=device) >= self.prefix_lengths.to(device)[:, None]
            later = later & after_prefix[:, None, None, :]
        return later if far is None else later | far

    def _hidden_far(self, length: int, device: torch.device) -> Tensor | None:
        """Returns [1, 1, S, S] bool, True outside the window; None where the window holds every pair."""
        if self.window is None or (not torch.compiler.is_compiling() and length <= self.window + 1):
            return None
        places = torch.arange(length, device=device)
        return ((places[:, None] - places).abs() > self.window)[None, None]

    def hidden_keys(self, batch: RaggedBatch) -> Tensor | None:
        """Returns which keys of a padded batch are hidden, as bool broadcast over [N, A, S, S]; None hides nothing."""
        self._check(batch.num_sequences)
        placed = self.hidden_by_place(batch.max_seqlen, batch.cu_seqlens.device)
        # 因果时填充都在右边，本来就看不见；前缀却可能比句子还长
        if batch.has_equal_lengths or (self.is_causal and self.prefix_lengths is None):
            return placed
        padding = ~batch.padding_mask[:, None, None, :]
        if placed is None:
            return padding
        hidden = placed | padding
        if self.window is not None:
            # 填充处的查询离真词太远时一个键也看不见，softmax 会得出 NaN 并传进梯度：让它看自己
            hidden = hidden & ~torch.eye(batch.max_seqlen, dtype=torch.bool, device=hidden.device)
        return hidden

    def summary_positions(self, batch: RaggedBatch) -> Tensor:
        """Returns [N] int64, among the T tokens, the one of each sequence that has read all of it."""
        first = batch.first_token_positions
        # 从左到右时 [CLS] 只看见自己，整句的信息在最后一个词；导出的矩形里它后面还有填充
        return first + batch.padding_mask.sum(1) - 1 if self.is_causal else first


FULL, CAUSAL = AttentionMask(), AttentionMask(is_causal=True)
"""Every token reads all of its sequence; or itself and those before it only."""
