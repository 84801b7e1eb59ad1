"""A drawn figure on its way to a PNG file, and what its reader must be told."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from bertsmith.files import atomic_path

_MAX_SIDE = 6600
"""Pixels: what a picture of 512 tokens needs for its labels; more would cost memory and show nothing."""


@dataclass(frozen=True)
class Drawing:
    """A figure, and a note for the reader; empty as a rule, see `fonts.drawable`."""

    figure: Figure
    note: str = ""


def write_picture(figure: Figure, path: Path) -> str:
    """Writes a figure as PNG.

    Returns:
        A note for the reader: empty, or that no font has some of its characters.

    Raises:
        RunFolderError: the file cannot be written.
    """
    width, height = figure.get_size_inches()
    dpi = min(130.0, _MAX_SIDE / max(width, height))
    with atomic_path(path) as temporary, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(temporary, format="png", dpi=dpi, pil_kwargs={"compress_level": 4})
    # 缺字形时 matplotlib 只发警告、画方框：转成给读者的一句话
    missing = sum("missing from font" in str(warning.message) for warning in caught)
    return f"{path.name}: no font here has some of its characters; they are boxes" if missing else ""
