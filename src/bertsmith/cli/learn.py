"""`bertsmith learn`: the story of the paper and its families, with computations that run as one reads."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class LanguageOption(str, Enum):
    """The languages of the lessons."""

    en = "en"
    zh = "zh"


def learn(
    part: Annotated[
        str | None, typer.Argument(help="1 to 7, or its id; default: the first one not read yet.", show_default=False)
    ] = None,
    language: Annotated[
        LanguageOption | None, typer.Option(help="Default: that of the environment.", show_default=False)
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Folder or org/name of the Hub to compute with; default: a small fresh one.")
    ] = None,
    quiz: Annotated[bool, typer.Option("--quiz", help="Ask the questions of the part, or of all.")] = False,
    cards: Annotated[bool, typer.Option("--cards", help="Go through the flash cards that are due.")] = False,
    contents: Annotated[bool, typer.Option("--list", help="List the parts, and how far you are.")] = False,
    progress: Annotated[
        Path | None, typer.Option(help="File of your progress; default: bertsmith/learn.json in the XDG data home.")
    ] = None,
) -> None:
    """Read the paper's story with the mathematics worked by hand; quizzes and flash cards."""
    import io
    import os
    import sys

    from rich.console import Console

    from bertsmith.errors import InputError
    from bertsmith.learn import Deck, Study, environment_language, find_lesson, lessons, terminal

    if quiz + cards + contents > 1:
        raise InputError("--quiz, --cards and --list are three things; choose one")
    if contents and part is not None:
        raise InputError("--list shows all parts; leave the part out")
    if model is not None and (quiz or cards or contents):
        raise InputError("--model computes, and only a lesson does; leave it out here")
    chosen = environment_language(os.environ) if language is None else language.value
    # 终端编码写不出 √ 或汉字时，用问号代替，而不是中途崩溃
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    deck = Deck(progress, chosen)
    # 两端都是终端才提问：管道里没有人回答，等下去就是卡死
    interactive = sys.stdin is not None and sys.stdin.isatty() and console.is_terminal
    if contents:
        terminal.show_contents(console, deck, chosen)
        return
    named = None if part is None else find_lesson(part, chosen)
    if quiz:
        story = lessons(chosen) if named is None else [named]
        terminal.run_quiz(console, story, deck, chosen, interactive=interactive)
        return
    if cards:
        due = deck.due(lesson=None if named is None else named.id)
        terminal.run_cards(console, due, deck, chosen, interactive=interactive)
        return
    unread = [lesson for lesson in lessons(chosen) if not deck.lesson_progress(lesson.id)[0]]
    lesson = named or next(iter(unread), None)
    if lesson is None:
        if model is not None:
            raise InputError("all parts are read; name one to compute: bertsmith learn 1 --model DIR")
        terminal.show_contents(console, deck, chosen)
        return
    study = None if model is None else Study.load(model)
    terminal.show_lesson(console, lesson, study, chosen)
    deck.mark_read(lesson.id)
