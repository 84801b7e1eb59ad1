"""The character classes BERT's rules speak of: what is removed, what separates, what stands alone.

Notable:
- the CJK blocks are those of the original release: unified ideographs with extensions A to E, compatibility ideographs
- white space is Unicode's, without seven characters that `str.isspace` counts but the original release removes, since
  they are control characters
- punctuation and marks follow the Unicode tables of the running Python, as in the original release; the patterns for
  them are compiled once, when the first character outside ASCII turns up (about 10 ms)
"""

import functools
import re
import string
import sys
import unicodedata
from typing import NamedTuple

# 这些字符被 str.split 当作空白，而原版把它们当控制字符直接删除（"a\x0bb" 是一个词 "ab"）
HIDDEN_CONTROLS = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
SPACES = "".join(char for char in map(chr, range(0x3001)) if char.isspace() and char not in HIDDEN_CONTROLS)
# The original release counts all of these as punctuation, though Unicode calls some of them symbols.
ASCII_PUNCTUATION = string.punctuation

# Ranges for the inside of a regular expression's brackets.
CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
# 中文标点也单独成块：这样数字、拉丁词等片段不带标点，重复率高，缓存才有效。
# 只收不影响大小写上下文的标点（全角冒号会影响希腊字母 Σ 的词尾判断，故不收）
CJK_STOPS = "，。、；！？《》「」『』（）【】“”"

LONG_RUN = 1000
"""Marks in a row; fewer are sorted fast enough by any method."""

_CJK_CHARACTER = re.compile(f"[{CJK}]")
_ASTRAL = "\U00010000-\U0010ffff"


nfd = functools.partial(unicodedata.normalize, "NFD")
"""Decomposes a text canonically."""


class Patterns(NamedTuple):
    """What Unicode's tables decide, compiled: `word` splits punctuation off, `marks` finds nonspacing marks."""

    word: re.Pattern[str]
    marks: re.Pattern[str]


@functools.cache
def patterns() -> Patterns:
    """Compiles the patterns for text outside ASCII.

    Returns:
        The patterns; always the same ones.
    """
    # 一次取出全部类别，拼成每字符两个字母的串，再用正则找连续区间：扫描都在 C 里
    categories = "".join(map(unicodedata.category, map(chr, range(sys.maxunicode + 1))))
    near, far = _ranges("P[a-z]", categories)
    # 基本平面外的区间很多，而 re 只能逐个比较；先用一个区间挡住，常见字符就不必走那一长串
    word = f"[{near}]|(?=[{_ASTRAL}])[{far}]|(?:[^{near}{_ASTRAL}]+|(?![{far}])[{_ASTRAL}])+"
    near, far = _ranges("Mn", categories)
    return Patterns(re.compile(word), re.compile(f"[{near}]|(?=[{_ASTRAL}])[{far}]"))


@functools.cache
def long_run_of_marks() -> re.Pattern[str]:
    """Compiles the pattern of `LONG_RUN` and more characters in a row that Unicode sorts by their combining class.

    Returns:
        The pattern; always the same one.
    """
    marks = "".join(filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1))))
    # 这三个字符自己的组合类是 0，分解后全是组合符；Unicode 保证不会再有第四个
    return re.compile(f"[{marks}\u0f73\u0f75\u0f81]{{{LONG_RUN},}}")


def in_canonical_order(marks: str) -> str:
    """Decomposes a run of marks and sorts it by combining class (Unicode D109), in linearithmic time.

    Args:
        marks: what `long_run_of_marks` finds.

    Returns:
        What `nfd` makes of them. CPython sorts by insertion: a megabyte of marks in a bad order would take minutes.
    """
    return "".join(sorted("".join(map(nfd, marks)), key=unicodedata.combining))


def is_removed(char: str) -> bool:
    """Tells whether cleaning removes a character: NUL and other controls, format characters, U+FFFD.

    Args:
        char: one character that is not white space.

    Returns:
        True where it goes.
    """
    # NUL 属于 Cc，已包含在内；U+FFFD 是 So，需单独判断
    return char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cf")


def is_standalone(char: str, tokenize_chinese_chars: bool = True) -> bool:
    """Tells whether a normalised character is always a word of its own, so that a `##` form of it is never used.

    Args:
        char: one character.
        tokenize_chinese_chars: the tokenizer's setting.

    Returns:
        True for punctuation, and for CJK characters where they are set apart.
    """
    return is_punctuation(char) or (tokenize_chinese_chars and _CJK_CHARACTER.match(char) is not None)


def is_punctuation(char: str) -> bool:
    """Tells whether a character is punctuation: Unicode's (P), and every ASCII character but letters and digits.

    Args:
        char: one character, neither white space nor removed.

    Returns:
        True for punctuation.
    """
    return char in ASCII_PUNCTUATION if char.isascii() else unicodedata.category(char)[0] == "P"


def _ranges(category: str, categories: str) -> tuple[str, str]:
    """Writes the code points of a category as bracket ranges: those up to U+FFFF, and those beyond."""
    spans = [(match.start() // 2, match.end() // 2 - 1) for match in re.finditer(f"(?:{category})+", categories)]
    if category.startswith("P"):
        spans = [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E), *spans]
    near, far = (
        "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in spans if (first > 0xFFFF) is beyond)
        for beyond in (False, True)
    )
    return near, far
