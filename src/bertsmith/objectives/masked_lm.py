"""Masked LM: the pieces that were hidden are predicted from both sides (Devlin et al. 2019, §3.1 task 1)."""

from __future__ import annotations

from bertsmith.objectives.loss_term import LossTerm
from bertsmith.objectives.pretraining import LanguageModel, PreTrainingObjective, register


# 双向编码器若预测每个词，词会通过上层“看见自己”；只预测被遮住的 15%，左右两边的上下文才能同时用上
class MaskedLMLoss(LossTerm):
    """Mean of -log p(true piece) over the M chosen positions, in nats."""

    name, title = "mlm", "masked-LM"


MASKED_LM = LanguageModel(MaskedLMLoss(), targets="masked")
register(PreTrainingObjective("mlm", MASKED_LM))
