"""Fine-tuning from points along the way (Devlin et al. 2019, C.1, figure 5)."""

from __future__ import annotations

from bertsmith.study.study import Arm, Base, Study, start

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
