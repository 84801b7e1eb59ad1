"""The flash cards for Anki, as the text file that its File > Import reads.

Header lines name deck, note type, and the columns of identity and tags, so that nothing has to be chosen in the dialog,
and importing a newer file changes the cards that are there instead of adding them again. A package (`.apkg`) would hold
the same and need a library that writes Anki's database.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path

from bertsmith.files import write_text
from bertsmith.learn.lesson import Language, Lesson, spans

_TAGS = {"bold": "b", "code": "code", "italic": "i"}


def write_anki(path: Path, story: Iterable[Lesson], language: Language) -> int:
    """Writes the cards of lessons.

    Args:
        path: the file; one that is there is replaced.
        story: the lessons.
        language: of the lessons; each language is a deck of its own.

    Returns:
        How many cards there are.

    Raises:
        RunFolderError: the file cannot be written.
    """
    rows = [
        (f"bertsmith/{card.id}/{language}", _field(card.front), _field(card.back), f"bertsmith {lesson.id}")
        for lesson in story
        for card in lesson.cards
    ]
    head = (
        "separator:tab",
        "html:true",
        "notetype:Basic",
        f"deck:bertsmith {language}",
        "guid column:1",
        "tags column:4",
    )
    write_text(path, "".join(f"#{line}\n" for line in head) + "".join("\t".join(row) + "\n" for row in rows))
    return len(rows)


def _field(text: str) -> str:
    # 制表符和换行在这个格式里有别的意思：换成空格与 <br>
    parts = (
        f"<{_TAGS[style]}>{html.escape(part)}</{_TAGS[style]}>" if style else html.escape(part)
        for style, part in spans(text)
    )
    return "".join(parts).replace("\t", " ").replace("\n", "<br>")
