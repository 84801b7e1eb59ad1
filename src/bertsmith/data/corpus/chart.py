"""The picture of a corpus's statistics; apart from them, so that counting does not load a plotting library."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_COLOUR, _MEDIAN_COLOUR = "#1f4e8c", "#b04a3a"


def draw_statistics(statistics: dict[str, Any]) -> Figure:
    """Draws the lengths of documents and sentences, with the figures of the corpus above them.

    Args:
        statistics: the content of `statistics.json`.
    """
    dropped = sum(statistics["duplicates"].values())
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    documents, sentences = figure.subplots(1, 2)
    _draw(documents, statistics["document_lengths"], "Tokens per document", logarithmic=True)
    _draw(sentences, statistics["sentence_lengths"], "Tokens per sentence", logarithmic=False)
    figure.suptitle(
        f"{statistics['documents']:,} documents · {statistics['sentences']:,} sentences · "
        f"{statistics['tokens']:,} tokens · {statistics['pieces_per_word']:.2f} pieces per word · "
        f"[UNK] {100 * statistics['unknown_rate']:.2f} % · {dropped:,} duplicates dropped",
        fontsize=11,
    )
    return figure


def _draw(axes: Axes, histogram: dict[str, list[int]], title: str, *, logarithmic: bool) -> None:
    edges, counts = np.array(histogram["from"], dtype=float), np.array(histogram["count"])
    filled = np.flatnonzero(counts)
    # 空的两头不画：语料小时横轴也看得清
    shown = slice(filled[0], filled[-1] + 1)
    step = 2**0.5 * edges[-1] if logarithmic else edges[-1] + edges[-1] - edges[-2]
    ends = np.append(edges[1:], step)
    starts, ends, counts = edges[shown], ends[shown], counts[shown]
    axes.bar(starts, counts, ends - starts, align="edge", color=_COLOUR, edgecolor="white", linewidth=0.5)
    below = np.cumsum(counts) - counts
    half = int(np.flatnonzero(below < counts.sum() / 2)[-1])
    median = starts[half] + (ends[half] - starts[half]) * (counts.sum() / 2 - below[half]) / counts[half]
    axes.axvline(median, color=_MEDIAN_COLOUR, linestyle="--", linewidth=1.2, label=f"median: about {median:,.0f}")
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if filled[-1] == len(edges) - 1:
        title += f" (last bar: {edges[-1]:.0f} and more)"
    axes.set_title(title, fontsize=10)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
