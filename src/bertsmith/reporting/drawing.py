"""A figure on its way to a PNG file, and fonts with the glyphs that its labels need: no label is an empty box."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import font_manager
from matplotlib.figure import Figure

from bertsmith.files import atomic_path

_MAX_SIDE = 6600
"""Pixels: what a picture of 512 tokens needs for its labels; more would cost memory and show nothing."""


@dataclass(frozen=True)
class Drawing:
    """A figure, and a note for the reader; empty as a rule, see `drawable`."""

    figure: Figure
    note: str = ""


def write_picture(figure: Figure, path: Path) -> str:
    """Writes a figure as PNG; returns a note for the reader where no font has some of its characters, else nothing."""
    width, height = figure.get_size_inches()
    dpi = min(130.0, _MAX_SIDE / max(width, height))
    with atomic_path(path) as temporary, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(temporary, format="png", dpi=dpi, pil_kwargs={"compress_level": 4})
    # 缺字形时 matplotlib 只发警告、画方框：转成给读者的一句话
    missing = sum("missing from font" in str(warning.message) for warning in caught)
    return f"{path.name}: no font here has some of its characters; they are boxes" if missing else ""


CJK_FONTS: tuple[str, ...] = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "Microsoft YaHei"),
    *("PingFang SC", "SimHei", "Hiragino Sans GB", "Heiti TC", "Arial Unicode MS"),
)
"""Fonts with Chinese glyphs, as the common systems call them."""


def drawable(labels: Sequence[str]) -> tuple[list[str], str | None, str]:
    """Finds how to draw labels: as what, in which font family (None for the usual one), and a note for the reader.

    Where no font has them, numbers are drawn, and the note says which stands for which label; else it is empty.
    """
    characters = set("".join(labels))
    family, lacking = None, _lacking(None, characters)
    if lacking and (other := _known_family() or _newly_installed_family()) is not None:
        # 两种字体都不全时取缺得少的：文字里夹一个表情符号，汉字仍要画得出来
        family, lacking = min((family, lacking), (other, _lacking(other, characters)), key=lambda each: each[1])
    if not lacking:
        return list(labels), family, ""
    # 缺字的地方画出来是方框：改用编号，并把对照写在图外
    numbered = "  ".join(f"{number} {label}" for number, label in enumerate(labels, 1))
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    return numbers, family, f"No font with glyphs for all labels was found: {numbered}"


def _lacking(family: str | None, characters: Collection[str]) -> int:
    """Counts the characters that a font has no glyph for."""
    font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=family)))
    return sum(not font.get_char_index(ord(character)) for character in characters)


def _known_family() -> str | None:
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return next((name for name in CJK_FONTS if name in installed), None)


def _newly_installed_family() -> str | None:
    _look_for_new_fonts()
    return _known_family()


@functools.cache
def _look_for_new_fonts() -> None:
    # matplotlib 的字体缓存可能早于字体的安装：再到系统里找一次
    for path in font_manager.findSystemFonts():
        if re.search(r"CJK|SourceHan|wqy|YaHei|PingFang|SimHei|Hiragino|Heiti", path):
            font_manager.fontManager.addfont(path)
