"""A text coloured by its attributions: in the terminal and as an HTML page (`attributed_picture` draws it).

Blue raises the number that is explained, orange lowers it; the largest value has the full colour. What stands between
two tokens, and what the model did not read, has no colour. The text is the user's: in HTML everything is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.style import Style
from rich.text import Text

from bertsmith.interpret.attribution import Attribution
from bertsmith.reporting.page import FigureRow, Part, Table, figures_table, render_report

RAISES, LOWERS = (31, 95, 174), (217, 111, 30)
"""The colours of positive and negative values, as red, green and blue."""


class Run(NamedTuple):
    """A stretch of a text, and what its token adds; None for what no token covers."""

    text: str
    value: float | None


def coloured_runs(attribution: Attribution) -> list[list[Run]]:
    """Cuts the texts into their tokens, whole: the runs of a text, joined, are the text.

    Returns:
        For each text its runs. Tokens that share characters make one run, with the sum of their values.
    """
    scored = attribution.scored
    runs: list[list[Run]] = []
    for number, text in enumerate(scored.texts):
        found: list[Run] = []
        position = 0
        rows = zip(scored.offsets, scored.sequence_ids, attribution.values.tolist(), strict=True)
        spans = [(start, end, value) for (start, end), source, value in rows if source == number and start < end]
        for start, end, value in spans:
            # 规范化可能把一个字符拆成几个词片，它们占同样的字符：并成一段，归因相加
            if start < position and found:
                last = found.pop()
                joined = last.text + text[position : max(position, end)]
                found.append(Run(joined, (last.value or 0.0) + value))
                position = max(position, end)
                continue
            if start > position:
                found.append(Run(text[position:start], None))
            found.append(Run(text[start:end], value))
            position = end
        if position < len(text):
            found.append(Run(text[position:], None))
        runs.append(found)
    return runs


def terminal_text(attribution: Attribution) -> list[Text]:
    """Returns the texts for `rich`, one for each."""
    largest = largest_value(attribution)
    lines = []
    for runs in coloured_runs(attribution):
        line = Text()
        for run in runs:
            shown = printable(run.text)
            if run.value is None:
                line.append(shown)
                continue
            red, green, blue = colour_of(run.value / largest)
            line.append(shown, Style(color="black", bgcolor=f"rgb({red},{green},{blue})"))
        lines.append(line)
    return lines


@dataclass(frozen=True)
class ColouredTexts:
    """The coloured texts with their key, as a part of a page.

    Attributes:
        texts: their runs, see `coloured_runs`.
        largest: the size of the value with the full colour.
        note: a sentence below the key; empty for none.
    """

    texts: Sequence[Sequence[Run]]
    largest: float
    note: str
    template: ClassVar[str] = "coloured_texts.html"

    @staticmethod
    def colour_of(share: float) -> tuple[int, int, int]:
        """Returns the colour of a value in [-1, 1], see `colour_of`."""
        return colour_of(share)

    @staticmethod
    def printable(text: str) -> str:
        """Returns a text that a page can hold, see `printable`."""
        return printable(text)


def attribution_page(attribution: Attribution) -> str:
    """Returns the coloured text, the check and the values as one self-contained HTML page."""
    found = attribution.completeness
    rows = [
        FigureRow("F(text)", f"{found.score:.4f}", attribution.scored.target),
        FigureRow("F(baseline)", f"{found.baseline_score:.4f}", baseline_in_words(attribution)),
        FigureRow("sum of the attributions", f"{found.total:+.4f}", attribution.check),
    ]
    tokens = [
        (printable(token), f"{value:+.4f}")
        for token, value in zip(attribution.tokens, attribution.values.tolist(), strict=True)
    ]
    texts = ColouredTexts(coloured_runs(attribution), largest_value(attribution), attribution.scored.note)
    parts: list[Part] = [texts, figures_table(rows), Table("Tokens", ("token", "attribution"), tokens)]
    lead = f"{attribution.scored.target}, by {attribution.method.replace('-', ' ')}"
    return render_report("What the model goes by", printable(lead), parts, package="bertsmith.interpret")


def baseline_in_words(attribution: Attribution) -> str:
    """Says what the baseline is."""
    if attribution.baseline is None:
        return "all embeddings zero"
    return f"every word [{attribution.baseline.upper()}]"


def largest_value(attribution: Attribution) -> float:
    """Returns the largest size of a run's value, which gets the full colour; above 0."""
    values = [abs(run.value) for runs in coloured_runs(attribution) for run in runs if run.value is not None]
    return max([*values, 1e-12])


def colour_of(share: float) -> tuple[int, int, int]:
    """Returns the colour of a value in [-1, 1], on white, as red, green and blue."""
    colour = RAISES if share > 0 else LOWERS
    # 最深只到八成：黑字在上面仍然读得清
    strength = 0.8 * min(1.0, abs(share))
    red, green, blue = (round(255 + (channel - 255) * strength) for channel in colour)
    return red, green, blue


def printable(text: str) -> str:
    """Returns a text that every encoding and every font engine takes: without NUL, controls and lone surrogates."""
    # 控制字符会扰乱终端，孤立代理项写不进 UTF-8：换成可见的占位符
    return "".join(c if c in "\n\t" or c.isprintable() or c == "\u3000" else "\N{REPLACEMENT CHARACTER}" for c in text)
