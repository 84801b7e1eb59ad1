"""Reports as one self-contained HTML page: the style, the table of figures, the pictures."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.55 system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif;
       color: #1d2733; max-width: 1000px; margin: 2.5rem auto; padding: 0 1.2rem; background: #fff; }
h1 { font-size: 1.9rem; margin-bottom: .2rem; } h2 { font-size: 1.25rem; margin-top: 2.4rem; }
p.lead { color: #51606f; margin-top: 0; }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; }
th, td { text-align: left; padding: .38rem .7rem; border-bottom: 1px solid #e3e8ee; vertical-align: top; }
th { color: #51606f; font-weight: 600; font-size: .9rem; }
td.figure { font-variant-numeric: tabular-nums; white-space: nowrap; }
img { max-width: 100%; display: block; margin: .8rem auto; }
mark { background: #dce9f8; border-radius: 3px; padding: 0 .2rem; }
.truth { color: #1f7a4d; font-weight: 600; } .note { color: #51606f; font-size: .9rem; }
code { background: #f3f5f8; padding: .1rem .3rem; border-radius: 3px; }
"""


@dataclass(frozen=True)
class FigureRow:
    """One line of the table of figures: what it is, its value, and the setting it holds for."""

    name: str
    value: str
    setting: str


@dataclass(frozen=True)
class Picture:
    """A figure with its heading, a sentence on how to read it, and a note below it."""

    heading: str
    explanation: str
    figure: Figure
    note: str = ""


def html_page(title: str, lead: str, parts: Sequence[str]) -> str:
    """Returns a whole page.

    Args:
        title: its heading.
        lead: one sentence below it.
        parts: HTML, one below the other.
    """
    heading = f"<h1>{html.escape(title)}</h1><p class='lead'>{html.escape(lead)}</p>"
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>{heading}{''.join(parts)}</body></html>\n"
    )


def figures_table(figures: Sequence[FigureRow]) -> str:
    """Returns the table of figures as HTML."""
    rows = "".join(
        f"<tr><td>{html.escape(row.name)}</td><td class='figure'><b>{html.escape(row.value)}</b></td>"
        f"<td class='note'>{html.escape(row.setting)}</td></tr>"
        for row in figures
    )
    return f"<h2>Figures</h2><table><tr><th>what</th><th>value</th><th>setting</th></tr>{rows}</table>"


def picture_section(picture: Picture) -> str:
    """Returns a picture as HTML, the PNG inside."""
    buffer = io.BytesIO()
    picture.figure.savefig(buffer, format="png", dpi=130)
    # 图片以 base64 内嵌：报告是单个文件，拷到哪里都能打开
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    note = f"<p class='note'>{html.escape(picture.note)}</p>" if picture.note else ""
    return (
        f"<h2>{html.escape(picture.heading)}</h2><p>{html.escape(picture.explanation)}</p>"
        f"<img alt='{html.escape(picture.heading)}' src='data:image/png;base64,{data}'>{note}"
    )
