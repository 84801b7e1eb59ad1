"""What a size costs, before anything is trained: parameters, floating-point operations, memory.

Parameters and the weights that matmuls read are counted on a model without memory (torch's meta device), so they are
those of any family. A matmul [m, k] x [k, n] counts 2 m k n operations; norms, activations and softmax are not counted,
as in every published figure. The memory is what BERT's modules keep for the backward pass on the CPU; a GPU keeps less,
since its dropout masks take a byte and its fused attention keeps no [S, S] maps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from bertsmith.errors import ConfigError
from bertsmith.model.architectures import ModelForPreTraining
from bertsmith.model.config import ModelConfig

MASKED_SHARE = 0.15
"""Share of the pieces that the masked-LM head predicts (Devlin et al. 2019, §3.1)."""

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ParameterCounts:
    """How many numbers each part of a pre-training model learns.

    Attributes:
        pooler: the layer over `[CLS]`; 0 in a family without one.
        heads: masked LM (transform, norm, a bias per piece; its decoder is the word embedding, unless the two are
            untied) and next sentence.
    """

    embeddings: int
    encoder: int
    pooler: int
    heads: int

    @classmethod
    def of(cls, config: ModelConfig) -> ParameterCounts:
        """Counts the parameters of a configuration."""
        return _counted(config)[0]

    @property
    def total(self) -> int:
        """All four parts; without `heads` it is what `BertModel` has: 109,482,240 for base."""
        return self.embeddings + self.encoder + self.pooler + self.heads


@dataclass(frozen=True)
class MatmulWeights:
    """How many weights the matmuls of a pre-training model read, and how wide its attention is.

    Attributes:
        encoder: in the L blocks, and between the embedding and them; a block that runs several times counts each time.
        attention: the width of the heads of each layer, A D where none was pruned, and the tokens in its window, or
            None where it reads the whole text.
        pooler: read for each sequence, as `next_sentence` is.
        masked_lm: read for each masked position, the decoder included, tied or not.
        last: those of the last block behind its attention, read for the tokens alone whose states are wanted.
    """

    encoder: int
    attention: tuple[tuple[int, int | None], ...]
    pooler: int
    masked_lm: int
    next_sentence: int
    last: int

    def attended(self, sequence_length: int) -> int:
        """Returns how many numbers a token's queries are compared with: A D S, at most a window, summed over layers."""
        return sum(width * min(sequence_length, window or sequence_length) for width, window in self.attention)

    @classmethod
    def of(cls, config: ModelConfig) -> MatmulWeights:
        """Counts the weights of a configuration."""
        return _counted(config)[1]


_KNOWN: dict[str, tuple[ParameterCounts, MatmulWeights]] = {}
"""Configuration, written out → what was counted: the cost of a batch is asked for many lengths of one model."""


def _counted(config: ModelConfig) -> tuple[ParameterCounts, MatmulWeights]:
    key = repr(config)
    if key not in _KNOWN:
        # meta 设备上只有形状没有数：搭一个模型来数，比为每个家族各写一套公式可靠
        with torch.device("meta"):
            model = ModelForPreTraining(config, pair_head="next_sentence" in config.family.heads)
        backbone, heads = model.backbone, dict(model.named_children())
        del heads["backbone"]
        decoder = 0 if model.masked_lm.decoder is not None else backbone.embedding.word.weight.numel()
        _KNOWN[key] = (
            ParameterCounts(
                embeddings=_numbers_in(backbone.embedding),
                encoder=_numbers_in(backbone.encoder),
                pooler=_numbers_in(backbone.pooler),
                heads=_numbers_in(*heads.values()),
            ),
            MatmulWeights(
                encoder=_weights_in(backbone.embedding, *backbone.encoder.blocks),
                attention=tuple(
                    (each.num_heads * each.head_size, None if each.window is None else 2 * each.window + 1)
                    for each in (block.attention for block in backbone.encoder.blocks)
                ),
                pooler=_weights_in(backbone.pooler),
                masked_lm=_weights_in(model.masked_lm) + decoder,
                next_sentence=_weights_in(heads.get("next_sentence")),
                last=_weights_in(backbone.encoder.blocks[-1]) - _weights_in(backbone.encoder.blocks[-1].attention.qkv),
            ),
        )
    return _KNOWN[key]


def _numbers_in(*modules: nn.Module | None) -> int:
    return sum(each.numel() for module in modules if module is not None for each in module.parameters())


def _weights_in(*modules: nn.Module | None) -> int:
    layers = [each for module in modules if module is not None for each in module.modules()]
    return sum(each.weight.numel() for each in layers if isinstance(each, nn.Linear))


@dataclass(frozen=True)
class BatchCosts:
    """What one batch of N equally long sequences of S tokens, special tokens included, costs."""

    config: ModelConfig
    batch_size: int
    sequence_length: int

    def __post_init__(self) -> None:
        for name in ("batch_size", "sequence_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a positive whole number")
        if self.sequence_length > self.config.position_limit:
            raise ConfigError(
                f"sequence_length is {self.sequence_length}, but the model has"
                f" {self.config.position_limit} positions; choose at most that many"
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
    def weights(self) -> MatmulWeights:
        """What the matmuls of the model read."""
        return MatmulWeights.of(self.config)

    @property
    def inference_flops(self) -> int:
        """Operations of a forward pass through encoder and pooler."""
        return self.encoder_flops + self.batch_size * 2 * self.weights.pooler

    @property
    def encoder_flops(self) -> int:
        """Operations of a forward pass through the L blocks, and through what takes a narrower embedding to them.

        A block multiplies each token by its weights, in BERT 4 H² in attention and 2 H I in the feed-forward layer,
        and compares it with S keys and mixes S values: 8 H² + 4 H I + 4 S H. Where heads were pruned, the width of
        those that are left stands for one H of each attention term.
        """
        # 注意力分数与加权求和各为 2·S·H：序列越长，这一项占比越大
        return self.num_tokens * (2 * self.weights.encoder + 4 * self.weights.attended(self.sequence_length))

    @property
    def head_flops(self) -> int:
        """Operations of a forward pass through the heads: masked LM at M positions, next sentence at N."""
        return 2 * (self.num_masked * self.weights.masked_lm + self.batch_size * self.weights.next_sentence)

    @property
    def training_flops(self) -> int:
        """Operations of a pre-training step, forward and backward; see `ModelForPreTraining` for the last block."""
        unread = self.num_tokens - self.num_masked - self.batch_size
        # 反向传播对每个矩阵乘做两次同样大小的乘法（对输入、对权重），所以总量是前向的三倍
        return 3 * (self.inference_flops + self.head_flops - 2 * unread * self.weights.last)

    @property
    def weight_bytes(self) -> int:
        """Memory of the parameters, which are always float32."""
        return FLOAT32_BYTES * ParameterCounts.of(self.config).total

    @property
    def optimizer_bytes(self) -> int:
        """Memory that AdamW adds: a gradient and two moments for each parameter, float32."""
        return 3 * self.weight_bytes

    def activation_bytes(self, dtype: torch.dtype) -> int:
        """Memory that a pre-training step keeps from the forward for the backward pass, with matmuls in `dtype`.

        Per token, a block keeps its input, the query, key and value, the mixed values, two sums before a norm and the
        first norm's output (8 H); a mask for each of two dropouts (2 H); the feed-forward layer before and after its
        activation (2 I); and for attention the softmax, its dropout mask and their product (3 A S). At each of the M
        masked positions there are the V log-probabilities, in float32: the largest part of a small model. The peak is
        higher for a moment, when the gradient of the logits takes that much again. In bf16 the copies of the float32
        weights count too.
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
        weights = self.weights
        matrices = weights.encoder + weights.pooler + weights.masked_lm + weights.next_sentence
        copies = 0 if dtype == torch.float32 else matrices * width
        return self.num_tokens * per_token + self.num_masked * per_masked + pooled + copies
