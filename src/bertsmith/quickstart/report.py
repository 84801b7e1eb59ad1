"""`report.html`: one self-contained page with everything a run found out, each figure beside its setting."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.files import write_text
from bertsmith.inference import Candidate
from bertsmith.reporting.page import FigureRow, Picture, figures_table, html_page, picture_section


@dataclass(frozen=True)
class FilledExample:
    """A sentence with one `[MASK]`, the word that stood there (or None), and the candidates before and after."""

    text: str
    truth: str | None
    before: Sequence[Candidate]
    after: Sequence[Candidate]


def write_report(
    path: Path,
    *,
    title: str,
    lead: str,
    figures: Sequence[FigureRow],
    examples: Sequence[FilledExample],
    pictures: Sequence[Picture],
) -> None:
    """Writes the page, pictures inside as PNG.

    Args:
        path: the HTML file.
        title: its heading.
        lead: one sentence below it.
        figures: the table of figures.
        examples: fill-mask examples.
        pictures: shown in this order.

    Raises:
        RunFolderError: the file cannot be written.
    """
    parts = [figures_table(figures), *(picture_section(picture) for picture in pictures), _examples_table(examples)]
    write_text(path, html_page(title, lead, parts))


def _examples_table(examples: Sequence[FilledExample]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(example.text).replace('[MASK]', '<mark>[MASK]</mark>')}</td>"
        f"<td>{_candidates(example.before, example.truth)}</td>"
        f"<td>{_candidates(example.after, example.truth)}</td>"
        f"<td>{html.escape(example.truth or '–')}</td></tr>"
        for example in examples
    )
    head = "<tr><th>text</th><th>before training</th><th>after training</th><th>what stood there</th></tr>"
    return f"<h2>Masks filled, before and after</h2><table>{head}{rows}</table>"


def _candidates(candidates: Sequence[Candidate], truth: str | None) -> str:
    return "<br>".join(
        f"<span class='{'truth' if candidate.piece == truth else ''}'>{html.escape(candidate.piece)}</span>"
        f" <span class='note'>{candidate.probability:.1%}</span>"
        for candidate in candidates
    )
