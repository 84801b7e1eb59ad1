"""Scaled dot-product self-attention over ragged batches: project, attend, join.

The equation written here is the one that trains; `kernels/ragged_attention.py` decides in which rectangles it is run,
and where a fused kernel computes the same faster. Asking for the attention maps takes a path of its own, so looking
never changes the numbers used in training. With rotary positions (Su et al. 2021) a place is an angle that turns
queries and keys: the product of a query at m with a key at n depends on m - n alone, so one pattern serves every place
of the text, and nothing is learned.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from bertsmith.batch import FULL, AttentionMask, RaggedBatch
from bertsmith.kernels.layers import Dropout, Linear, rotate
from bertsmith.kernels.ragged_attention import ragged_attention
from bertsmith.model.config import ModelConfig

Checkpointing = Literal["none", "attention", "blocks"]
"""What a training step runs again in the backward pass, instead of keeping what it gave."""


class AttentionOutput(NamedTuple):
    """What attention returns: `states` [T, H], and `maps`, N tensors [A, S_n, S_n], or None."""

    states: Tensor
    maps: list[Tensor] | None


class MultiHeadSelfAttention(nn.Module):
    """Lets every token read every token of its own sequence (Devlin et al. 2019, §3; Vaswani et al. 2017, §3.2).

    Args:
        num_heads: how many heads this layer has, where some were pruned; None for all of them.
        rotary_base: turns queries and keys by their place, see `rotated`; None leaves them.
        window: most tokens between a token and one that it reads; None is all of the sequence.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_heads: int | None = None,
        bias: bool = True,
        rotary_base: float | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads if num_heads is None else num_heads
        self.head_size = config.head_size
        self.dropout = Dropout(config.attention_probs_dropout_prob)
        self.rotary_base, self.window = rotary_base, window
        self.qkv = Linear(config.hidden_size, 3 * self.num_heads * self.head_size, bias=bias)
        self.qkv.stacked = 3
        self.output = Linear(self.num_heads * self.head_size, config.hidden_size, bias=bias)
        self.gradient_checkpointing: Checkpointing = "none"

    def forward(
        self,
        hidden: Tensor,
        batch: RaggedBatch,
        *,
        need_maps: bool = False,
        mask: AttentionMask = FULL,
        places: Tensor | None = None,
    ) -> AttentionOutput:
        """Mixes each token with its sequence, weighted by query-key similarity.

        Args:
            hidden: [T, H] float, the states of the T real tokens.
            need_maps: also return the attention probabilities (slower; for looking, not for training).
            places: [M] int64, the tokens among the T whose states are wanted; None is all of them.
        """
        qkv = self.qkv(hidden).view(-1, 3, self.num_heads, self.head_size)  # [T, 3, A, D]
        if self.rotary_base is not None:
            # 位置写进查询与键的角度：它们的内积只看相隔多远
            qkv = rotated(qkv, batch, self.rotary_base)
        mask = mask.within(self.window)
        if need_maps:
            mixed, maps = self._attend_with_maps(qkv, batch, mask)
        else:
            dropout = self.dropout.probability if self.training else 0.0
            recompute = self.gradient_checkpointing == "attention"
            mixed, maps = (
                ragged_attention(
                    *(qkv, batch, mask, self.attend), training=self.training, dropout=dropout, recompute=recompute
                ),
                None,
            )
        if places is not None:
            mixed = mixed.index_select(0, places)
        # 拼接后的各头再混合一次：每个头只看到自己那 D 维，靠这个矩阵合成一个状态
        return AttentionOutput(self.output(mixed), maps)  # [T, A D] → [T, H]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hidden_keys: Tensor | None) -> Tensor:
        """Computes softmax(Q Kᵀ / √D) V for a rectangle of sequences (Vaswani et al. 2017, equation 1).

        Args:
            query: [N, A, S, D], as are `key` and `value`.
            hidden_keys: bool, broadcast over [N, A, S, S]: True where the key must not be read. None hides nothing.
        """
        # 缩放 1/sqrt(D)：否则 D 较大时点积方差为 D，softmax 会饱和、梯度消失
        scores = query @ (key * self.head_size**-0.5).transpose(-1, -2)  # [N, A, S, S]
        if hidden_keys is not None:
            # 加上 0 或负无穷，而不是填：反向里加法原样传回 [S, S] 的梯度，不必再抄一遍
            scores += torch.zeros_like(hidden_keys, dtype=scores.dtype).masked_fill(hidden_keys, -torch.inf)
        # CPU 的 bf16 softmax 在内部以 float32 累加，只有结果舍入为 bf16
        probabilities: Tensor = self.dropout(scores.softmax(dim=-1))
        return probabilities @ value

    def _attend_with_maps(self, qkv: Tensor, batch: RaggedBatch, mask: AttentionMask) -> tuple[Tensor, list[Tensor]]:
        """The same equation sequence by sequence, keeping the probabilities; returns [T, A D] and the maps."""
        states, maps = [], []
        masks = mask.split([1] * batch.num_sequences)
        for sequence, own in zip(qkv.split(batch.lengths), masks, strict=True):
            query, key, value = sequence.permute(1, 2, 0, 3).unbind(0)  # each [A, S, D]
            scores = query @ key.transpose(1, 2) / math.sqrt(self.head_size)
            hidden = own.hidden_by_place(len(sequence), scores.device)
            if hidden is not None:
                scores = scores.masked_fill(hidden.squeeze(0), -torch.inf)
            probabilities = scores.float().softmax(dim=-1)
            maps.append(probabilities)
            states.append((self.dropout(probabilities).to(value.dtype) @ value).transpose(0, 1).flatten(1))
        return torch.cat(states), maps


def rotary_angles(batch: RaggedBatch, head_size: int, base: float) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines of a batch, each [T, D/2] float32.

    Args:
        head_size: D, an even number.
        base: θ: pair i of the dimensions turns by `base ** (-2 i / D)` radians a token, so that a larger base tells
            places further apart from each other.
    """
    known, key = batch.kept, ("angles", head_size, base)
    if key in known:
        found: tuple[Tensor, Tensor] = known[key]
        return found
    if torch.compiler.is_compiling():
        return _angles(batch, head_size, base)
    # 推理模式造出的张量不能参与之后的训练：在它之外计算
    with torch.inference_mode(False):
        found = known[key] = _angles(batch, head_size, base)
    return found


def _angles(batch: RaggedBatch, head_size: int, base: float) -> tuple[Tensor, Tensor]:
    pairs = torch.arange(0, head_size, 2, dtype=torch.float32, device=batch.position_ids.device)
    # 低维转得快，分辨相邻的词；高维转得慢，分辨远近
    angles = batch.position_ids[:, None].float() * base ** (-pairs / head_size)
    return angles.cos(), angles.sin()


def rotated(qkv: Tensor, batch: RaggedBatch, base: float) -> Tensor:
    """Turns queries and keys of `qkv` [T, 3, A, D] by their places, dimension i with i + D/2 as in published models."""
    return rotate(qkv, *rotary_angles(batch, qkv.shape[-1], base))
