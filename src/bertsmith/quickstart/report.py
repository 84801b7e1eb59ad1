"""`report.html`: one self-contained page with everything a run found out, each figure beside its setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bertsmith.files import write_text
from bertsmith.inference import Candidate
from bertsmith.reporting.page import FigureRow, Part, Picture, figures_table, render_report


@dataclass(frozen=True)
class FilledExample:
    """A sentence with one `[MASK]`, the word that stood there (or None), and the candidates before and after."""

    text: str
    truth: str | None
    before: Sequence[Candidate]
    after: Sequence[Candidate]


@dataclass(frozen=True)
class FilledExamples:
    """The table of masks filled, before and after training, as a part of the page."""

    examples: Sequence[FilledExample]
    template: ClassVar[str] = "filled_examples.html"


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
    parts: list[Part] = [figures_table(figures), *pictures, FilledExamples(examples)]
    write_text(path, render_report(title, lead, parts, package="bertsmith.quickstart"))
