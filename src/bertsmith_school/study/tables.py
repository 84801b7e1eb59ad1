"""The studies: the paper's tables, and some that it leaves out. A class is a study; there is no other list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from bertsmith.model import ModelConfig
from bertsmith.model.features import LayerChoice
from bertsmith_school.study.report import mean_of
from bertsmith_school.study.study import FINE_TUNED, Arm, Base, Equal, Row, Start, Study, start

SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)


class Data(Study):
    """Shares of the documents, read for the same number of steps: the less there is, the more often each is read."""

    name, title = "data", "How much text: shares of it at equal time"
    source = "not in the paper; Liu et al. 2019, §5, and Kaplan et al. 2020 have it for large models"
    found = "RoBERTa gains on every task from 16 to 160 GB of text; losses fall with a power of the amount of text."
    axis = ("place", "share of the training text")

    def arms(self, base: Base) -> list[Arm]:  # noqa: ARG002
        """Returns the shares, all of the text first."""
        return [
            Arm(f"{share:.3g} of the text", Start((("objective", "mlm"),), share=share, equal="steps"), place=share)
            for share in SHARES
        ]


FEWEST_LAYERS = 4
"""From which on the last four can be told from all."""


class Features(Study):
    """Fine-tuning, and a BiLSTM over frozen states of the six choices of table 7."""

    name, title = "features", "Frozen: which layers are the best features"
    source = "Devlin et al. 2019, §5.3, table 7"
    found = (
        "On CoNLL-2003 (dev F1), fine-tuning reaches 96.4; a BiLSTM over the last four layers, concatenated, 96.1; over"
        " the second to last 95.6, the last 94.9, the embeddings 91.0."
    )
    columns = ()
    needs_tags = True

    def arms(self, base: Base) -> list[Arm]:
        """Returns fine-tuning and the choices that the model has layers for."""
        begun = start(objective="mlm")
        layers, _ = ModelConfig.shape_of(base.size)
        choices = [c for c in get_args(LayerChoice) if layers >= FEWEST_LAYERS or not c.endswith("last-four")]
        readings = {choice: {"": {"layers": choice, "tagger_head_size": 256}} for choice in choices}
        return [Arm("fine-tuned", begun), *(Arm(f"features: {name}", begun, how) for name, how in readings.items())]


class Knowledge(Study):
    """Finished models, fine-tuned on the field's task sets."""

    name, title = "knowledge", "What finished models know: fine-tuning on every task set"
    source = "Devlin et al. 2019, §4.1, table 1"
    found = "BERT-large is better than BERT-base on every task of GLUE, by 2.5 points on average (82.1 to 79.6)."
    columns = ()
    pretrains = False

    def arms(self, base: Base) -> list[Arm]:
        """Returns the models, in the order in which they were given."""
        return [Arm(begun.model, begun) for begun in base.models]


PAPER = (*((0.8, 0.1), (1.0, 0.0), (0.8, 0.2)), *((0.8, 0.0), (0.0, 0.8), (0.0, 1.0)))
"""Shares that become `[MASK]` and a random piece, in the order of table 8; the rest stays as it is."""

RATES = (0.1, 0.2, 0.3, 0.4, 0.5)
KINDS = (("whole words", "whole-word"), ("spans", "span"))


class Masking(Study):
    """The six strategies of table 8, then rates, whole words and spans, at equal numbers of steps."""

    name, title = "masking", "What is hidden: strategies and rates of masking"
    source = "Devlin et al. 2019, appendix C.2, table 8"
    found = (
        "Fine-tuning is robust to the strategy (MNLI 83.6 to 84.4, NER 94.8 to 95.4); with frozen features, always"
        " [MASK] loses 0.9 F1 to 80/10/10 on NER, since the features never saw a text without masks."
    )

    def arms(self, base: Base) -> list[Arm]:
        """Returns 80/10/10 and what is compared with it."""
        readings: dict[str, dict[str, Any]] = {name: dict(options) for name, options in FINE_TUNED.items()}
        if base.has_tags:
            readings[" (features)"] = {"layers": "last", "tagger_head_size": 128}

        def arm(name: str, *, rate: float = 0.15, mask: float = 0.8, random: float = 0.1, kind: str = "token") -> Arm:
            chosen = {"mask_rate": rate, "mask_share": mask, "random_share": random, "masking": kind}
            return Arm(name, start("steps", objective="mlm", **chosen), readings)

        strategies = [
            arm(f"{mask:.0%} mask, {abs(1 - mask - random):.0%} same, {random:.0%} random", mask=mask, random=random)
            for mask, random in PAPER
        ]
        rates = [arm(f"{rate:.0%} of the pieces", rate=rate) for rate in RATES]
        return [*strategies, *rates, *(arm(name, kind=kind) for name, kind in KINDS)]


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


class Recipe(Study):
    """The paper's recipe, then one change after the other, then other families with their best settings."""

    name, title = "recipe", "With what: families and optimizers at equal time"
    source = "not in the paper"
    found = "The paper trains with Adam at 1e-4, dropout 0.1, 15 % masked, for 40 passes over 3.3 billion words (A.2)."

    def arms(self, base: Base) -> list[Arm]:  # noqa: ARG002
        """Returns the paper's settings first."""
        drawn: dict[str, Any] = {"first_vectors": "drawn", "sinusoids": 0.0, "warmup_share": 0.1}
        paper: dict[str, Any] = {"objective": "mlm", "learning_rate": 1e-3, "mask_rate": 0.15, **drawn}
        fast = {**paper, "dropout": 0.0}
        muon: dict[str, Any] = {"optimizer": "muon", "learning_rate": 2e-3}
        return [
            Arm("BERT, AdamW, dropout, 15 %", start(**paper, optimizer="adamw", dropout=0.1)),
            Arm("no dropout", start(**fast, optimizer="adamw")),
            Arm("LAMB", start(**{**fast, "learning_rate": 1e-2}, optimizer="lamb")),
            Arm("Muon", start(**{**fast, **muon})),
            Arm("Muon, 30 %", start(**{**fast, **muon, "mask_rate": 0.3})),
            Arm("and sinusoids", start(**{**fast, **muon, "mask_rate": 0.3, "sinusoids": 0.1})),
            Arm("and counted vectors, a short warm-up (BERT's default)", start(objective="mlm", family="bert")),
            Arm(
                "ModernBERT, AdamW, 15 %",
                start(**fast | {"learning_rate": 2e-3}, family="modernbert", optimizer="adamw"),
            ),
            Arm("ModernBERT's default", start(family="modernbert")),
            Arm("RoBERTa's default", start(family="roberta")),
            Arm("ALBERT's default, no sentence order", start(family="albert", objective="mlm")),
            Arm("ELECTRA's default", start(family="electra")),
        ]


SHAPES = ("2/128", "1/128", "4/128", "2/256", "4/256")
"""Beside the size that was asked for; the first is tiny."""

GROUPS: tuple[tuple[str, Equal], ...] = (("equal time", "time"), ("equal steps", "steps"))


class Sizes(Study):
    """Five shapes and the one asked for, each trained for the same time and for the same number of steps."""

    name, title = "sizes", "How large: widths and depths"
    source = "Devlin et al. 2019, §5.2, table 6"
    found = (
        "Larger models are better on every task, also with 3,600 labels, and reach a lower perplexity (5.84 at L3/H768"
        " to 3.23 at L24/H1024) after the same number of steps; what they cost is not counted."
    )
    axis = ("operations", "operations of pre-training")

    def arms(self, base: Base) -> list[Arm]:
        """Returns the size that was asked for and the others, in both groups."""
        asked = "{}/{}".format(*ModelConfig.shape_of(base.size))
        shapes = [asked, *(shape for shape in SHAPES if shape != asked)]
        return [Arm(shape, start(equal, size=shape), group=group) for group, equal in GROUPS for shape in shapes]

    def remarks(self, rows: Sequence[Row]) -> list[str]:
        """Recommends a size for the time."""
        remarks = []
        for group, _ in GROUPS:
            shapes = dict.fromkeys(row.arm for row in rows if row.group == group)
            means = {shape: mean_of(rows, shape, "loss", group) for shape in shapes}
            known = {shape: found.value for shape, found in means.items() if found is not None}
            if known:
                best = min(known, key=lambda shape: known[shape])
                said = "For this time on this machine" if group == GROUPS[0][0] else "For this number of steps"
                remarks.append(f"{said}, {best} has the lowest loss: {known[best]:.3f}.")
        return remarks


POINTS = (1, 2, 4, 8)
"""Eighths of the run."""


class Steps(Study):
    """One run that predicts masked pieces and one that reads left to right, each fine-tuned from four points."""

    name, title = "steps", "How long: fine-tuning from points along the way"
    source = "Devlin et al. 2019, appendix C.1, figure 5"
    found = (
        "Pre-training for 1,000,000 steps instead of 500,000 gains 1.0 point on MNLI; the masked LM converges a little"
        " later than left to right, but is ahead of it almost from the beginning."
    )
    points = POINTS[-1]
    axis = ("place", "share of the pre-training")

    def arms(self, base: Base) -> list[Arm]:  # noqa: ARG002
        """Returns the points of both runs; the last of each is what the others are compared with."""
        return [
            Arm(f"after {point}/{POINTS[-1]}", start(objective=objective), point=share, place=share, group=group)
            for group, objective in (("masked LM", "mlm"), ("left to right", "ltr"))
            for point in reversed(POINTS)
            if (share := point / POINTS[-1])
        ]


FACTORS = (1.0, 0.25, 0.5, 2.0)
"""Of the number of pieces that is usual for the amount of text; that number itself comes first."""


class Vocabulary(Study):
    """Smaller and larger vocabularies, compared in bits per character, since their pieces are of different lengths."""

    name, title = "vocabulary", "Into how many pieces: sizes of the vocabulary"
    source = "not in the paper, which takes 30,000 (§3)"
    found = "The paper takes 30,000 pieces for 3.3 billion words and compares nothing."
    columns = ("bits per character",)
    axis = ("place", "pieces")

    def arms(self, base: Base) -> list[Arm]:
        """Returns the sizes, the usual one first."""
        sizes = [round(base.vocab_size * factor) for factor in FACTORS]
        return [
            Arm(f"{size:,} pieces", Start((("objective", "mlm"),), vocab_size=size), place=float(size))
            for size in sizes
        ]
