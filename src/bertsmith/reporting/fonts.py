"""Fonts with the glyphs that labels need: those of a picture must not come out as empty boxes."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Sequence

from matplotlib import font_manager

CJK_FONTS: tuple[str, ...] = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "Microsoft YaHei"),
    *("PingFang SC", "SimHei", "Hiragino Sans GB", "Heiti TC", "Arial Unicode MS"),
)
"""Fonts with Chinese glyphs, as the common systems call them."""


def drawable(labels: Sequence[str]) -> tuple[list[str], str | None, str]:
    """Finds a way to draw labels.

    Args:
        labels: in any script.

    Returns:
        The labels, the font family to draw them in (None for the usual one), and a note for the reader: empty, or
        which number stands for which label, where the machine has no font for them and numbers are drawn instead.
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
