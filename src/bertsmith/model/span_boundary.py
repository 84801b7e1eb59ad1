"""A pre-training model with the extra head of SpanBERT, for the time of its training (Joshi et al. 2020, §3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.model.architectures import BertForMaskedLM, BertForPreTraining
from bertsmith.model.heads import SpanBoundaryHead
from bertsmith.model.pretrained import PretrainedBert, initialize_weights


@dataclass(frozen=True)
class SpanPreTrainingOutput:
    """What `BertWithSpanBoundary` returns: `mlm_logits` and `sbo_logits` [M, V], `nsp_logits` [N, 2] or None."""

    mlm_logits: Tensor
    sbo_logits: Tensor
    nsp_logits: Tensor | None


class BertWithSpanBoundary(PretrainedBert):
    """Predicts each hidden piece twice: from its own state, and from the two tokens around its span.

    It takes over the modules of a plain model under the names they have there, and adds `span_boundary`. Training
    states hold all of it; `save_pretrained` writes the folder of the plain model.

    Attributes:
        plain: the model that was given; it shares all weights.
    """

    def __init__(self, plain: BertForMaskedLM | BertForPreTraining) -> None:
        super().__init__()
        self.config = plain.config
        self.bert = plain.bert
        self.masked_lm = plain.masked_lm
        self.next_sentence = plain.next_sentence if isinstance(plain, BertForPreTraining) else None
        self.span_boundary = SpanBoundaryHead(plain.config)
        initialize_weights(self.span_boundary, plain.config.initializer_range)
        # 放在元组里而不登记为子模块：参数只以原来的名字出现一次
        self._plain = (plain,)

    @property
    def plain(self) -> BertForMaskedLM | BertForPreTraining:
        """The model without the extra head."""
        return self._plain[0]

    def forward(self, batch: RaggedBatch, masked_positions: Tensor, spans: Tensor) -> SpanPreTrainingOutput:
        """Predicts the hidden pieces.

        Args:
            batch: N sequences.
            masked_positions: [M] int64 indices into the T tokens.
            spans: [M, 3] int64, as `SpanBoundaryHead` takes them.
        """
        output = self.bert(batch)
        embedding = self.bert.embedding.word.weight
        mlm_logits = self.masked_lm(output.hidden_states.index_select(0, masked_positions), embedding)
        sbo_logits = self.masked_lm.decode(self.span_boundary(output.hidden_states, spans), embedding)
        nsp_logits = None if self.next_sentence is None else self.next_sentence(output.pooled)
        return SpanPreTrainingOutput(mlm_logits, sbo_logits, nsp_logits)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the folder of the plain model, which `transformers` reads; see `PretrainedBert`."""
        self.plain.save_pretrained(folder)
