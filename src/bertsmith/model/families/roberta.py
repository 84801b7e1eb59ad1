"""RoBERTa (Liu et al. 2019): BERT's network, trained better; XLM-RoBERTa and CamemBERT are the same in other languages.

What differs from BERT (`bert.py`), and why:

- no next sentence: full sentences up to the length taught more (§4.2), so there is one segment and no pair head; two
  texts are told apart by the `</s></s>` between them
- masks are drawn anew in every pass over the text (§4.1), which every run of this package does
- the pieces are those of byte-level BPE (§4.4), which spells any text; XLM-RoBERTa and CamemBERT have Unigram pieces
- positions count from `pad_token_id + 1`, as the published code does: the rows before are of padding
- the classifier brings its own layer over `<s>`: the pooler is left out
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.kernels.layers import Dropout, Linear
from bertsmith.model.backbone import initialize_weights
from bertsmith.model.config import ModelConfig
from bertsmith.model.families import bert
from bertsmith.model.families.bert import BertConfig, BertEmbedding, BertModel, check_ids, check_length
from bertsmith.model.family import Family
from bertsmith.model.heads import HEADS, MaskedLMHead, MultipleChoiceHead, Reads, classifier_dropout, count_labels


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """BERT's fields with RoBERTa's values; `max_position_embeddings` counts the rows that no token takes."""

    model_type: ClassVar[str] = "roberta"

    vocab_size: int = 50265
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    @property
    def first_position(self) -> int:
        """The row of the first token: those up to that of the padding are no positions."""
        return self.pad_token_id + 1

    @property
    def reads_pairs(self) -> bool:
        """True: the separators between two texts are enough."""
        return True


class RobertaEmbedding(BertEmbedding):
    """Token + position embedding, and the one segment's; the positions begin after the row of the padding."""

    def __init__(self, config: RobertaConfig) -> None:
        super().__init__(config)
        self.first_position = config.first_position

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Turns ids into vectors [T, H] in `compute_dtype`; segments are not read; errors as in `BertEmbedding`."""
        check_length(batch, self.position.num_embeddings - self.first_position)
        check_ids(batch, self.word.num_embeddings)
        # 只有一个段：不管批次怎么写段号，每个词都加同一行
        summed = (
            self.word(batch.input_ids)
            + self.position(batch.position_ids + self.first_position)
            + self.token_type.weight[0]
        )  # [T, H]
        embedded: Tensor = self.dropout(self.norm(summed).to(self.compute_dtype))
        return embedded


class RobertaModel(BertModel):
    """BERT's encoder over RoBERTa's embedding."""

    def __init__(self, config: RobertaConfig, *, need_pooler: bool = True) -> None:
        super().__init__(config, need_pooler=need_pooler)
        self.embedding = RobertaEmbedding(config)
        initialize_weights(self.embedding, config.initializer_range)


class RobertaMaskedLMHead(MaskedLMHead):
    """BERT's masked-LM head; its activation is GELU whatever that of the layers is."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.activation = F.gelu


class RobertaClassifier(nn.Module):
    """Dense + tanh and one linear layer over `<s>`, with dropout before each: the pooler is part of the head."""

    reads: ClassVar[Reads] = "cls"
    output: ClassVar[str] = "projection"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = classifier_dropout(config)
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation: Callable[[Tensor], Tensor] = torch.tanh
        self.projection = Linear(config.hidden_size, count_labels(config))

    def forward(self, cls: Tensor) -> Tensor:
        """Maps states [N, H] of `<s>` to logits [N, num_labels], in float32."""
        # 没有“下一句”就没有东西训练 pooler：这一层从微调才开始学
        pooled = self.activation(self.dense(self.dropout(cls)))
        logits: Tensor = self.projection(self.dropout(pooled).float())
        return logits


class RobertaMultipleChoiceHead(MultipleChoiceHead):
    """BERT's, over the pooled `<s>`, with the dropout of the hidden states whatever that of classifiers is."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.hidden_dropout_prob)


PUBLISHED_NAMES = replace(
    bert.PUBLISHED_NAMES,
    prefix="roberta.",
    heads={
        "masked_lm.transform": "lm_head.dense",
        "masked_lm.norm": "lm_head.layer_norm",
        "masked_lm": "lm_head",
        "masked_lm.decoder": "lm_head.decoder",
        "classifier.dense": "classifier.dense",
        "classifier.projection": "classifier.out_proj",
        "classifier.linear": "classifier",
        "spans.linear": "qa_outputs",
    },
    decoder="lm_head.decoder",
)

FAMILY = Family(
    "roberta",
    "Roberta",
    RobertaConfig,
    RobertaModel,
    PUBLISHED_NAMES,
    {
        "masked_lm": RobertaMaskedLMHead,
        "sequence_classifier": RobertaClassifier,
        "token_classifier": HEADS["token_classifier"],
        "multiple_choice": RobertaMultipleChoiceHead,
        "spans": HEADS["spans"],
    },
    objective="mlm",
    tokenizer="bpe",
)


@dataclass(frozen=True)
class XLMRobertaConfig(RobertaConfig):
    """RoBERTa's fields."""

    model_type: ClassVar[str] = "xlm-roberta"


@dataclass(frozen=True)
class CamembertConfig(RobertaConfig):
    """RoBERTa's fields."""

    model_type: ClassVar[str] = "camembert"


XLM_ROBERTA = replace(FAMILY, model_type="xlm-roberta", name="XLMRoberta", config=XLMRobertaConfig, tokenizer="unigram")
"""RoBERTa over text in a hundred languages, cut into one Unigram vocabulary (Conneau et al. 2020)."""
CAMEMBERT = replace(FAMILY, model_type="camembert", name="Camembert", config=CamembertConfig, tokenizer="unigram")
"""RoBERTa over French, with whole words masked (Martin et al. 2020)."""
