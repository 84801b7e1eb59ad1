"""How much text: what half of it is worth, and what twice as much would bring."""

from __future__ import annotations

from collections.abc import Sequence

from bertsmith.study.results import Row, power_law
from bertsmith.study.study import Arm, Base, Start, Study

SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)


class Data(Study):
    """Shares of the documents, read for the same time: the less there is, the more often each is read.

    The model is the same in all arms, so the same time is the same number of steps.
    """

    name, title = "data", "How much text: shares of it at equal time"
    source = "not in the paper; Liu et al. 2019, §4, and Kaplan et al. 2020 have it for large models"
    found = "RoBERTa gains on every task from 16 to 160 GB of text; losses fall with a power of the amount of text."
    axis = ("place", "share of the training text")

    def arms(self, base: Base) -> list[Arm]:  # noqa: ARG002
        """Returns the shares, all of the text first."""
        return [
            Arm(f"{share:.3g} of the text", Start((("objective", "mlm"),), share=share, equal="steps"), place=share)
            for share in SHARES
        ]

    def remarks(self, rows: Sequence[Row]) -> list[str]:
        """Says what doubling the text would bring."""
        points = [row for row in rows if "loss" in row.figures]
        places = [row.facts["place"] for row in points]
        law = power_law(places, [row.figures["loss"] for row in points])
        if law is None:
            whole = set(places) == set(SHARES)
            return ["The loss does not fall with more text: runs of this length cannot use it."] if whole else []
        least, factor, power = law
        return [
            f"The loss follows {least:.2f} + {factor:.3g} · share^-{power:.2f}; by that, twice the text would bring it"
            f" from {least + factor:.2f} to {least + factor * 2**-power:.2f} in the same time."
        ]
