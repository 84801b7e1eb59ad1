"""Sentence order: do two consecutive segments stand in their order? (Lan et al. 2020, §3.1)."""

from __future__ import annotations

from bertsmith.objectives.loss_term import LossTerm
from bertsmith.objectives.masked_lm import MASKED_LM
from bertsmith.objectives.pretraining import PairTask, PreTrainingObjective, register


# 随机的 B 换了话题，凭话题就能答对 NSP；这里两段出自同一处，只有连贯性能说明次序
class SOPLoss(LossTerm):
    """Mean cross-entropy over the sequences that carry a label, in nats; chance is log 2 = 0.693.

    Class 0 is "in order", class 1 "swapped". The head is that of next-sentence prediction.
    """

    name, title = "sop", "sentence-order"


register(PreTrainingObjective("mlm+sop", MASKED_LM, PairTask(SOPLoss(), pairs="sentence_order")))
