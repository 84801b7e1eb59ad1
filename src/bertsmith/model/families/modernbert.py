"""ModernBERT (Warner et al. 2024): BERT's encoder with what language models have found since.

What differs from BERT (`bert.py`), and why:

- the norm stands before each sub-layer (pre-norm; Xiong et al. 2020): gradients reach the bottom unscaled, so that
  larger rates and deeper models train; a norm at the end makes up for it, and the first block needs none of its own
- places are angles by which queries and keys are turned (RoPE, `attention.py`), with no table to learn and no end
- two layers of three read a window of 128 tokens, every third the whole text: cost grows with the length
- the feed-forward layer is a GeGLU (Shazeer 2020): one half of the way up decides how much of the other passes
- no biases, no segments, no pooler: texts of a pair are told apart by `[SEP]` alone
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.kernels.layers import Dropout, Embedding, LayerNorm, Linear, gated
from bertsmith.model.attention import AttentionOutput, MultiHeadSelfAttention, rotary_angles
from bertsmith.model.backbone import Backbone, BackboneOutput, initialize_weights
from bertsmith.model.config import ModelConfig
from bertsmith.model.families.bert import BertEncoder, BertModel, EncoderOutput, check_ids, check_length
from bertsmith.model.family import Family, PublishedNames
from bertsmith.model.heads import (
    ACTIVATION_FUNCTIONS,
    MaskedLMHead,
    MultipleChoiceHead,
    QASpanHead,
    Reads,
    SequenceClassifier,
    TokenClassifier,
    classifier_dropout,
)
from bertsmith.settings import option

if TYPE_CHECKING:
    from typing_extensions import Self


REACH = 4
"""How many times the length that fresh weights learn from they can read."""


@dataclass(frozen=True)
class ModernBertConfig(ModelConfig):
    """The architecture of a ModernBERT; see `ModelConfig` for the fields that all families have.

    Attributes:
        local_attention: tokens in a window, half of them on either side.
        global_attn_every_n_layers: every so many layers, from the first, read the whole text.
        global_rope_theta: base of the angles in those layers; `local_rope_theta` that in the others.
        attention_bias: biases in attention; `mlp_bias`, `norm_bias`, `classifier_bias` in the other parts.
        bos_token_id: kept for `transformers`, as are the three below; None where the vocabulary is our own.
        classifier_pooling: what a classifier of sequences reads: the state of `[CLS]`, or the mean of all.
    """

    model_type: ClassVar[str] = "modernbert"
    only: ClassVar[Mapping[str, Any]] = {"decoder_bias": True}
    published_fields: ClassVar[Mapping[str, str]] = {
        "hidden_act": "hidden_activation",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
    }

    vocab_size: int = 50368
    hidden_size: int = 768
    num_hidden_layers: int = 22
    num_attention_heads: int = 12
    intermediate_size: int = 1152
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    embedding_dropout: float = 0.0
    max_position_embeddings: int = 8192
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 50283
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    cls_token_id: int | None = None
    sep_token_id: int | None = None
    tie_word_embeddings: bool = True
    classifier_dropout: float | None = 0.0
    # 窗口的一半是到两边的距离：少于 2 就一个邻居也看不见
    local_attention: int = option(128, min=2)
    global_attn_every_n_layers: int = option(3, min=1)
    global_rope_theta: float = option(160_000.0, above=0)
    local_rope_theta: float = option(10_000.0, above=0)
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    classifier_pooling: Literal["cls", "mean"] = option("cls")
    id2label: dict[int, str] = field(default_factory=dict)
    problem_type: str | None = None
    pruned_heads: dict[int, tuple[int, ...]] = field(default_factory=dict)
    is_decoder: bool = False

    def _check_together(self) -> None:
        super()._check_together()
        if self.classifier_activation not in ACTIVATION_FUNCTIONS:
            raise ConfigError(f"classifier_activation {self.classifier_activation!r} is unknown")
        if self.head_size % 2:
            raise ConfigError(f"heads of {self.head_size} dimensions cannot be turned in pairs; use an even number")

    @classmethod
    def _parse(cls, values: dict[str, Any], family: Family, path: Path) -> Self:
        """Reads both spellings of the layers' kinds: by period and base, and (newer) layer by layer."""
        values = dict(values)
        kinds, angles = values.pop("layer_types", None), values.pop("rope_parameters", None) or {}
        try:
            if kinds is not None:
                values["global_attn_every_n_layers"] = _period_of(kinds)
            for ours, theirs in (("global_rope_theta", "full_attention"), ("local_rope_theta", "sliding_attention")):
                if (angle := angles.get(theirs)) is not None:
                    if angle.get("rope_type", "default") != "default":
                        raise CheckpointError(
                            f"{path}: rope_type is {angle['rope_type']!r}; only 'default' can be read"
                        )
                    values[ours] = angle.get("rope_theta", values.get(ours))
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: layer_types or rope_parameters cannot be read ({error})") from None
        return super()._parse(values, family, path)

    @classmethod
    def intermediate_size_for(cls, hidden_size: int) -> int:
        """Returns the width of the feed-forward layer, 1.5 H as published; with its gate it has 4.5 H² weights."""
        return 3 * hidden_size // 2

    @property
    def reads_pairs(self) -> bool:
        """True: the `[SEP]` between two texts is enough."""
        return True

    def reads_whole_text(self, layer: int) -> bool:
        """Returns whether a layer reads the whole text; the others read a window."""
        return layer % self.global_attn_every_n_layers == 0

    def trained_on(self, length: int) -> Self:
        """Returns a copy that reads `REACH` times as far as it learns, and whose classifiers read the mean.

        Rotary positions have no table to be filled, and most layers see a window only. A mini that learned from 128
        tokens at a time predicts masks as well in 510 (docs/notes/measurements.md, "Vectors from nothing").
        """
        # 只学掩码时没有谁用过 [CLS]：分类器读所有词元的平均
        return self.with_position_limit(REACH * length).changed(classifier_pooling="mean")

    def norm(self) -> LayerNorm:
        """Returns a fresh norm over [..., H]."""
        return LayerNorm(self.hidden_size, eps=self.layer_norm_eps, bias=self.norm_bias)


def _period_of(kinds: list[str]) -> int:
    """Returns every how many layers the whole text is read; ValueError where that is no rule."""
    whole = [number for number, kind in enumerate(kinds) if kind == "full_attention"]
    period = whole[1] if len(whole) > 1 else len(kinds)
    if whole != list(range(0, len(kinds), period)):
        raise ValueError(f"layers {whole} of {len(kinds)} read the whole text, not the first and then every n-th")
    return period


class ModernBertEmbedding(nn.Module):
    """Token embedding, then LayerNorm and dropout: where a token stands is known to attention alone."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.word = Embedding(config.vocab_size, config.hidden_size)
        self.norm = config.norm()
        self.dropout = Dropout(config.embedding_dropout)
        self.compute_dtype = torch.float32

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Turns ids into vectors [T, H]; InputError where an id is out of range."""
        check_ids(batch, self.word.num_embeddings)
        embedded: Tensor = self.dropout(self.norm(self.word(batch.input_ids)).to(self.compute_dtype))
        return embedded


class ModernBertBlock(nn.Module):
    """x ← x + sublayer(LayerNorm(x)), for attention and for a GeGLU; nothing in between scales the residual path."""

    def __init__(self, config: ModernBertConfig, layer: int = 0) -> None:
        super().__init__()
        whole = config.reads_whole_text(layer)
        # 词嵌入刚刚归一化过：第一块不必再来一次
        self.attention_norm = nn.Identity() if layer == 0 else config.norm()
        self.attention = MultiHeadSelfAttention(
            config,
            num_heads=len(config.heads_left(layer)),
            bias=config.attention_bias,
            # 只看近处的层转得快，分辨相邻的词；看全文的层转得慢，八千个词里也不重复
            rotary_base=config.global_rope_theta if whole else config.local_rope_theta,
            window=None if whole else config.local_attention // 2,
        )
        self.output_norm = config.norm()
        self.intermediate = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.intermediate.stacked = 2
        self.activation = ACTIVATION_FUNCTIONS[config.hidden_act]
        self.output = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.attention_dropout = Dropout(config.attention_probs_dropout_prob)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Tensor, batch: RaggedBatch, *, places: Tensor | None = None, **asked: Any
    ) -> AttentionOutput:
        """Refines the states [T, H] by one layer; see `bert.TransformerBlock`."""
        mixed, maps = self.attention(self.attention_norm(hidden), batch, places=places, **asked)
        if places is not None:
            hidden = hidden.index_select(0, places)
        # 归一化在子层之前（pre-norm）：残差主干不被缩放，梯度直达底层，学习率可以大几倍
        hidden = hidden + self.attention_dropout(mixed)
        # GeGLU：一半经过激活，与另一半逐元素相乘，由后者决定放多少过去
        expanded = gated(self.intermediate(self.output_norm(hidden)), self.activation)  # [T, 2 I] → [T, I]
        return AttentionOutput(hidden + self.output(self.dropout(expanded)), maps)


class ModernBertEncoder(BertEncoder):
    """L blocks, and a norm on top: pre-norm states grow from block to block."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__(config, ModernBertBlock)
        self.head_size, self.rotary_bases = config.head_size, (config.global_rope_theta, config.local_rope_theta)
        self.norm = config.norm()

    def forward(self, hidden: Tensor, batch: RaggedBatch, **asked: Any) -> EncoderOutput:
        """Runs the blocks over embeddings [T, H]; the last of the `layers` is normed."""
        for base in self.rotary_bases:
            # 在块之外先算好：编译后的块只查表，否则每个头的每一对都要重算一次正弦
            rotary_angles(batch, self.head_size, base)
        encoded = super().forward(hidden, batch, **asked)
        states = self.norm(encoded.states)
        layers = None if encoded.layers is None else [*encoded.layers[:-1], states]
        return EncoderOutput(states, layers, encoded.attentions)


class ModernBertModel(BertModel):
    """The encoder with its embedding below; there is no pooler."""

    heads = ()
    sequence_outputs = ()

    def __init__(self, config: ModernBertConfig, *, need_pooler: bool = True) -> None:  # noqa: ARG002
        """Builds the network with fresh weights; the last matrix of every sub-layer starts smaller by √(2 L)."""
        Backbone.__init__(self, config)
        self.embedding = ModernBertEmbedding(config)
        self.encoder = ModernBertEncoder(config)
        self.pooler = None
        initialize_weights(self, config.initializer_range)
        with torch.no_grad():
            for block in self.encoder.blocks:
                # 残差主干是 2L 个子层之和：各自缩小，主干的方差才不随层数增长
                block.attention.output.weight /= math.sqrt(2 * config.num_hidden_layers)
                block.output.weight /= math.sqrt(2 * config.num_hidden_layers)

    def forward(self, batch: RaggedBatch, **asked: Any) -> BackboneOutput:
        """Encodes a batch; arguments and errors are those of `BertModel`."""
        # 没有位置表，也就没有表尾：能读多长由配置说
        check_length(batch, self.config.position_limit)
        return super().forward(batch, **asked)


class _Transform(nn.Module):
    """Dense, activation and norm: what every head has below its own layer."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size, bias=config.classifier_bias)
        self.activation = ACTIVATION_FUNCTIONS[config.classifier_activation]
        self.norm = config.norm()
        self.dropout = Dropout(0.0)

    def forward(self, states: Tensor) -> Tensor:
        transformed: Tensor = self.dropout(self.norm(self.activation(self.dense(states))))
        return transformed


class ModernBertMaskedLMHead(MaskedLMHead):
    """BERT's, with this family's layer below the decoder."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__(config)
        self.transform = Linear(config.hidden_size, config.hidden_size, bias=config.classifier_bias)
        self.activation = ACTIVATION_FUNCTIONS[config.classifier_activation]
        self.norm = config.norm()


class _Transformed(nn.Module):
    """A head over the common layer; of a whole text it reads `[CLS]` or the mean, as the configuration says."""

    reads: Reads

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__(config)
        self.transform = _Transform(config)
        if self.reads == "pooled":
            self.reads = config.classifier_pooling

    def forward(self, states: Tensor) -> Any:
        return super().forward(self.transform(states))


class ModernBertSequenceClassifier(_Transformed, SequenceClassifier):
    """The common layer, then BERT's classifier."""


class ModernBertTokenClassifier(_Transformed, TokenClassifier):
    """The common layer, then BERT's classifier of tokens."""


class ModernBertMultipleChoiceHead(_Transformed, MultipleChoiceHead):
    """The common layer, then BERT's vector."""


class ModernBertSpanHead(_Transformed, QASpanHead):
    """The common layer, dropout, then BERT's two vectors."""

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__(config)
        self.transform.dropout = classifier_dropout(config)


PUBLISHED_NAMES = PublishedNames(
    prefix="model.",
    backbone={
        "embedding.word": "embeddings.tok_embeddings",
        "embedding.norm": "embeddings.norm",
        "encoder.blocks.*.attention_norm": "layers.*.attn_norm",
        "encoder.blocks.*.attention.qkv": "layers.*.attn.Wqkv",
        "encoder.blocks.*.attention.output": "layers.*.attn.Wo",
        "encoder.blocks.*.output_norm": "layers.*.mlp_norm",
        "encoder.blocks.*.intermediate": "layers.*.mlp.Wi",
        "encoder.blocks.*.output": "layers.*.mlp.Wo",
        "encoder.norm": "final_norm",
    },
    heads={
        "masked_lm.transform": "head.dense",
        "masked_lm.norm": "head.norm",
        "masked_lm": "decoder",
        "masked_lm.decoder": "decoder",
        "classifier.transform.dense": "head.dense",
        "classifier.transform.norm": "head.norm",
        "classifier.linear": "classifier",
        "spans.transform.dense": "head.dense",
        "spans.transform.norm": "head.norm",
        "spans.linear": "classifier",
    },
    decoder="decoder",
)

FAMILY = Family(
    "modernbert",
    "ModernBert",
    ModernBertConfig,
    ModernBertModel,
    PUBLISHED_NAMES,
    heads={
        "masked_lm": ModernBertMaskedLMHead,
        "sequence_classifier": ModernBertSequenceClassifier,
        "token_classifier": ModernBertTokenClassifier,
        "multiple_choice": ModernBertMultipleChoiceHead,
        "spans": ModernBertSpanHead,
    },
    objective="mlm",
)
