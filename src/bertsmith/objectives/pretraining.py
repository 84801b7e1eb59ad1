"""The pre-training objective: the sum of the two losses (Devlin et al. 2019, appendix A.2)."""

from __future__ import annotations

from torch import Tensor

from bertsmith.data.stream import PreTrainingBatch
from bertsmith.model import BertForPreTraining
from bertsmith.objectives.masked_lm import MaskedLMLoss
from bertsmith.objectives.measure import Measure
from bertsmith.objectives.next_sentence import NSPLoss


class PreTrainingObjective:
    """Runs the model on a batch and adds up the masked-LM and next-sentence losses."""

    def __init__(self) -> None:
        self.masked_lm = MaskedLMLoss()
        self.next_sentence = NSPLoss()

    def __call__(self, model: BertForPreTraining, batch: PreTrainingBatch) -> Measure:
        """Returns the summed loss and the figures of both parts."""
        output = model(batch.tokens, batch.masked_positions)
        masked_lm = self.masked_lm(output.mlm_logits, batch.masked_labels)
        next_sentence = self.next_sentence(output.nsp_logits, batch.next_sentence_labels)
        loss: Tensor = masked_lm.loss + next_sentence.loss
        return Measure(loss, {**masked_lm.sums, **next_sentence.sums})
