"""Where the sections of a document lie: what stands between one heading and the next.

Markdown has two ways to write a heading: `## Title`, and a line with `===` or `---` under it. What looks like one
inside a fenced block of code is none. A text file is one section without heading. Very long sections are cut at a
blank line, so that tokenizing a book costs no more memory than tokenizing a chapter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bertsmith.retrieval.documents import Document

LONGEST = 1 << 20
"""Characters of a section; longer ones are cut."""

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HASHES = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_NO_TITLE = re.compile(r"\s*$|\s*(?:[-*+>|]|\d+[.)])(?:\s|$)")


@dataclass(frozen=True)
class Section:
    """A stretch of a document under one heading.

    Attributes:
        heading: the headings it stands under, outermost first, joined by ` > `; empty for none.
        start: its first character, behind the heading.
        end: one past its last.
    """

    heading: str
    start: int
    end: int


@dataclass(frozen=True)
class _Heading:
    level: int
    title: str
    start: int
    end: int


def sections_of(document: Document) -> Iterator[Section]:
    """Yields the sections of a document that hold more than white space, in order.

    A heading with neither text nor a deeper heading under it is a section by itself, with its line as text.
    """
    text = document.text
    headings = list(_headings(text, document.body)) if document.is_markdown else []
    above: list[_Heading] = []
    first = headings[0].start if headings else len(text)
    yield from _cut(text, "", document.body, first)
    for number, heading in enumerate(headings):
        after = headings[number + 1] if number + 1 < len(headings) else None
        above = [outer for outer in above if outer.level < heading.level]
        end = after.start if after else len(text)
        if text[heading.end : end].strip():
            yield from _cut(text, _path([*above, heading]), heading.end, end)
        elif after is None or after.level <= heading.level:
            # 只有标题没有正文：标题本身也要能被搜到
            yield from _cut(text, _path(above), heading.start, end)
        above.append(heading)


def _path(headings: list[_Heading]) -> str:
    return " > ".join(heading.title for heading in headings if heading.title)


def _headings(text: str, start: int) -> Iterator[_Heading]:
    """Yields the headings of a Markdown text with the characters of their lines."""
    fence = ""
    before = ("", start)
    for line, place in _lines(text, start):
        after = place + len(line)
        bare = line.rstrip("\r\n")
        mark = _FENCE.match(bare)
        if mark and (not fence or (mark[1].startswith(fence) and not bare[mark.end() :].strip())):
            fence = "" if fence else mark[1]
        elif not fence and (found := _HASHES.match(bare)):
            yield _Heading(len(found[1]), (found[2] or "").strip(), place, after)
            bare = ""
        elif not fence and (found := _UNDERLINE.match(bare)) and not _NO_TITLE.match(before[0]):
            # 下划线式标题：线本身要够长才算，免得把表格或分隔线当成标题
            if len(found[1]) >= 2:
                yield _Heading(1 if found[1][0] == "=" else 2, before[0].strip(), before[1], after)
            bare = ""
        before = ("" if fence or mark else bare, place)


def _lines(text: str, start: int) -> Iterator[tuple[str, int]]:
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end], start
        start = end


def _cut(text: str, heading: str, start: int, end: int) -> Iterator[Section]:
    while end - start > LONGEST:
        # 先找空行，再找行尾，再找空格；都没有才硬切
        limit = start + LONGEST
        places = (text.rfind(mark, start + LONGEST // 2, limit) + len(mark) for mark in ("\n\n", "\n", " "))
        place = next((place for place in places if place > start + LONGEST // 2), limit)
        yield from _cut(text, heading, start, place)
        start = place
    if text[start:end].strip():
        yield Section(heading, start, end)
