"""Next-sentence prediction: does B follow A, or is it random? (Devlin et al. 2019, §3.1 task 2)."""

from __future__ import annotations

from bertsmith.objectives.causal_lm import CAUSAL_LM
from bertsmith.objectives.loss_term import LossTerm
from bertsmith.objectives.masked_lm import MASKED_LM
from bertsmith.objectives.pretraining import PairTask, PreTrainingObjective, register


# 语言模型学不到句与句的关系，而问答、推理都靠它：用 [CLS] 的状态判断 B 是不是 A 的下文
class NSPLoss(LossTerm):
    """Mean cross-entropy over the sequences that carry a label, in nats; chance is log 2 = 0.693.

    Class 0 is "is next", class 1 "is random"; a sequence without a second segment has no label.
    """

    name, title = "nsp", "next-sentence"


NEXT_SENTENCE = PairTask(NSPLoss(), pairs="next_sentence")
register(PreTrainingObjective("mlm+nsp", MASKED_LM, NEXT_SENTENCE))
register(PreTrainingObjective("ltr+nsp", CAUSAL_LM, NEXT_SENTENCE))
