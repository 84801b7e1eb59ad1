"""A text coloured by its attributions: in the terminal and as an HTML page (`attributed_picture` draws it).

Blue raises the number that is explained, orange lowers it; the largest value has the full colour. What stands between
two tokens, and what the model did not read, has no colour. The text is the user's: in HTML everything is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from rich.style import Style
from rich.text import Text

from bertsmith.interpret.attribution import Attribution
from bertsmith.reporting.page import FigureRow, figures_table, html_page

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
        rows = zip(scored.offsets, scored.token_type_ids, attribution.values.tolist(), strict=True)
        spans = [(start, end, value) for (start, end), segment, value in rows if segment == number and start < end]
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


def attribution_page(attribution: Attribution) -> str:
    """Returns the coloured text, the check and the values as one self-contained HTML page."""
    largest = largest_value(attribution)
    parts = []
    for number, runs in enumerate(coloured_runs(attribution), 1):
        heading = f"<h2>Text {number}</h2>" if len(attribution.scored.texts) > 1 else ""
        parts.append(f"{heading}<p style='line-height:2;overflow-wrap:anywhere;white-space:pre-wrap'>")
        parts += [_span(run, largest) for run in runs]
        parts.append("</p>")
    parts.append(
        f"<p class='note'>{_key(RAISES)} raises the number, {_key(LOWERS)} lowers it; full colour is"
        f" {largest:.4f}. Point at a word for its value.</p>"
    )
    if attribution.scored.note:
        parts.append(f"<p class='note'><b>{_written(attribution.scored.note)}</b></p>")
    found = attribution.completeness
    rows = [
        FigureRow("F(text)", f"{found.score:.4f}", attribution.scored.target),
        FigureRow("F(baseline)", f"{found.baseline_score:.4f}", baseline_in_words(attribution)),
        FigureRow("sum of the attributions", f"{found.total:+.4f}", attribution.check),
    ]
    parts.append(figures_table(rows))
    parts.append("<h2>Tokens</h2><table><tr><th>token</th><th>attribution</th></tr>")
    parts += [
        f"<tr><td>{_written(token)}</td><td class='figure'>{value:+.4f}</td></tr>"
        for token, value in zip(attribution.tokens, attribution.values.tolist(), strict=True)
    ]
    parts.append("</table>")
    lead = f"{attribution.scored.target}, by {attribution.method.replace('-', ' ')}"
    return html_page("What the model goes by", printable(lead), parts)


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


def _span(run: Run, largest: float) -> str:
    if run.value is None:
        return _written(run.text)
    red, green, blue = colour_of(run.value / largest)
    style = f"background:rgb({red},{green},{blue});border-radius:3px"
    return f"<span style='{style}' title='{run.value:+.4f}'>{_written(run.text)}</span>"


def _key(colour: Sequence[int]) -> str:
    name = "blue" if colour == RAISES else "orange"
    red, green, blue = colour_of(1.0 if colour == RAISES else -1.0)
    return f"<span style='background:rgb({red},{green},{blue});border-radius:3px;color:#000'>&nbsp;{name}&nbsp;</span>"


def _written(text: str) -> str:
    return html.escape(printable(text))


def printable(text: str) -> str:
    """Returns a text that every encoding and every font engine takes: without NUL, controls and lone surrogates."""
    # 控制字符会扰乱终端，孤立代理项写不进 UTF-8：换成可见的占位符
    return "".join(c if c in "\n\t" or c.isprintable() or c == "\u3000" else "\N{REPLACEMENT CHARACTER}" for c in text)
