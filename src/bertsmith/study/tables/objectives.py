"""What is learned from text: the paper's ablation of its objectives (Devlin et al. 2019, §5.1, table 5)."""

from __future__ import annotations

from bertsmith.study.study import Arm, Base, Study, start


class Objectives(Study):
    """MLM with and without next sentence, left to right, and what came later: sentence order, replaced tokens."""

    name, title = "objectives", "What is learned: objectives of pre-training"
    source = "Devlin et al. 2019, §5.1, table 5"
    found = (
        "Without next sentence, QNLI loses 3.5 points, MNLI 0.5 and SQuAD 0.6 F1; left to right loses on every task,"
        " most on MRPC (-9.0) and SQuAD (-10.1 F1), and a BiLSTM on top helps SQuAD alone."
    )

    def arms(self, base: Base) -> list[Arm]:
        """Returns the rows of table 5, and two newer ones."""
        left_to_right = start(objective="ltr")
        arms = [
            Arm("MLM + NSP", start(objective="mlm+nsp")),
            Arm("MLM, no NSP", start(objective="mlm")),
            Arm("left to right, no NSP", left_to_right),
        ]
        if base.has_tags:
            # 论文在左到右模型之上加随机初始化的 BiLSTM，与它一起微调：右边的上下文只能在微调时补
            options = {"layers": "last", "tagger_head_size": 256, "train_encoder": True}
            arms.append(Arm("left to right + BiLSTM", left_to_right, {"": options}))
        return [
            *arms,
            Arm("MLM + sentence order", start(objective="mlm+sop")),
            Arm("replaced tokens (ELECTRA)", start(family="electra", objective="rtd")),
        ]
