"""Lines -> paragraphs: puts back together what only the width of the page had broken.

Books and e-mails break their lines at a fixed width, other corpora put one sentence on a line. Gluing the second kind
would invent sentences, and not gluing the first would cut them, so each paragraph is judged by the shape of its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

# A paragraph longer than this is handed on in parts: a file without blank lines must not fill the memory.
_MAX_PARAGRAPH_LINES = 1000
_MAX_PARAGRAPH_LENGTH = 1_000_000
_MAX_HEADING_LENGTH = 300
# Lines are broken by hand or by an editor somewhere between these widths (columns; a Chinese character takes two).
_WRAP_WIDTHS = range(40, 161)

_WIDE = re.compile("[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]")
# Han, kana and their punctuation, which are written without spaces; Hangul is wide but does use spaces.
_UNSPACED = "\u2e80-\u312f\u31a0-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff60\uffe0-\uffe6"
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_FIRST_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_SENTENCE_ENDS = tuple(".!?…。！？:：;；")
_CLOSERS = "\"'”’»)]」』）】"
_ENDS_HYPHENATED = re.compile(r"\w(?:-|--|—)$")
_OPENERS = "\"'“‘«([_*"


def paragraphs(raw_lines: Iterable[str]) -> Iterator[str | None]:
    """Puts the lines of running text together to paragraphs, in bounded memory.

    Yields:
        A paragraph, a heading, or a line that stands for itself; None for every blank line.
    """
    lines: list[str] = []
    length = 0
    for raw in raw_lines:
        line = raw.strip()
        heading = line.startswith("=") and is_heading(line)
        if line and not heading:
            lines.append(line)
            length += len(line)
            # 没有空行的文件也要有界：攒到上限就先交出去
            if len(lines) < _MAX_PARAGRAPH_LINES and length < _MAX_PARAGRAPH_LENGTH:
                continue
        yield from join_lines(lines)
        lines, length = [], 0
        if heading:
            yield line
        elif not line:
            yield None
    yield from join_lines(lines)


def join_lines(lines: Sequence[str]) -> list[str]:
    """Puts the lines of one paragraph back together where only the width of the page had broken them.

    A line break is forced when the next word would not have fitted into the widest line of the paragraph. A paragraph
    is hard-wrapped when most of its breaks are forced, unless most of its lines end a sentence or begin with a capital;
    then the lines are joined at the forced breaks, and where the next line goes on in lower case. In any other
    paragraph (verse, lists, one sentence per line) every line stays on its own.

    Lines are joined by a space, except between two Chinese or Japanese characters, and after a hyphen or dash that
    follows a word: `well-` + `known` gives `well-known`. The hyphen always stays, since nothing but a dictionary tells
    that one from the one in `exam-` + `ple`, and losing it would be the worse mistake.

    Args:
        lines: consecutive lines without white space around them, none empty.

    Returns:
        The whole paragraph, or its parts in order.
    """
    widths = [_width(line) for line in lines]
    if len(lines) < 2 or max(widths) not in _WRAP_WIDTHS:
        return list(lines)
    # 折行的判据：下一行的第一个词放不进最宽的那一行。逐句成行或列表的断行一般不满足这一条
    limit = 0.85 * max(widths)
    forced = [width + 1 + _first_width(line) > limit for width, line in zip(widths[:-1], lines[1:], strict=True)]
    ended = sum(line.rstrip(_CLOSERS).endswith(_SENTENCE_ENDS) for line in lines[:-1])
    capitals = sum(line.lstrip(_OPENERS)[:1].isupper() and not line.isupper() for line in lines[1:])
    breaks = len(lines) - 1
    # 只有两三行时这两个比例说明不了什么；粘错了也无妨，分句时会在句号处再切开
    one_per_line = breaks >= 3 and (ended > 0.75 * breaks or capitals > 0.7 * breaks)
    if one_per_line or sum(forced) < 0.6 * breaks:
        return list(lines)

    joined = [[lines[0]]]
    for line, is_forced in zip(lines[1:], forced, strict=True):
        previous = joined[-1][-1]
        if is_forced or line[0].islower():
            joined[-1] += (_glue(previous, line), line)
        else:
            joined.append([line])
    return ["".join(parts) for parts in joined]


def is_heading(line: str) -> bool:
    """Whether a line is a heading as WikiText writes them: `= Title =`, `= = Section = =`, `== Section ==`."""
    if not (line.startswith("=") and line.endswith("=")) or len(line) > _MAX_HEADING_LENGTH:
        return False
    title = line.strip("= ")
    if not title:
        return False
    before, _, after = line.partition(title)
    return before == after[::-1] and before.endswith(" ")


def _width(text: str) -> int:
    """The columns a line takes on a page, where a Chinese character takes two; at least that, if it is very long."""
    if text.isascii() or len(text) >= _WRAP_WIDTHS.stop:
        return len(text)
    return len(text) + len(_WIDE.findall(text))


def _first_width(line: str) -> int:
    """The columns that would have to fit in for a line break to be unnecessary: of a word, or one Chinese character."""
    if line.isascii():
        return len(line.split(None, 1)[0])
    word = _FIRST_WORD.match(line)
    return _width(word.group()) if word else 0


def _glue(previous: str, line: str) -> str:
    """What to put between two lines that belong together."""
    if _UNSPACED_CHARACTER.match(previous[-1]) and _UNSPACED_CHARACTER.match(line):
        return ""
    return "" if _ENDS_HYPHENATED.search(previous) and line[0].isalpha() else " "
