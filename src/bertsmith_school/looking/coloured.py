"""A text coloured by its attributions: in the terminal, and as an HTML page.

Blue raises the number that is explained, orange lowers it; the largest value has the full colour. What stands between
two tokens, and what the model did not read, has no colour. In HTML everything is escaped.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rich.style import Style
from rich.text import Text

from bertsmith.errors import RunFolderError
from bertsmith.files import write_text
from bertsmith.reporting.page import FigureRow, Part, Table, figures_table, render_report
from bertsmith_school.looking.attribution import Attribution

RAISES, LOWERS = (31, 95, 174), (217, 111, 30)
"""The colours of positive and negative values, as red, green and blue."""


class Run(NamedTuple):
    """A stretch of a text, and what its token adds; None for what no token covers."""

    text: str
    value: float | None


def coloured_runs(attribution: Attribution) -> list[list[Run]]:
    """Cuts each text into the runs of its tokens; those that share characters make one run, with the sum of values."""
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


@dataclass(frozen=True)
class ColouredTexts:
    """The coloured texts with their key, and a note below it, as a part of a page."""

    texts: Sequence[Sequence[Run]]
    largest: float
    note: str
    template: ClassVar[str] = "coloured_texts.html"
    colour_of = staticmethod(colour_of)
    printable = staticmethod(printable)


def attribution_page(attribution: Attribution, *predicts: str) -> str:
    """Returns the coloured text, the check and the values as one self-contained HTML page.

    Args:
        *predicts: the words after `bertsmith predict` that name the model, for the command to type next.
    """
    found = attribution.completeness
    rows = [
        FigureRow("F(text)", f"{found.score:.4f}", attribution.scored.target),
        FigureRow("F(baseline)", f"{found.baseline_score:.4f}", f"every word [{attribution.baseline.upper()}]"),
        FigureRow("sum of the attributions", f"{found.total:+.4f}", attribution.check),
    ]
    tokens = [
        (printable(token), f"{value:+.4f}")
        for token, value in zip(attribution.tokens, attribution.values.tolist(), strict=True)
    ]
    texts = ColouredTexts(coloured_runs(attribution), largest_value(attribution), attribution.scored.note)
    parts: list[Part] = [texts, figures_table(rows), Table("Tokens", ("token", "attribution"), tokens)]
    lead = printable(f"{attribution.scored.target}, by integrated gradients")
    told: dict[str, Any] = {"verdict": verdict_on(attribution), "package": "bertsmith_school.looking"}
    told["commands"] = [f"bertsmith predict {shlex.join(predicts)} --file YOUR_FILE.txt"] if predicts else []
    return render_report("Which words decided", lead, parts, **told)


def verdict_on(attribution: Attribution) -> str:
    """Says in words what raises the number most and what lowers it most, and whether the values can be relied on."""
    found = [(run.value, run.text) for runs in coloured_runs(attribution) for run in runs if run.value is not None]
    (most, raising), (least, lowering) = max(found, default=(0.0, "")), min(found, default=(0.0, ""))
    said = [f"“{raising.strip()}” raises it most ({most:+.3f})"] if most > 0 else []
    said += [f"“{lowering.strip()}” lowers it most ({least:+.3f})"] if least < 0 else []
    doubt = "" if attribution.completeness.holds else " The values do not add up: do not rely on them."
    target = attribution.scored.target
    return printable(f"{target[0].upper()}{target[1:]}: {', '.join(said) or 'no word changes it'}.{doubt}")


def largest_value(attribution: Attribution) -> float:
    """Returns the largest size of a run's value, which gets the full colour; above 0."""
    values = [abs(run.value) for runs in coloured_runs(attribution) for run in runs if run.value is not None]
    return max([*values, 1e-12])


def write_attribution(attribution: Attribution, path: Path, *predicts: str) -> None:
    """Writes the page; `predicts` as in `attribution_page`."""
    if path.is_dir():
        raise RunFolderError(f"{path}: is a folder; name a file that ends in .html")
    write_text(path, attribution_page(attribution, *predicts))
