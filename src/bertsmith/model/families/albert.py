"""ALBERT (Lan et al. 2020): BERT with far fewer parameters, and sentence order instead of next sentence.

What differs from BERT, and why:
- the embedding is factorised (§3.1): V rows of E = 128 numbers and one matrix [E, H], instead of V rows of H. A piece
  by itself means little, its context much: the width belongs to the layers
- the L layers are one block that runs L times (§3.1): an eighteenth of the parameters of large; the same computation
- sentence order replaces next sentence (§3.1): the wrong pairs are swapped, not random, so that the topic gives nothing
  away
- smaller: GELU is its tanh form, and version 2 is published without dropout but before classifiers

Several groups of layers, and several blocks in a group, were ablations of the paper; no published model has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import Linear
from bertsmith.model.backbone import Backbone, initialize_weights
from bertsmith.model.families import bert
from bertsmith.model.families.bert import BertConfig, BertEmbedding, BertEncoder, BertModel, TransformerBlock
from bertsmith.model.family import Family
from bertsmith.model.heads import HEADS, NextSentenceHead

EMBEDDING_SIZE = 128
"""E of every published ALBERT: wider embeddings gained nothing once the layers were shared (table 3)."""


@dataclass(frozen=True)
class AlbertConfig(BertConfig):
    """BERT's fields, and `embedding_size`: E, the width of the embedding and of the masked-LM decoder."""

    model_type: ClassVar[str] = "albert"
    only: ClassVar[Mapping[str, Any]] = {**BertConfig.only, "num_hidden_groups": 1, "inner_group_num": 1}
    published_fields: ClassVar[Mapping[str, str]] = {"classifier_dropout": "classifier_dropout_prob"}

    vocab_size: int = 30000
    embedding_size: int = EMBEDDING_SIZE
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout: float | None = 0.1

    def _check_together(self) -> None:
        """Checks what one block in the place of all layers asks for."""
        super()._check_together()
        pruned = {tuple(sorted(heads)) for heads in self.pruned_heads.values()}
        if len(pruned) > 1 or (any(pruned) and len(self.pruned_heads) < self.num_hidden_layers):
            raise ConfigError(f"pruned_heads {self.pruned_heads}: the layers share their heads; prune the same in each")

    @classmethod
    def named(cls, size: str, **overrides: Any) -> AlbertConfig:
        """Returns a published size, with E = 128, or H where that is narrower."""
        return super().named(size, **{"embedding_size": min(EMBEDDING_SIZE, cls.shape_of(size)[1]), **overrides})


class FactorisedEmbedding(BertEmbedding):
    """BERT's embedding in E numbers, and a matrix that takes it to H (§3.1)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.projection = Linear(config.embedding_size, config.hidden_size)

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Turns ids into vectors [T, H]."""
        # V×E + E×H 个数代替 V×H：词表大时，省下的正是 BERT 最大的那张表
        projected: Tensor = self.projection(super().forward(batch))
        return projected


class SharedEncoder(BertEncoder):
    """One block that runs L times (§3.1)."""

    def __init__(self, config: AlbertConfig) -> None:
        nn.Module.__init__(self)
        self.block = TransformerBlock(config)
        # 普通列表而不是 ModuleList：同一个模块只登记一次，参数只数一次、只存一次
        self.blocks = [self.block] * config.num_hidden_layers
        self.gradient_checkpointing = "none"


class AlbertModel(BertModel):
    """The factorised embedding, the shared block, and BERT's pooler."""

    def __init__(self, config: AlbertConfig, *, need_pooler: bool = True) -> None:
        Backbone.__init__(self, config)
        self.embedding = FactorisedEmbedding(config)
        self.encoder = SharedEncoder(config)
        self.pooler = Linear(config.hidden_size, config.hidden_size) if need_pooler else None
        initialize_weights(self, config.initializer_range)


class SentenceOrderHead(NextSentenceHead):
    """One linear layer over the pooled `[CLS]`: class 0 is "in order", class 1 "swapped" (§3.1)."""

    published = "sop_logits"


_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
"""Where the one block is on disk: the first of the first group."""

PUBLISHED_NAMES = replace(
    bert.PUBLISHED_NAMES,
    prefix="albert.",
    backbone={
        **{ours: theirs for ours, theirs in bert.PUBLISHED_NAMES.backbone.items() if ours.startswith("embedding")},
        "embedding.projection": "encoder.embedding_hidden_mapping_in",
        "encoder.block.attention.qkv": tuple(f"{_LAYER}.attention.{name}" for name in ("query", "key", "value")),
        "encoder.block.attention.output": f"{_LAYER}.attention.dense",
        "encoder.block.attention_norm": f"{_LAYER}.attention.LayerNorm",
        "encoder.block.intermediate": f"{_LAYER}.ffn",
        "encoder.block.output": f"{_LAYER}.ffn_output",
        "encoder.block.output_norm": f"{_LAYER}.full_layer_layer_norm",
        "pooler": "pooler",
    },
    heads={
        "masked_lm.transform": "predictions.dense",
        "masked_lm.norm": "predictions.LayerNorm",
        "masked_lm": "predictions",
        "masked_lm.decoder": "predictions.decoder",
        "next_sentence.linear": "sop_classifier.classifier",
        "classifier.linear": "classifier",
        "spans.linear": "qa_outputs",
    },
    decoder="predictions.decoder",
)

FAMILY = Family(
    "albert",
    "Albert",
    AlbertConfig,
    AlbertModel,
    PUBLISHED_NAMES,
    {**HEADS, "next_sentence": SentenceOrderHead},
    objective="mlm+sop",
    tokenizer="unigram",
)
