"""What becomes of the chosen pieces, how many are chosen, and of which kind (Devlin et al. 2019, C.2, table 8)."""

from __future__ import annotations

from typing import Any

from bertsmith.study.study import FINE_TUNED, Arm, Base, Study, start

PAPER = (
    *((0.8, 0.1), (1.0, 0.0), (0.8, 0.2)),
    *((0.8, 0.0), (0.0, 0.8), (0.0, 1.0)),
)
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
