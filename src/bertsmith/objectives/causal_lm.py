"""Left-to-right LM: every token predicts the next (the ablation of Devlin et al. 2019, §5.1)."""

from __future__ import annotations

from bertsmith.objectives.loss_term import LossTerm
from bertsmith.objectives.pretraining import LanguageModel, PreTrainingObjective, register


# 单向的对照：每个词都能学，但只看得见左边；论文用它说明双向上下文的价值
class CausalLMLoss(LossTerm):
    """Mean of -log p(next piece) over all tokens that have a next one, in nats; `[SEP]` is predicted too."""

    name, title = "ltr", "left-to-right"


CAUSAL_LM = LanguageModel(CausalLMLoss(), targets="next_token")
register(PreTrainingObjective("ltr", CAUSAL_LM))
