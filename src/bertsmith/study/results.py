"""What the runs of a study measured, and what can be concluded from it.

Runs of two arms with the same seed are a pair: they read the text in the same order and start from the same draws where
their shapes agree, so that their difference scatters less than they do. Whether arms differ is read from the interval
of the mean difference over the pairs (Student's t, 95 %).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import optimize, stats

LEVEL = 0.95
SMALLER_IS_BETTER = ("loss", "bits per character")


@dataclass(frozen=True)
class Row:
    """What a run of an arm came to.

    Attributes:
        arm: its name.
        group: the part of the table.
        seed: of the run.
        figures: column → value, such as `loss` in nats, `accuracy`, or a task's metric on its test file.
        facts: of the pre-training run: `parameters`, `steps`, `tokens`, `operations`, and `place` on the axis.
        error: why there are no figures; empty as a rule.
    """

    arm: str
    group: str
    seed: int
    figures: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Mean:
    """A figure over seeds; the deviation is NaN for a single one."""

    value: float
    deviation: float
    seeds: int


@dataclass(frozen=True)
class Difference:
    """The mean paired difference of an arm from another, and its interval; NaN for less than two pairs."""

    value: float
    low: float
    high: float
    pairs: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


def columns_of(rows: Sequence[Row], first: Sequence[str]) -> list[str]:
    """Returns the columns that some row has: the study's own, then those of the tasks as they came."""
    found = dict.fromkeys(name for row in rows for name in row.figures)
    own = ("loss", "accuracy", "bits per character")
    return [name for name in first if name in found] + [name for name in found if name not in own]


def mean_of(rows: Sequence[Row], arm: str, column: str, group: str = "") -> Mean | None:
    """Returns the mean of an arm's figure; None where it has none."""
    values = [row.figures[column] for row in _of(rows, arm, group) if column in row.figures]
    if not values:
        return None
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Mean(float(np.mean(values)), deviation, len(values))


def difference(rows: Sequence[Row], arm: str, other: str, column: str, group: str = "") -> Difference | None:
    """Returns how much higher an arm's figure is than another's, over the seeds that both have; None without any."""
    ours, theirs = (
        {row.seed: row.figures[column] for row in _of(rows, name, group) if column in row.figures}
        for name in (arm, other)
    )
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not pairs:
        return None
    value = float(np.mean(pairs))
    if len(pairs) < 2:
        return Difference(value, math.nan, math.nan, len(pairs))
    # 同种子成对相减：起点与读序带来的起伏大半抵消，剩下的才是两种做法之差
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(pairs) - 1) * np.std(pairs, ddof=1) / math.sqrt(len(pairs)))
    return Difference(value, value - half, value + half, len(pairs))


def conclusion(rows: Sequence[Row], arms: Sequence[str], column: str, group: str = "") -> str:
    """Returns a sentence on which arms differ from the first, and which cannot be told apart; empty without any."""
    reference, *others = arms
    found = {arm: difference(rows, arm, reference, column, group) for arm in others}
    compared = {arm: one for arm, one in found.items() if one is not None}
    if not compared:
        return ""
    if all(one.pairs < 2 for one in compared.values()):
        return "one seed cannot tell a difference from chance; run more seeds."
    sign = -1 if column in SMALLER_IS_BETTER else 1
    better = [arm for arm, one in compared.items() if one.is_clear and sign * one.value > 0]
    worse = [arm for arm, one in compared.items() if one.is_clear and sign * one.value < 0]
    open_ = [arm for arm in compared if arm not in better and arm not in worse]
    parts = [f"better than {reference} are {', '.join(better)}"] if better else []
    parts += [f"worse than {reference} are {', '.join(worse)}"] if worse else []
    parts += [f"not to be told apart from {reference}: {', '.join(open_)}"] if open_ else []
    return f"{'; '.join(parts)}."


def settled(rows: Sequence[Row], arms: Sequence[str], columns: Sequence[str], group: str = "") -> set[str]:
    """Returns the arms whose difference from the first is clear in every figure that both have."""
    reference, *others = arms
    clear = set()
    for arm in others:
        found = [difference(rows, arm, reference, column, group) for column in columns]
        known = [one for one in found if one is not None]
        if known and all(one.is_clear for one in known):
            clear.add(arm)
    return clear


LEAST_FACTOR, LEAST_POWER, MOST_POWER = 1e-9, 0.01, 3.0
"""The edges of what is searched; a fit that ends at one of them has found no law."""


def power_law(places: Sequence[float], values: Sequence[float]) -> tuple[float, float, float] | None:
    """Fits value = a + b · place^-c with a ≥ 0, b > 0 and c in (0.01, 3).

    None for less than four places, and for values that follow no such law. Losses follow it over text and computing
    (Kaplan et al. 2020; Hoffmann et al. 2022).
    """
    if len(set(places)) < 4:
        return None
    x, y = np.asarray(places, float), np.asarray(values, float)
    scale = float(x.max())
    begin = (max(0.0, float(y.min()) * 0.8), max(1e-3, float(y.min()) * 0.2), 0.3)
    bounds = ((0.0, LEAST_FACTOR, LEAST_POWER), (float(y.max()), np.inf, MOST_POWER))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optimize.OptimizeWarning)
            (a, b, c), _ = optimize.curve_fit(
                lambda place, a, b, c: a + b * (place / scale) ** -c, x, y, begin, bounds=bounds, maxfev=20_000
            )
    except RuntimeError:
        return None
    # 拟合停在搜索范围的边上：数值不随 place 下降，或不按幂律下降，没有规律可说
    if b < 1e3 * LEAST_FACTOR or not 1.05 * LEAST_POWER < c < 0.95 * MOST_POWER:
        return None
    return float(a), float(b * scale**c), float(c)


def _of(rows: Sequence[Row], arm: str, group: str) -> list[Row]:
    return [row for row in rows if row.arm == arm and row.group == group and not row.error]
