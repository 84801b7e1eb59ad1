"""ELECTRA (Clark et al. 2020): a BERT that learns from every token, by telling which of them were replaced.

A small *generator* fills masks, as BERT does, and the *discriminator* says of every token whether it is the one that
was written (§2, figure 2). The generator's mistakes are plausible, so the question stays hard; and all tokens give a
loss, not the masked 15 %. Fine-tuning takes the discriminator. The objective is `objectives/replaced_tokens.py`.

What differs from BERT, and why:
- the embedding may have a width of its own and a matrix to H, as in ALBERT (§3.3, small; and the generator, which
  shares the discriminator's embedding and is narrower: §3.2)
- no pooler: nothing is trained on `[CLS]`, so the classifier brings its own layer over it
- a generator has RoBERTa's masked-LM head in E numbers (`ElectraForMaskedLM`), a discriminator one number a token
  (`ElectraForPreTraining`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.kernels.layers import Dropout, Linear
from bertsmith.model.backbone import Backbone, initialize_weights
from bertsmith.model.config import ModelConfig
from bertsmith.model.families import bert
from bertsmith.model.families.albert import FactorisedEmbedding
from bertsmith.model.families.bert import BertConfig, BertEmbedding, BertEncoder, BertModel
from bertsmith.model.families.roberta import RobertaClassifier, RobertaMaskedLMHead
from bertsmith.model.family import Family
from bertsmith.model.heads import ACTIVATION_FUNCTIONS, HEADS, Reads


@dataclass(frozen=True)
class ElectraConfig(BertConfig):
    """BERT's fields, and those of the parts that ELECTRA adds.

    Attributes:
        embedding_size: E, the width of the embedding and of the generator's decoder.
        summary_last_dropout: dropout before the score of a choice, in [0, 1).
    """

    model_type: ClassVar[str] = "electra"
    only: ClassVar[Mapping[str, Any]] = {
        **BertConfig.only,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    }

    embedding_size: int = 128
    summary_last_dropout: float = 0.1

    @classmethod
    def named(cls, size: str, **overrides: Any) -> ElectraConfig:
        """Returns a published size: in small and below E is 128 at most, above it is H (table 6)."""
        hidden = cls.shape_of(size)[1]
        return super().named(size, **{"embedding_size": min(128, hidden) if hidden <= 256 else hidden, **overrides})


class ElectraModel(BertModel):
    """BERT's encoder without a pooler, over an embedding that may be narrower."""

    def __init__(self, config: ElectraConfig, *, need_pooler: bool = True) -> None:  # noqa: ARG002
        # 越过 BertModel 的构造函数：它的嵌入总有 H 那么宽，还会建池化层
        Backbone.__init__(self, config)
        wide = config.embedding_size == config.hidden_size
        self.embedding = BertEmbedding(config) if wide else FactorisedEmbedding(config)
        self.encoder = BertEncoder(config)
        self.pooler = None
        initialize_weights(self, config.initializer_range)


class ReplacedTokenHead(nn.Module):
    """Dense + activation, and one number a token: above 0, the token was replaced (§2)."""

    reads: ClassVar[Reads] = "hidden_states"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATION_FUNCTIONS[config.hidden_act]
        self.linear = Linear(config.hidden_size, 1)

    def forward(self, states: Tensor) -> Tensor:
        """Maps states [T, H] to logits [T], in float32."""
        logits: Tensor = self.linear(self.activation(self.dense(states)).float())
        return logits.squeeze(-1)


class ElectraClassifier(RobertaClassifier):
    """RoBERTa's, over `[CLS]` and with GELU: nothing was pre-trained on that state here either."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.activation = F.gelu


class MultipleChoiceHead(nn.Module):
    """Dense + GELU over `[CLS]`, and one vector whose product with it is the score of a choice."""

    reads: ClassVar[Reads] = "cls"

    def __init__(self, config: ElectraConfig) -> None:
        super().__init__()
        self.summary = Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.summary_last_dropout)
        self.linear = Linear(config.hidden_size, 1)

    def forward(self, cls: Tensor) -> Tensor:
        """Maps states [N, H] of `[CLS]` to scores [N], in float32."""
        scores: Tensor = self.linear(self.dropout(F.gelu(self.summary(cls))).float())
        return scores.squeeze(-1)


PUBLISHED_NAMES = replace(
    bert.PUBLISHED_NAMES,
    prefix="electra.",
    backbone={
        **{ours: theirs for ours, theirs in bert.PUBLISHED_NAMES.backbone.items() if ours != "pooler"},
        "embedding.projection": "embeddings_project",
    },
    heads={
        "masked_lm.transform": "generator_predictions.dense",
        "masked_lm.norm": "generator_predictions.LayerNorm",
        "masked_lm": "generator_lm_head",
        "masked_lm.decoder": "generator_lm_head",
        "replaced_tokens.dense": "discriminator_predictions.dense",
        "replaced_tokens.linear": "discriminator_predictions.dense_prediction",
        "classifier.dense": "classifier.dense",
        "classifier.projection": "classifier.out_proj",
        "classifier.summary": "sequence_summary.summary",
        "classifier.linear": "classifier",
        "spans.linear": "qa_outputs",
    },
    decoder="generator_lm_head",
)

FAMILY = Family(
    "electra",
    "Electra",
    ElectraConfig,
    ElectraModel,
    PUBLISHED_NAMES,
    {
        "masked_lm": RobertaMaskedLMHead,
        "replaced_tokens": ReplacedTokenHead,
        "sequence_classifier": ElectraClassifier,
        "token_classifier": HEADS["token_classifier"],
        "multiple_choice": MultipleChoiceHead,
        "spans": HEADS["spans"],
    },
    objective="rtd",
)
