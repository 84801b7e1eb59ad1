"""The page and the picture of a study: every figure with its scatter, every difference with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from bertsmith.files import write_text
from bertsmith.reporting.drawing import write_picture
from bertsmith.reporting.page import FigureRow, Part, Picture, Table, figures_table, render_report
from bertsmith.reporting.plots import RUN_COLOURS
from bertsmith.study.results import Difference, Mean, Row, columns_of, conclusion, difference, mean_of
from bertsmith.study.study import Base, Study

DOT = 0.28
"""Inches of height for a row of dots."""


def write_report(
    out: Path, study: Study, base: Base, rows: Sequence[Row], text: str, settings: Mapping[str, Any]
) -> list[str]:
    """Writes `report.html` and `study.png`, and returns what can be concluded, in sentences."""
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
        figure = draw_study(study, rows, columns, names)
        write_picture(figure, out / "study.png")
        how = "Dots are single runs, bars their means." if study.axis is None else "Dots are single runs, lines means."
        parts.append(Picture("In one picture", how, figure))
    conclusions = [("here", sentence) for sentence in said]
    parts.append(
        Table("What can be concluded", ("where", "what"), [*conclusions, (study.source, study.found)], styles=("text",))
    )
    for group in groups:
        parts += _tables(rows, group, names[group], columns)
    failed = [(row.arm, str(row.seed), row.error) for row in rows if row.error]
    if failed:
        parts.append(Table("Runs that failed", ("arm", "seed", "why"), failed, styles=("text", "figure", "text")))
    seeds = len({row.seed for row in rows})
    parts.append(
        figures_table(
            [
                FigureRow("text", text, f"{base.vocab_size:,} pieces"),
                FigureRow("model", f"{base.family}, {base.size}", f"sequences of {base.sequence_length}"),
                FigureRow("minutes", f"{settings['minutes']:g}", "pre-training of all arms together, each seed"),
                FigureRow("seeds", str(seeds), "of each arm"),
            ]
        )
    )
    lead = "Losses are in nats, of the same held-out text with the same masks; tasks are scored by their own metric."
    write_text(out / "report.html", render_report(study.title, lead, parts))
    return said


def _tables(rows: Sequence[Row], group: str, arms: Sequence[str], columns: Sequence[str]) -> list[Table]:
    """Returns the means of every arm, and their differences from the first."""
    means, away = [], []
    for arm in arms:
        facts = next((row.facts for row in rows if row.arm == arm and row.group == group and row.facts), {})
        found = [mean_of(rows, arm, column, group) for column in columns]
        means.append([arm, *map(_millions, (facts.get("parameters"), facts.get("tokens"))), *map(_spread, found)])
        if arm != arms[0]:
            away.append([arm, *(_difference(difference(rows, arm, arms[0], column, group)) for column in columns)])
    title = f"{group.capitalize()}: means" if group else "Means"
    note = f"Difference from {arms[0]}, and its 95 % interval over the seeds (Student's t, paired)."
    return [
        Table(title, ("", "parameters", "tokens read", *columns), means, "Mean ± standard deviation over the seeds."),
        Table(title.replace("eans", "ean differences"), ("", *columns), away, note),
    ]


def _millions(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.2f} M"


def _spread(found: Mean | None) -> str:
    if found is None:
        return ""
    return f"{found.value:.3f}" + ("" if math.isnan(found.deviation) else f" ± {found.deviation:.3f}")


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
