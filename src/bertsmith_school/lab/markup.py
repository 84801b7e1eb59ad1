"""Pieces of the page as HTML: notices, bars, tables, marked texts.

Every text that is not ours passes `written`, which escapes it: `<script>` in a sentence is a word of that sentence.
Tables and lists are real ones, for keyboards and screen readers; what holds numbers has a button that saves it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from bertsmith_school.looking.attribution import Attribution
from bertsmith_school.looking.coloured import colour_of, coloured_runs, largest_value, printable


class Bar(NamedTuple):
    """One line of a bar chart: what it is, its share in [0, 1], and how the number is written."""

    label: str
    share: float
    value: str


class Mark(NamedTuple):
    """A marked stretch of a text, `end` excluded: the label goes behind it, the number of its colour from 0."""

    start: int
    end: int
    label: str
    colour: int = 0


def written(text: str) -> str:
    """Returns a text as HTML that shows exactly that text."""
    return html.escape(printable(text))


def notice(text: str, *, wrong: bool = False) -> str:
    """Returns a sentence to the visitor, with `code` in it; nothing for an empty one."""
    if not text:
        return ""
    kind, role = ("wrong", "alert") if wrong else ("hint", "status")
    shown = re.sub(r"`([^`]+)`", r"<code>\1</code>", written(text))
    return f"<p class='notice {kind}' role='{role}'>{shown}</p>"


def percent(share: float) -> str:
    """Writes a share."""
    return f"{100 * share:.1f} %"


def bars(rows: Iterable[Bar], *, caption: str = "", choice: str | None = None, hint: str = "") -> str:
    """Returns a bar chart; `choice` makes every bar a button with a hint, which carries `choice:number`."""
    items = []
    for number, row in enumerate(rows):
        width = 100 * max(0.0, min(1.0, row.share))
        inside = (
            f"<span class='fill' style='width:{width:.2f}%'></span>"
            f"<span class='name'>{written(row.label)}</span><span class='value'>{written(row.value)}</span>"
        )
        told = f" title='{written(hint)}'" if hint else ""
        button = f"<li><button type='button' class='bar' data-choice='{choice}:{number}'{told}>{inside}</button>"
        items.append(f"<li><div class='bar'>{inside}</div></li>" if choice is None else button)
    heading = f"<h3>{written(caption)}</h3>" if caption else ""
    return heading + saved(f"<ol class='bars'>{''.join(items)}</ol>", name=caption)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, name: str, texts: int = 1) -> str:
    """Returns a table that can be saved and scrolls sideways; so many columns from the left hold texts, not numbers."""
    names = "".join(f"<th scope='col'{_side(place, texts)}>{written(one)}</th>" for place, one in enumerate(head))
    body = "".join(
        f"<tr>{''.join(f'<td{_side(place, texts)}>{written(cell)}</td>' for place, cell in enumerate(row))}</tr>"
        for row in rows
    )
    # 容器可获得焦点：只用键盘的人也能左右滚动宽表
    return saved(
        f"<div class='sideways' role='region' tabindex='0' aria-label='{written(name)}'>"
        f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>",
        name=name,
    )


def saved(shown: str, *, name: str, kind: Literal["CSV", "PNG"] = "CSV") -> str:
    """Returns HTML with a button that saves it under a name, or the page's; `pages/save.js` does what it says."""
    label = written(f"{kind}: {name}" if name else kind)
    button = f"<button type='button' class='save' data-save='{written(name)}' aria-label='{label}'>↓ {kind}</button>"
    return f"<div class='saved'>{shown}{button}</div>"


def pieces(found: Iterable[tuple[str, int]]) -> str:
    """Returns pieces of a vocabulary in their order, each with the segment that colours it."""
    items = "".join(f"<li class='segment{segment % 2}'>{written(piece)}</li>" for piece, segment in found)
    return f"<ol class='pieces'>{items}</ol>"


def marked(text: str, marks: Sequence[Mark]) -> str:
    """Returns a text with stretches of it marked; they do not overlap."""
    parts = []
    position = 0
    for mark in sorted(marks):
        label = f"<small>{written(mark.label)}</small>" if mark.label else ""
        parts.append(written(text[position : mark.start]))
        parts.append(f"<mark class='colour{mark.colour % 6}'>{written(text[mark.start : mark.end])}{label}</mark>")
        position = mark.end
    parts.append(written(text[position:]))
    return f"<p class='reading'>{''.join(parts)}</p>"


def attributed(attribution: Attribution, *, raises: str, lowers: str) -> str:
    """Returns the texts of an attribution, coloured by it, with the key to the colours."""
    largest = largest_value(attribution)
    parts = []
    for runs in coloured_runs(attribution):
        parts.append("<p class='reading attributed'>")
        for run in runs:
            if run.value is None:
                parts.append(written(run.text))
            else:
                style = _background(run.value / largest)
                parts.append(f"<span style='{style}' title='{run.value:+.4f}'>{written(run.text)}</span>")
        parts.append("</p>")
    key = f"<span style='{_background(1)}'>&ensp;{written(raises)}&ensp;</span>"
    key += f" <span style='{_background(-1)}'>&ensp;{written(lowers)}&ensp;</span>"
    return f"{''.join(parts)}<p class='key'>{key}</p>"


def details(summary: str, inside: str) -> str:
    """Returns HTML that is folded away under a line."""
    return f"<details><summary>{written(summary)}</summary>{inside}</details>"


def _side(place: int, texts: int) -> str:
    return "" if place < texts else " class='number'"


def _background(share: float) -> str:
    red, green, blue = colour_of(share)
    # 底色固定偏浅，字色也就固定为黑：深色主题下同样读得清
    return f"background:rgb({red},{green},{blue});color:#111;border-radius:3px"
