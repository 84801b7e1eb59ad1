"""Scaled dot-product self-attention over ragged batches.

Notable:
- one fused projection for query, key and value: one matmul instead of three
- the projections never see padding; on the CPU the softmax of a batch with unequal lengths is laid out as one
  rectangle, or as several where that computes enough less; CUDA runs variable-length flash attention in bf16, but for
  training with dropout on the attention weights, which that kernel does not have
- on the CPU, in bf16, with dropout or on short sequences, two batched matmuls and a softmax are up to three times as
  fast as the fused kernel
- asking for the attention maps takes the explicit path, so looking never changes the numbers used in training
- `causal` hides the tokens to the right, for left-to-right LM; padding lies to the right as well, so that one mask
  does for both
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertsmith.batch import RaggedBatch
from bertsmith.kernels.layers import Dropout, Linear
from bertsmith.model.config import BertConfig

Checkpointing = Literal["none", "attention", "blocks"]
"""What a training step runs again in the backward pass, instead of keeping what it gave."""

_SHORT = 32
"""Up to this length, two matmuls and a softmax beat the fused kernel on the CPU at float32 too."""


_CUT_COST, _CUT_COST_IN_TRAINING = 2_500, 15_000
"""What the calls of one more rectangle cost, in attention weights computed meanwhile; in training half or twice as much
makes little difference (`benchmarks/attention_parts.py`)."""


class AttentionOutput(NamedTuple):
    """What attention returns: `states` [T, H], and `maps`, N tensors [A, S_n, S_n], or None."""

    states: Tensor
    maps: list[Tensor] | None


class MultiHeadSelfAttention(nn.Module):
    """Lets every token read every token of its own sequence (Devlin et al. 2019, §3; Vaswani et al. 2017, §3.2).

    Attributes:
        gradient_checkpointing: see `PretrainedBert.set_gradient_checkpointing`.
    """

    def __init__(self, config: BertConfig, *, num_heads: int | None = None) -> None:
        """Builds the projections.

        Args:
            config: the shape.
            num_heads: how many heads this layer has, where some were pruned; None for all of them.
        """
        super().__init__()
        self.num_heads = config.num_attention_heads if num_heads is None else num_heads
        self.head_size = config.head_size
        self.dropout = Dropout(config.attention_probs_dropout_prob)
        self.project = Linear(config.hidden_size, 3 * self.num_heads * self.head_size)
        self.gradient_checkpointing: Checkpointing = "none"

    def forward(
        self, hidden: Tensor, batch: RaggedBatch, *, need_maps: bool = False, causal: bool = False
    ) -> AttentionOutput:
        """Mixes each token with its sequence, weighted by query-key similarity.

        Args:
            hidden: [T, H] float, the states of the T real tokens.
            batch: where each sequence starts and ends.
            need_maps: also return the attention probabilities (slower; for looking, not for training).
            causal: each token reads itself and those before it only.

        Returns:
            `states` [T, A D] (that is H unless heads were pruned), the heads concatenated, and `maps`: a list of N
            tensors [A, S_n, S_n], or None.
        """
        projected = self.project(hidden).view(-1, 3, self.num_heads, self.head_size)
        if need_maps:
            return self._attend_explicitly(projected, batch, causal=causal)
        if projected.is_cuda and projected.dtype in (torch.float16, torch.bfloat16) and not self._dropout_now:
            return AttentionOutput(self._attend_varlen(projected, batch, causal=causal), None)
        attend = self._attend_padded if projected.is_cuda or torch.compiler.is_compiling() else self._attend_in_parts
        if self.gradient_checkpointing == "attention" and self.training:
            # [A, S, S] 的概率和它的 dropout 占激活的大半，重算却只花很少的时间
            mixed = checkpoint(attend, projected, batch, causal=causal, use_reentrant=False)
            return AttentionOutput(mixed, None)
        return AttentionOutput(attend(projected, batch, causal=causal), None)

    def _attend_in_parts(self, projected: Tensor, batch: RaggedBatch, *, causal: bool) -> Tensor:
        """Sequences of similar length are a rectangle each, so that little padding is computed."""
        parts = batch.parts((_CUT_COST_IN_TRAINING if self.training else _CUT_COST) // self.num_heads)
        if len(parts) == 1:
            return self._attend_padded(projected, batch, causal=causal)
        # 推理与微调的批次都按长度排好：长短相近的自然相邻
        states = projected.split([part.num_tokens for part in parts])
        return torch.cat([self._attend_padded(*pair, causal=causal) for pair in zip(states, parts, strict=True)])

    @property
    def _dropout_now(self) -> float:
        return self.dropout.probability if self.training else 0.0

    def _attend_padded(self, projected: Tensor, batch: RaggedBatch, *, causal: bool) -> Tensor:
        """Batched attention: equal lengths are a view, unequal ones a rectangle with its padding keys masked."""
        # [T, 3, A, D] → 三个 [N, A, S, D]；长度全相同时 pad 只是改变视图，不复制
        # 因果注意力时补齐部分全在右边，本来就看不见，不需要另外的遮罩
        mask = None if batch.has_equal_lengths or causal else batch.padding_mask[:, None, None, :]
        mixed = self._mix(*batch.pad(projected).permute(2, 0, 3, 1, 4), mask=mask, causal=causal)
        return batch.unpad(mixed.transpose(1, 2)).reshape(-1, self.num_heads * self.head_size)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool) -> Tensor:
        """The equation on a rectangle, by the faster of two ways; [N, A, S, D] in and out."""
        short = query.shape[2] <= _SHORT
        if query.is_cuda or not (short or self._dropout_now or query.dtype == torch.bfloat16):
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=self._dropout_now, is_causal=causal
            )
        # 用普通矩阵乘法：CPU 的融合内核在 bf16、带 dropout 或很短的序列上要慢一到三倍
        scores = query @ (key * self.head_size**-0.5).transpose(-1, -2)
        if causal:
            scores = scores.masked_fill(_later_tokens(scores), -torch.inf)
        elif mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        # CPU 的 bf16 softmax 在内部以 float32 累加，只有结果舍入为 bf16
        probabilities: Tensor = self.dropout(scores.softmax(dim=-1))
        return probabilities @ value

    def _attend_varlen(self, projected: Tensor, batch: RaggedBatch, *, causal: bool) -> Tensor:
        """Variable-length flash attention on CUDA: no rectangle at all."""
        from torch.nn.attention.varlen import varlen_attn

        query, key, value = projected.unbind(1)
        cu_seqlens, longest = batch.cu_seqlens, batch.max_seqlen
        # 窗口 (-1, 0)：左边不限，右边一个也不看，即因果注意力
        window = (-1, 0) if causal else (-1, -1)
        mixed = varlen_attn(query, key, value, cu_seqlens, cu_seqlens, longest, longest, window_size=window)
        # 没有要 log-sum-exp，返回的只会是一个张量
        assert isinstance(mixed, Tensor)
        return mixed.reshape(-1, self.num_heads * self.head_size)

    def _attend_explicitly(self, projected: Tensor, batch: RaggedBatch, *, causal: bool) -> AttentionOutput:
        """The equation as it is printed, sequence by sequence, keeping the probabilities."""
        states, maps = [], []
        for sequence in projected.split(batch.lengths):
            query, key, value = sequence.permute(1, 2, 0, 3).unbind(0)  # each [A, S, D]
            # 缩放 1/sqrt(D)：否则 D 较大时点积方差为 D，softmax 会饱和、梯度消失
            scores = query @ key.transpose(1, 2) / math.sqrt(self.head_size)
            if causal:
                scores = scores.masked_fill(_later_tokens(scores), -torch.inf)
            probabilities = scores.float().softmax(dim=-1)
            maps.append(probabilities)
            dropped = self.dropout(probabilities).to(value.dtype)
            states.append((dropped @ value).transpose(0, 1).reshape(-1, self.num_heads * self.head_size))
        return AttentionOutput(torch.cat(states), maps)


def _later_tokens(scores: Tensor) -> Tensor:
    """Returns [S, S] bool for scores [..., S, S], True where the key comes after the query."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
