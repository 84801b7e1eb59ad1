"""DistilBERT (Sanh et al. 2019): a BERT of half the layers that learned from the whole one.

What differs from BERT (`bert.py`), and why:

- six layers of base width, started as every second layer of the teacher (§3): it is the operations that a small model
  has to save, and those lie in the layers
- no segments and no pooler (§3): nothing in its training reads them; two texts are told apart by `[SEP]`
- the classifier brings its own layer over `[CLS]`
- its `config.json` and its tensors have names of their own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.kernels.layers import Dropout, Embedding, LayerNorm, Linear
from bertsmith.model.backbone import Backbone, initialize_weights
from bertsmith.model.config import ModelConfig
from bertsmith.model.families.bert import BertEncoder, BertModel, TransformerBlock, check_ids, check_length
from bertsmith.model.family import Family, PublishedNames
from bertsmith.model.heads import (
    MaskedLMHead,
    QASpanHead,
    Reads,
    SpanScores,
    TokenClassifier,
    classifier_dropout,
    count_labels,
)


@dataclass(frozen=True)
class DistilBertConfig(ModelConfig):
    """The architecture of a DistilBERT; see `ModelConfig` for the fields that all families have.

    Attributes:
        sinusoidal_pos_embds: whether the position table was sines at first; they were trained like any other weights.
    """

    model_type: ClassVar[str] = "distilbert"
    only: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-12}
    published_fields: ClassVar[Mapping[str, str]] = {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    }

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    tie_word_embeddings: bool = True
    classifier_dropout: float | None = 0.2
    sinusoidal_pos_embds: bool = False
    qa_dropout: float = 0.1
    id2label: dict[int, str] = field(default_factory=dict)
    problem_type: str | None = None
    pruned_heads: dict[int, tuple[int, ...]] = field(default_factory=dict)
    is_decoder: bool = False

    @property
    def reads_pairs(self) -> bool:
        """True: the `[SEP]` between two texts is enough."""
        return True


class DistilBertEmbedding(nn.Module):
    """Token + position embedding, then LayerNorm and dropout, in `compute_dtype`."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__()
        self.word = Embedding(config.vocab_size, config.hidden_size)
        self.position = Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.compute_dtype = torch.float32

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Turns ids into vectors [T, H]; segments are not read; errors as in `BertEmbedding`."""
        check_length(batch, self.position.num_embeddings)
        check_ids(batch, self.word.num_embeddings)
        summed = self.word(batch.input_ids) + self.position(batch.position_ids)  # [T, H]
        embedded: Tensor = self.dropout(self.norm(summed).to(self.compute_dtype))
        return embedded


class DistilBertBlock(TransformerBlock):
    """BERT's block, without the dropout between attention and its residual."""

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        super().__init__(config, layer)
        self.attention_dropout = Dropout(0.0)


class DistilBertModel(BertModel):
    """BERT's encoder over an embedding without segments; there is no pooler."""

    def __init__(self, config: DistilBertConfig, *, need_pooler: bool = True) -> None:  # noqa: ARG002
        Backbone.__init__(self, config)
        self.embedding = DistilBertEmbedding(config)
        self.encoder = BertEncoder(config, DistilBertBlock)
        self.pooler = None
        initialize_weights(self, config.initializer_range)


class DistilBertClassifier(nn.Module):
    """Dense + ReLU over `[CLS]` and one linear layer, with dropout between: the pooler is part of the head."""

    reads: ClassVar[Reads] = "cls"
    output: ClassVar[str] = "linear"

    def __init__(self, config: ModelConfig, outputs: int | None = None) -> None:
        """Builds the head, with one output for each label where no other number is asked for."""
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.dropout = classifier_dropout(config)
        self.linear = Linear(config.hidden_size, count_labels(config) if outputs is None else outputs)

    def forward(self, cls: Tensor) -> Tensor:
        """Maps states [N, H] of `[CLS]` to logits [N, outputs], in float32."""
        # 蒸馏时没有“下一句”：发布的模型没有 pooler，这一层从微调才开始学
        logits: Tensor = self.linear(self.dropout(F.relu(self.dense(cls))).float())
        return logits


class DistilBertChoice(DistilBertClassifier):
    """One output, the score of a choice."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, 1)

    def forward(self, cls: Tensor) -> Tensor:
        """Maps states [N, H] of `[CLS]` to scores [N], in float32."""
        return super().forward(cls).squeeze(-1)


class DistilBertTokenClassifier(TokenClassifier):
    """BERT's, with the dropout of the hidden states."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.hidden_dropout_prob)


class DistilBertSpanHead(QASpanHead):
    """BERT's, with dropout before it."""

    def __init__(self, config: DistilBertConfig) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.qa_dropout)

    def forward(self, states: Tensor) -> SpanScores:
        """Maps states [T, H] to start and end scores [T], in float32."""
        return super().forward(self.dropout(states))


PUBLISHED_NAMES = PublishedNames(
    prefix="distilbert.",
    backbone={
        "embedding.word": "embeddings.word_embeddings",
        "embedding.position": "embeddings.position_embeddings",
        "embedding.norm": "embeddings.LayerNorm",
        "encoder.blocks.*.attention.qkv": tuple(f"transformer.layer.*.attention.{name}_lin" for name in "qkv"),
        "encoder.blocks.*.attention.output": "transformer.layer.*.attention.out_lin",
        "encoder.blocks.*.attention_norm": "transformer.layer.*.sa_layer_norm",
        "encoder.blocks.*.intermediate": "transformer.layer.*.ffn.lin1",
        "encoder.blocks.*.output": "transformer.layer.*.ffn.lin2",
        "encoder.blocks.*.output_norm": "transformer.layer.*.output_layer_norm",
    },
    heads={
        "masked_lm.transform": "vocab_transform",
        "masked_lm.norm": "vocab_layer_norm",
        "masked_lm": "vocab_projector",
        "masked_lm.decoder": "vocab_projector",
        "classifier.dense": "pre_classifier",
        "classifier.linear": "classifier",
        "spans.linear": "qa_outputs",
    },
    decoder="vocab_projector",
)

FAMILY = Family(
    "distilbert",
    "DistilBert",
    DistilBertConfig,
    DistilBertModel,
    PUBLISHED_NAMES,
    {
        "masked_lm": MaskedLMHead,
        "sequence_classifier": DistilBertClassifier,
        "token_classifier": DistilBertTokenClassifier,
        "multiple_choice": DistilBertChoice,
        "spans": DistilBertSpanHead,
    },
    objective="mlm",
)
