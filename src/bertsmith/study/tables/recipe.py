"""Families and optimizers at equal time: where `train/defaults.py` comes from."""

from __future__ import annotations

from typing import Any

from bertsmith.study.study import Arm, Base, Study, start


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
                start(**{**fast, "learning_rate": 2e-3}, family="modernbert", optimizer="adamw"),
            ),
            Arm("ModernBERT's default", start(family="modernbert")),
            Arm("RoBERTa's default", start(family="roberta")),
            Arm("ALBERT's default, no sentence order", start(family="albert", objective="mlm")),
            Arm("ELECTRA's default", start(family="electra")),
        ]
