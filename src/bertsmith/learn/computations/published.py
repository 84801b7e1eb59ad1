"""What the paper reports, table by table (Devlin et al. 2019, NAACL, tables 1 to 8): facts, not computed here."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.learn.lesson import Cell, Computation, Language, Step, Text

PAPER = "Devlin et al. 2019, https://aclanthology.org/N19-1423"


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper.

    Attributes:
        number: of the table.
        about: what is measured, and on which examples.
        columns: after the name of the system.
        rows: name of the system, and its figures; "–" where the paper has none.
    """

    number: int
    about: Text
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


# MNLI 有两个测试集（匹配与不匹配），论文写在一格里；求平均时算两个
GLUE_TASKS = ("MNLI m/mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")

TABLES: dict[str, PublishedTable] = {
    "glue": PublishedTable(
        1,
        Text(
            "GLUE test, scored by its server: accuracy; F1 for QQP and MRPC, Matthews correlation for CoLA, Spearman"
            " correlation for STS-B; the average leaves WNLI out",
            "GLUE 测试集，由其服务器评分：准确率；QQP 与 MRPC 为 F1，CoLA 为马修斯相关系数，STS-B 为斯皮尔曼相关系数；"
            "平均不含 WNLI",
        ),
        (*GLUE_TASKS, "average"),
        (
            ("training examples", "392k", "363k", "108k", "67k", "8.5k", "5.7k", "3.5k", "2.5k", "–"),
            ("best before OpenAI GPT", "80.6/80.1", 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7, 74.0),
            ("BiLSTM + ELMo + attention", "76.4/76.1", 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8, 71.0),
            ("OpenAI GPT", "82.1/81.4", 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1),
            ("BERT base", "84.6/83.4", 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
            ("BERT large", "86.7/85.9", 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
        ),
    ),
    "squad": PublishedTable(
        2,
        Text(
            "SQuAD 1.1: exact match and F1 of the answer, development and test set",
            "SQuAD 1.1：答案的完全匹配率（EM）与 F1，开发集与测试集",
        ),
        ("dev EM", "dev F1", "test EM", "test F1"),
        (
            ("human", "–", "–", 82.3, 91.2),
            ("best on the leaderboard then, nlnet (ensemble)", "–", "–", 86.0, 91.7),
            ("BiDAF + ELMo", "–", 85.6, "–", 85.8),
            ("R.M. Reader (ensemble)", 81.2, 87.9, 82.3, 88.5),
            ("BERT base", 80.8, 88.5, "–", "–"),
            ("BERT large", 84.1, 90.9, "–", "–"),
            ("BERT large (ensemble)", 85.8, 91.8, "–", "–"),
            ("BERT large + TriviaQA", 84.2, 91.1, 85.1, 91.8),
            ("BERT large + TriviaQA (ensemble)", 86.2, 92.2, 87.4, 93.2),
        ),
    ),
    "squad without answers": PublishedTable(
        3,
        Text(
            "SQuAD 2.0, where some questions have no answer: exact match and F1",
            "SQuAD 2.0（有的问题没有答案）：完全匹配率（EM）与 F1",
        ),
        ("dev EM", "dev F1", "test EM", "test F1"),
        (
            ("human", 86.3, 89.0, 86.9, 89.5),
            ("best on the leaderboard then, MIR-MRC (F-Net)", "–", "–", 74.8, 78.0),
            ("unet (ensemble)", "–", "–", 71.4, 74.9),
            ("BERT large", 78.7, 81.9, 80.0, 83.1),
        ),
    ),
    "swag": PublishedTable(
        4,
        Text("SWAG: the right ending of four, accuracy", "SWAG：四个结尾中选对的比例"),
        ("dev", "test"),
        (
            ("ESIM + GloVe", 51.9, 52.7),
            ("ESIM + ELMo", 59.1, 59.2),
            ("OpenAI GPT", "–", 78.0),
            ("BERT base", 81.6, "–"),
            ("BERT large", 86.6, 86.3),
            ("human, an expert", "–", 85.0),
            ("human, five annotators", "–", 88.0),
        ),
    ),
    "ablation": PublishedTable(
        5,
        Text(
            "BERT base, development sets: accuracy, and F1 for SQuAD",
            "BERT base，开发集：准确率，SQuAD 为 F1",
        ),
        ("MNLI-m", "QNLI", "MRPC", "SST-2", "SQuAD"),
        (
            ("whole", 84.4, 88.4, 86.7, 92.7, 88.5),
            ("no next sentence", 83.9, 84.9, 86.5, 92.6, 87.9),
            ("left to right, no next sentence", 82.1, 84.3, 77.5, 92.1, 77.8),
            ("the same, with a BiLSTM on top", 82.1, 84.1, 75.7, 91.6, 84.9),
        ),
    ),
    "sizes": PublishedTable(
        6,
        Text(
            "Layers, hidden size and heads: perplexity of the masked language model, and accuracy on development sets",
            "层数、隐藏维度、注意力头数：掩码语言模型的困惑度，以及开发集上的准确率",
        ),
        ("perplexity", "MNLI-m", "MRPC", "SST-2"),
        (
            # 困惑度有两位小数，写成文字：数字一律只印一位
            ("3 layers of 768, 12 heads", "5.84", 77.9, 79.8, 88.4),
            ("6 layers of 768, 3 heads", "5.24", 80.6, 82.2, 90.7),
            ("6 layers of 768, 12 heads", "4.68", 81.9, 84.8, 91.3),
            ("12 layers of 768, 12 heads", "3.99", 84.4, 86.7, 92.9),
            ("12 layers of 1024, 16 heads", "3.54", 85.7, 86.9, 93.3),
            ("24 layers of 1024, 16 heads", "3.23", 86.6, 87.8, 93.7),
        ),
    ),
    "entities": PublishedTable(
        7,
        Text("CoNLL-2003, named entities: F1", "CoNLL-2003，命名实体：F1"),
        ("dev", "test"),
        (
            ("ELMo", 95.7, 92.2),
            ("CVT", "–", 92.6),
            ("CSE", "–", 93.1),
            ("BERT large, fine-tuned", 96.6, 92.8),
            ("BERT base, fine-tuned", 96.4, 92.4),
            ("BERT base, frozen: embeddings", 91.0, "–"),
            ("BERT base, frozen: second-to-last layer", 95.6, "–"),
            ("BERT base, frozen: last layer", 94.9, "–"),
            ("BERT base, frozen: weighted sum of the last four", 95.9, "–"),
            ("BERT base, frozen: last four joined", 96.1, "–"),
            ("BERT base, frozen: weighted sum of all twelve", 95.5, "–"),
        ),
    ),
    "masking": PublishedTable(
        8,
        Text(
            "What becomes of a chosen piece ([MASK] / itself / a random piece), BERT base, development sets: accuracy"
            " for MNLI, F1 for entities",
            "被选中的词片变成什么（[MASK] / 不变 / 随机词片），BERT base，开发集：MNLI 为准确率，命名实体为 F1",
        ),
        ("MNLI", "entities, fine-tuned", "entities, frozen"),
        (
            ("80 / 10 / 10 %", 84.2, 95.4, 94.9),
            ("100 / 0 / 0 %", 84.3, 94.9, 94.0),
            ("80 / 0 / 20 %", 84.1, 95.2, 94.6),
            ("80 / 20 / 0 %", 84.4, 95.2, 94.7),
            ("0 / 20 / 80 %", 83.7, 94.8, 94.6),
            ("0 / 0 / 100 %", 83.6, 94.9, 94.6),
        ),
    ),
}
"""The paper's tables by name, as the final version prints them."""


ALL = "all"
"""The choice that shows every table."""


def figure(table: str, row: str, column: str) -> float:
    """Returns one figure of the paper."""
    chosen = TABLES[table]
    return next(float(each[1 + chosen.columns.index(column)]) for each in chosen.rows if each[0] == row)


def published(*, id: str, title: str, language: Language, table: str) -> Computation:
    """Prints one of the paper's tables or all, and gives the figures that the text speaks of."""
    head = Text("system", "系统")(language)
    steps = []
    for chosen in TABLES.values() if table == ALL else [TABLES[table]]:
        source = Text(f"{PAPER}, table {chosen.number}", f"{PAPER}，表 {chosen.number}")(language)
        rows = [tuple(f"{cell:.1f}" if isinstance(cell, float) else cell for cell in row) for row in chosen.rows]
        steps.append(Step(chosen.about(language), rows, source, columns=(head, *chosen.columns)))
    # 课文与练习里的数字都从表中取：改一处，处处跟着改
    values = {
        "glue_base": figure("glue", "BERT base", "average"),
        "glue_large": figure("glue", "BERT large", "average"),
        "glue_gpt": figure("glue", "OpenAI GPT", "average"),
        "glue_elmo": figure("glue", "BiLSTM + ELMo + attention", "average"),
        "rte_examples": dict(zip(GLUE_TASKS, TABLES["glue"].rows[0][1:], strict=False))["RTE"],
        "squad_large": figure("squad", "BERT large + TriviaQA (ensemble)", "test F1"),
        "squad_human": figure("squad", "human", "test F1"),
        "unanswered_large": figure("squad without answers", "BERT large", "test F1"),
        "unanswered_human": figure("squad without answers", "human", "test F1"),
        "swag_large": figure("swag", "BERT large", "test"),
        "swag_gpt": figure("swag", "OpenAI GPT", "test"),
        "swag_human": figure("swag", "human, an expert", "test"),
        "entities_large": figure("entities", "BERT large, fine-tuned", "test"),
        "entities_best": figure("entities", "CSE", "test"),
    }
    return Computation(id, title, tuple(steps), values)
