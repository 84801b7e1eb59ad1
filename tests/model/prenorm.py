"""A family in one file, as a user would add it: BERT with the norm before each sub-layer (Xiong et al. 2020).

The residual path is then never normalised on its way up, so that training needs less warm-up; one norm at the top
makes up for it. Embeddings, heads, configuration and most published names are BERT's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.kernels.layers import LayerNorm
from bertsmith.model.attention import AttentionOutput
from bertsmith.model.backbone import initialize_weights
from bertsmith.model.families.bert import (
    PUBLISHED_NAMES,
    BertConfig,
    BertEncoder,
    BertModel,
    EncoderOutput,
    TransformerBlock,
)
from bertsmith.model.family import Family
from bertsmith.model.heads import HEADS


@dataclass(frozen=True)
class PreNormConfig(BertConfig):
    """The fields of BERT's `config.json`."""

    model_type: ClassVar[str] = "prenorm"


class PreNormBlock(TransformerBlock):
    """x ← x + Dropout(sublayer(LayerNorm(x))), for attention and for the feed-forward layer."""

    def forward(
        self, hidden: Tensor, batch: RaggedBatch, *, places: Tensor | None = None, **asked: Any
    ) -> AttentionOutput:
        """Refines the states [T, H] by one layer."""
        mixed, maps = self.attention(self.attention_norm(hidden), batch, places=places, **asked)
        if places is not None:
            hidden = hidden.index_select(0, places)
        # 残差路径上没有归一化：梯度直通到底，不必靠预热来稳住
        hidden = hidden + self.dropout(mixed)
        expanded = self.activation(self.intermediate(self.output_norm(hidden)))
        return AttentionOutput(hidden + self.dropout(self.output(expanded)), maps)


class PreNormEncoder(BertEncoder):
    """L blocks, and a norm on top."""

    def __init__(self, config: PreNormConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(PreNormBlock(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, batch: RaggedBatch, **asked: Any) -> EncoderOutput:
        """Runs the blocks over embeddings [T, H]."""
        encoded = super().forward(hidden, batch, **asked)
        return encoded._replace(states=self.norm(encoded.states))


class PreNormModel(BertModel):
    """BERT's embeddings and pooler around another encoder."""

    def __init__(self, config: PreNormConfig, *, need_pooler: bool = True) -> None:
        super().__init__(config, need_pooler=need_pooler)
        self.encoder = PreNormEncoder(config)
        initialize_weights(self, config.initializer_range)


NAMES = replace(
    PUBLISHED_NAMES, prefix="prenorm.", backbone={**PUBLISHED_NAMES.backbone, "encoder.norm": "encoder.LayerNorm"}
)
FAMILY = Family("prenorm", "PreNorm", PreNormConfig, PreNormModel, NAMES, HEADS)
