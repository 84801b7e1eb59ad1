"""Width and depth at equal time and at equal text (Devlin et al. 2019, §5.2, table 6)."""

from __future__ import annotations

from collections.abc import Sequence

from bertsmith.model import ModelConfig
from bertsmith.study.results import Row, mean_of, power_law
from bertsmith.study.study import Arm, Base, Equal, Study, start

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
        """Recommends a size for the time, and says what more computing would bring."""
        remarks = []
        for group, _ in GROUPS:
            shapes = dict.fromkeys(row.arm for row in rows if row.group == group)
            means = {shape: mean_of(rows, shape, "loss", group) for shape in shapes}
            known = {shape: found.value for shape, found in means.items() if found is not None}
            if known:
                best = min(known, key=lambda shape: known[shape])
                said = "For this time on this machine" if group == GROUPS[0][0] else "For this number of steps"
                remarks.append(f"{said}, {best} has the lowest loss: {known[best]:.3f}.")
        points = [row for row in rows if "loss" in row.figures and "operations" in row.facts]
        law = power_law([row.facts["operations"] for row in points], [row.figures["loss"] for row in points])
        if law is not None:
            least, factor, power = law
            most = max(row.facts["operations"] for row in points)
            now, then = (least + factor * spent**-power for spent in (most, 2 * most))
            remarks.append(
                f"Over all runs the loss follows {least:.2f} + {factor:.3g} · operations^-{power:.3f}; by that, twice"
                f" the most that was spent here ({most:.2g}) would bring it from {now:.2f} to {then:.2f}."
            )
        return remarks
