"""One Transformer block, as in the paper: post-norm, two sub-layers, a residual around each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.kernels.layers import Dropout, LayerNorm, Linear
from bertsmith.model.attention import AttentionOutput, MultiHeadSelfAttention
from bertsmith.model.config import BertConfig

ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
"""The functions behind the names a `BertConfig` allows."""


class TransformerBlock(nn.Module):
    """Self-attention, then a feed-forward layer; x ← LayerNorm(x + Dropout(sublayer(x))) (Vaswani et al. 2017, §3.1).

    The norm comes after the sum, as in the released BERT. That needs the learning-rate warm-up: with the norm on the
    residual path, the gradients of a fresh deep model are largest near the output.
    """

    def __init__(self, config: BertConfig, layer: int = 0) -> None:
        """Builds one block.

        Args:
            config: the shape.
            layer: which block it is, counted from 0; it matters where heads were pruned.
        """
        super().__init__()
        num_heads = len(config.heads_left(layer))
        self.attention = MultiHeadSelfAttention(config, num_heads=num_heads)
        self.attention_output = Linear(num_heads * config.head_size, config.hidden_size)
        self.attention_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.expand = Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATION_FUNCTIONS[config.hidden_act]
        self.contract = Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Tensor, batch: RaggedBatch, *, need_maps: bool = False, causal: bool = False
    ) -> AttentionOutput:
        """Refines the states by one layer.

        Args:
            hidden: [T, H] float.
            batch: where each sequence starts and ends.
            need_maps: also return this layer's attention probabilities.
            causal: each token reads itself and those before it only.

        Returns:
            `states` [T, H], and `maps` as `MultiHeadSelfAttention` returns them.
        """
        mixed, maps = self.attention(hidden, batch, need_maps=need_maps, causal=causal)
        # 残差：子层只学对输入的修正，梯度也有一条不经过子层的路，层数多了仍传得下去
        hidden = self.attention_norm(hidden + self.dropout(self.attention_output(mixed)))
        expanded = self.activation(self.expand(hidden))
        # 归一化在残差之后（post-norm）：每层都重新缩放主干，初期靠近输出的梯度最大，所以学习率要预热
        hidden = self.output_norm(hidden + self.dropout(self.contract(expanded)))
        return AttentionOutput(hidden, maps)
