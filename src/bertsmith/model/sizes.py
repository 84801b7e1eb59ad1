"""What a size costs, in closed form: parameters, floating-point operations, memory.

Notable:
- everything follows from a `BertConfig` and the shape of a batch; no model is built
- a matmul [m, k] x [k, n] counts 2 m k n operations, a multiply-add being two; norms, activations and softmax are not
  counted, as in every published figure
- the memory is what this package's modules keep for the backward pass on the CPU, tensor by tensor; a GPU keeps less,
  since its dropout masks take a byte and its fused attention keeps no [S, S] maps
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bertsmith.errors import ConfigError
from bertsmith.model.config import BertConfig

PUBLISHED_SHAPES: tuple[tuple[int, int], ...] = (
    *((layers, hidden) for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768)),
    (24, 1024),
)
"""(L, H) of the 24 small published models, base among them (Turc et al. 2019), and of large."""

MASKED_SHARE = 0.15
"""Share of the pieces that the masked-LM head predicts (Devlin et al. 2019, §3.1)."""

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ParameterCounts:
    """How many numbers each part of a pre-training model learns.

    Attributes:
        embeddings: word, position and segment embedding, and their norm.
        encoder: the L blocks.
        pooler: the layer over `[CLS]`.
        heads: masked LM (transform, norm, a bias per piece; its decoder is the word embedding, unless the two are
            untied) and next sentence.
    """

    embeddings: int
    encoder: int
    pooler: int
    heads: int

    @classmethod
    def of(cls, config: BertConfig) -> ParameterCounts:
        """Counts the parameters of a configuration."""
        hidden, vocabulary = config.hidden_size, config.vocab_size
        norm = 2 * hidden
        rows = vocabulary + config.max_position_embeddings + config.type_vocab_size
        # MLM 的解码矩阵通常与词嵌入共享，只数每个词的偏置；不共享时另有一个 V×H 的矩阵
        decoder = 0 if config.tie_word_embeddings else vocabulary * hidden
        masked_lm = hidden * hidden + hidden + norm + vocabulary + decoder
        next_sentence = 2 * hidden + 2
        return cls(
            embeddings=rows * hidden + norm,
            encoder=config.num_encoder_parameters,
            pooler=hidden * hidden + hidden,
            heads=masked_lm + next_sentence,
        )

    @property
    def total(self) -> int:
        """All four parts; without `heads` it is what `BertModel` has: 109,482,240 for base."""
        return self.embeddings + self.encoder + self.pooler + self.heads


@dataclass(frozen=True)
class BatchCosts:
    """What one batch of equally long sequences costs.

    Attributes:
        config: the model.
        batch_size: N, sequences in the batch.
        sequence_length: S, tokens in each of them, special tokens included.
    """

    config: BertConfig
    batch_size: int
    sequence_length: int

    def __post_init__(self) -> None:
        """Checks that the model can read the batch."""
        for name in ("batch_size", "sequence_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a positive whole number")
        if self.sequence_length > self.config.max_position_embeddings:
            raise ConfigError(
                f"sequence_length is {self.sequence_length}, but the model has"
                f" {self.config.max_position_embeddings} positions; choose at most that many"
            )

    @property
    def num_tokens(self) -> int:
        """T = N S."""
        return self.batch_size * self.sequence_length

    @property
    def num_masked(self) -> int:
        """M, the pieces to predict: 15 % of every sequence, rounded, at least one."""
        return self.batch_size * max(1, round(MASKED_SHARE * self.sequence_length))

    @property
    def inference_flops(self) -> int:
        """Operations of a forward pass through encoder and pooler.

        A block multiplies each token by 4 H² weights in attention and 2 H I in the feed-forward layer (I its width),
        and compares it with S keys and mixes S values: 8 H² + 4 H I + 4 S H. Where heads were pruned, the width of
        those that are left stands for one H of each attention term.
        """
        return self.encoder_flops + self.batch_size * 2 * self.config.hidden_size**2

    @property
    def encoder_flops(self) -> int:
        """Operations of a forward pass through the L blocks alone."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        # 注意力分数与加权求和各为 2·S·H：序列越长，这一项占比越大
        attention = sum((8 * hidden + 4 * self.sequence_length) * width for width in self.config.attention_widths)
        return self.num_tokens * (attention + self.config.num_hidden_layers * 4 * hidden * inner)

    @property
    def head_flops(self) -> int:
        """Operations of a forward pass through the heads: masked LM at M positions, next sentence at N."""
        hidden = self.config.hidden_size
        masked_lm = 2 * hidden**2 + 2 * hidden * self.config.vocab_size
        return self.num_masked * masked_lm + self.batch_size * 4 * hidden

    @property
    def training_flops(self) -> int:
        """Operations of a pre-training step, forward and backward."""
        # 反向传播对每个矩阵乘做两次同样大小的乘法（对输入、对权重），所以总量是前向的三倍
        return 3 * (self.inference_flops + self.head_flops)

    @property
    def inference_flops_per_token(self) -> float:
        """`inference_flops` by token."""
        return self.inference_flops / self.num_tokens

    @property
    def training_flops_per_token(self) -> float:
        """`training_flops` by token read, masked or not."""
        return self.training_flops / self.num_tokens

    @property
    def weight_bytes(self) -> int:
        """Memory of the parameters, which are always float32."""
        return FLOAT32_BYTES * ParameterCounts.of(self.config).total

    @property
    def optimizer_bytes(self) -> int:
        """Memory that AdamW adds: a gradient and two moments for each parameter, float32."""
        return 3 * self.weight_bytes

    def activation_bytes(self, dtype: torch.dtype) -> int:
        """Memory that a pre-training step keeps from the forward for the backward pass.

        Per token, a block keeps its input, the query, key and value, the mixed values, two sums before a norm and the
        first norm's output (8 H); a mask for each of two dropouts (2 H); the feed-forward layer before and after its
        activation (2 I); and for attention the softmax, its dropout mask and their product (3 A S). At each of the M
        masked positions there are the V log-probabilities, in float32: the largest part of a small model. The peak is
        higher for a moment, when the gradient of the logits takes that much again.

        Args:
            dtype: of the matmuls, `torch.float32` or `torch.bfloat16`. With the second, its copies of the float32
                weights are kept as well, and counted here.
        """
        config, width = self.config, dtype.itemsize
        hidden, layers = config.hidden_size, config.num_hidden_layers
        masks = int(config.hidden_dropout_prob > 0)
        maps = 3 if config.attention_probs_dropout_prob > 0 else 1
        attention = 8 * hidden + maps * config.num_attention_heads * self.sequence_length
        per_block = attention + 2 * config.intermediate_size + 2 * masks * hidden
        # 归一化前的嵌入之和始终是 float32；每个 LayerNorm 另存每个词的均值与标准差
        embedding = hidden * (FLOAT32_BYTES + masks * width)
        statistics = 2 * FLOAT32_BYTES
        per_token = layers * (per_block * width + 2 * statistics) + embedding + statistics
        per_masked = 4 * hidden * width + statistics + config.vocab_size * FLOAT32_BYTES
        pooled = 2 * self.batch_size * hidden * width
        copies = 0 if dtype == torch.float32 else self._num_matmul_weights * width
        return self.num_tokens * per_token + self.num_masked * per_masked + pooled + copies

    @property
    def _num_matmul_weights(self) -> int:
        """Weights of all matrices that a pre-training step multiplies by, the tied decoder included."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        encoder = 4 * hidden * sum(self.config.attention_widths) + self.config.num_hidden_layers * 2 * hidden * inner
        pooler_and_heads = 2 * hidden**2 + 2 * hidden + self.config.vocab_size * hidden
        return encoder + pooler_and_heads
