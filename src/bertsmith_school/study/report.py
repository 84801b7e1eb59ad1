"""What the runs of a study measured, what can be concluded from it, and the page and the picture that show it.

Runs of two arms with the same seed are a pair: they read the text in the same order and start from the same draws where
their shapes agree, so that their difference scatters less than they do. Whether arms differ is read from the interval
of the mean difference over the pairs (Student's t, 95 %).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy import stats

from bertsmith.files import write_json, write_text
from bertsmith.reporting.drawing import write_picture
from bertsmith.reporting.page import FigureRow, Part, Picture, Table, figures_table, render_report
from bertsmith_school import RUN_COLOURS
from bertsmith_school.study.study import Base, Row, Study

LEVEL = 0.95
SMALLER_IS_BETTER = ("loss", "bits per character")
DOT = 0.28
"""Inches of height for a row of dots."""


@dataclass(frozen=True)
class Mean:
    """A figure over seeds, and its standard error; NaN for a single one."""

    value: float
    error: float
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
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Mean(float(np.mean(values)), error, len(values))


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
        # 种子不止一个、数字却只有一个：它不随种子变，没有偶然可言
        several = len({row.seed for row in rows if not row.error}) > 1
        return "" if several else "one seed cannot tell a difference from chance; run more seeds."
    sign = -1 if column in SMALLER_IS_BETTER else 1
    better = [arm for arm, one in compared.items() if one.is_clear and sign * one.value > 0]
    worse = [arm for arm, one in compared.items() if one.is_clear and sign * one.value < 0]
    open_ = [arm for arm in compared if arm not in better and arm not in worse]
    parts = [f"better than {reference} are {', '.join(better)}"] if better else []
    parts += [f"worse than {reference} are {', '.join(worse)}"] if worse else []
    parts += [f"not to be told apart from {reference}: {', '.join(open_)}"] if open_ else []
    return f"{'; '.join(parts)}."


def _of(rows: Sequence[Row], arm: str, group: str) -> list[Row]:
    return [row for row in rows if row.arm == arm and row.group == group and not row.error]


def write_report(
    out: Path, study: Study, base: Base, rows: Sequence[Row], figures: Sequence[FigureRow]
) -> tuple[list[str], list[Table]]:
    """Writes `report.html`, `study.png` and `means.json`; returns conclusions, in sentences, and the means."""
    columns = columns_of(rows, study.columns)
    arms = study.arms(base)
    groups = list(dict.fromkeys(arm.group for arm in arms))
    names = {group: [arm.name for arm in arms if arm.group == group] for group in groups}
    compared = (
        (column, group, conclusion(rows, names[group], column, group)) for group in groups for column in columns
    )
    said = [f"{column}{f', {group}' if group else ''}: {sentence}" for column, group, sentence in compared if sentence]
    said += study.remarks([row for row in rows if not row.error])
    parts: list[Part] = []
    if columns:
        drawn = draw_study(study, rows, columns, names)
        write_picture(drawn, out / "study.png")
        how = "Dots are single runs, bars their means." if study.axis is None else "Dots are single runs, lines means."
        parts.append(Picture("In one picture", how, drawn))
    conclusions = [*(("here", sentence) for sentence in said), (study.source, study.found)]
    parts.append(Table("What can be concluded", ("where", "what"), conclusions, styles=("text",)))
    tables = [_tables(rows, group, names[group], columns) for group in groups]
    parts += [table for pair in tables for table in pair]
    failed = [(row.arm, str(row.seed), row.error) for row in rows if row.error]
    if failed:
        parts.append(Table("Runs that failed", ("arm", "seed", "why"), failed, styles=("text", "figure", "text")))
    seeds = len({row.seed for row in rows})
    parts.append(figures_table([*figures, FigureRow("seeds", str(seeds), "of each arm")]))
    lead = "Losses are in nats, of the same held-out text with the same masks. " * study.pretrains
    lead += "Tasks are scored by their own metric, with the weights that did best on dev."
    why = "a single model was scored" if len(arms) == 1 else "too few runs have figures"
    verdict = said[0][0].upper() + said[0][1:] if said else f"Nothing can be concluded: {why}."
    commands = [_next_command(out, study, base)]
    write_text(out / "report.html", render_report(study.title, lead, parts, verdict=verdict, commands=commands))
    means = [(arm, {column: mean_of(rows, arm.name, column, arm.group) for column in columns}) for arm in arms]
    write_json(out / "means.json", [{"arm": arm.name, "group": arm.group, **found} for arm, found in means])
    return said, [means_of_group for means_of_group, _ in tables]


def _next_command(out: Path, study: Study, base: Base) -> str:
    """Returns what to type next: the curves of the runs, or a model of the study on labels of one's own."""
    folder = shlex.quote(str(out))
    if study.pretrains:
        return f"bertsmith report {folder}/runs/*/seed-0 --out {folder}/curves.html"
    models = " ".join(f"--model {shlex.quote(start.model)}" for start in base.models)
    return f"bertsmith solve YOUR_LABELS.tsv {models} --out runs/mine"


FACTS = {"parameters": "parameters", "tokens": "tokens read"}


def _tables(rows: Sequence[Row], group: str, arms: Sequence[str], columns: Sequence[str]) -> tuple[Table, Table]:
    """Returns the means of every arm, and their differences from the first."""
    means, away = [], []
    told = [name for name in FACTS if any(name in row.facts for row in rows)]
    for arm in arms:
        facts = next((row.facts for row in rows if row.arm == arm and row.group == group and row.facts), {})
        found = [mean_of(rows, arm, column, group) for column in columns]
        means.append([arm, *(_millions(facts.get(name)) for name in told), *map(_spread, found)])
        if arm != arms[0]:
            away.append([arm, *(_difference(difference(rows, arm, arms[0], column, group)) for column in columns)])
    title = f"{group.capitalize()}: means" if group else "Means"
    note = f"Difference from {arms[0]}, and its 95 % interval over the seeds (Student's t, paired)."
    heads = ("", *(FACTS[name] for name in told), *columns)
    return (
        Table(title, heads, means, "Mean ± standard error over the seeds."),
        Table(title.replace("eans", "ean differences"), ("", *columns), away, note),
    )


def _millions(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.2f} M"


def _spread(found: Mean | None) -> str:
    if found is None:
        return ""
    return f"{found.value:.3f}" + ("" if math.isnan(found.error) else f" ± {found.error:.3f}")


def _difference(found: Difference | None) -> str:
    if found is None:
        return ""
    return f"{found.value:+.3f}" + ("" if math.isnan(found.low) else f" [{found.low:+.3f}, {found.high:+.3f}]")


def draw_study(study: Study, rows: Sequence[Row], columns: Sequence[str], names: Mapping[str, Sequence[str]]) -> Figure:
    """Draws a panel for each column: rows of dots, or curves over the study's axis."""
    arms = sum(len(group) for group in names.values())
    wide = min(len(columns), 3)
    high = math.ceil(len(columns) / wide)
    height = 3.4 if study.axis else 1.3 + DOT * arms
    figure = Figure(figsize=(4.6 * wide + (0 if study.axis else 2.2), height * high), layout="constrained")
    panels = figure.subplots(high, wide, squeeze=False, sharey=study.axis is None).flatten()
    for axes, column in zip(panels, columns, strict=False):
        if study.axis is None:
            _draw_dots(axes, rows, column, names)
        else:
            _draw_curves(axes, rows, column, names, *study.axis)
        axes.set_title(column, fontsize=11)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(columns) :]:
        axes.set_visible(False)
    return figure


def _draw_dots(axes: Axes, rows: Sequence[Row], column: str, names: Mapping[str, Sequence[str]]) -> None:
    places = [(group, arm) for group, arms in names.items() for arm in arms]
    for place, (group, arm) in enumerate(places):
        values = [row.figures[column] for row in rows if (row.group, row.arm) == (group, arm) and column in row.figures]
        colour = RUN_COLOURS[list(names).index(group) % len(RUN_COLOURS)]
        axes.plot(values, [place] * len(values), "o", color=colour, markersize=4, alpha=0.6)
        if values:
            axes.plot([np.mean(values)] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
    axes.locator_params(axis="x", nbins=5)
    axes.set_yticks(range(len(places)), [f"{arm}{f' ({group})' if group else ''}" for group, arm in places], fontsize=8)
    axes.set_ylim(len(places) - 0.5, -0.5)


def _draw_curves(
    axes: Axes, rows: Sequence[Row], column: str, names: Mapping[str, Sequence[str]], fact: str, title: str
) -> None:
    for number, (group, arms) in enumerate(names.items()):
        points = []
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        for arm in arms:
            found = [row for row in rows if (row.group, row.arm) == (group, arm) and column in row.figures]
            if found:
                place = float(np.mean([row.facts[fact] for row in found]))
                values = [row.figures[column] for row in found]
                axes.plot([row.facts[fact] for row in found], values, "o", color=colour, markersize=4, alpha=0.5)
                points.append((place, float(np.mean(values))))
                if fact != "place":
                    axes.annotate(arm, points[-1], fontsize=7, xytext=(3, 4), textcoords="offset points")
        if points:
            # 只有同一份东西的份额连成线；不同的模型各是一点，连起来没有意义
            style = {"linestyle": "-"} if fact == "place" else {"linestyle": "none", "marker": "_", "markersize": 12}
            axes.plot(*zip(*sorted(points), strict=True), color=colour, label=group or None, **style)
    axes.set_xscale("log")
    if fact == "place":
        shares = sorted({row.facts[fact] for row in rows if fact in row.facts})
        axes.set_xticks(shares, [str(Fraction(share).limit_denominator(64)) for share in shares])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(title)
    if len(names) > 1:
        axes.legend(frameon=False, fontsize=8)
