"""`bertsmith learn`: the story of the paper and its families, with computations that run as one reads."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from bertsmith.learn import Language, Lesson, Study


class LanguageOption(str, Enum):
    """The languages of the lessons."""

    en = "en"
    zh = "zh"


def learn(
    part: Annotated[
        str | None,
        typer.Argument(help="Part 1 to 7, or its id; default: the first one not read yet.", show_default=False),
    ] = None,
    language: Annotated[
        LanguageOption | None, typer.Option(help="Language; default: from the environment.", show_default=False)
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Model to compute with: folder or org/name; default: the village model.")
    ] = None,
    quiz: Annotated[bool, typer.Option("--quiz", help="Ask the questions of the part, or of all.")] = False,
    exercises: Annotated[bool, typer.Option("--exercises", help="Ask the exercises of the part, or of all.")] = False,
    cards: Annotated[bool, typer.Option("--cards", help="Go through the flash cards that are due.")] = False,
    contents: Annotated[bool, typer.Option("--list", help="List the parts and your progress.")] = False,
    pictures: Annotated[
        Path | None, typer.Option(help="Write the pictures of the part, or of all, into this folder, as SVG.")
    ] = None,
    notebooks: Annotated[
        Path | None, typer.Option(help="Write the part, or all, into this folder, as Jupyter notebooks.")
    ] = None,
    anki: Annotated[
        Path | None, typer.Option(help="Write the cards into this file, for File > Import of Anki.")
    ] = None,
    progress: Annotated[
        Path | None, typer.Option(help="File of your progress; default: bertsmith/learn.json in the XDG data home.")
    ] = None,
) -> None:
    """Read the paper as lessons with worked mathematics; quizzes, exercises and flash cards."""
    import io
    import os
    import sys

    from rich.console import Console

    from bertsmith.errors import InputError
    from bertsmith.learn import Deck, Study, environment_language, find_lesson, lessons, terminal
    from bertsmith.learn.pictures.saving import cache_folder

    asked = {
        "--quiz": quiz,
        "--exercises": exercises,
        "--cards": cards,
        "--list": contents,
        "--pictures": pictures,
        "--notebooks": notebooks,
        "--anki": anki,
    }
    given = [name for name, value in asked.items() if value]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are {len(given)} things; choose one")
    if contents and part is not None:
        raise InputError("--list shows all parts; leave the part out")
    if model is not None and given and given[0] not in ("--pictures", "--notebooks"):
        raise InputError(f"--model computes, and {given[0]} does not; leave it out here")
    chosen = environment_language(os.environ) if language is None else language.value
    # 终端编码写不出 √ 或汉字时，用问号代替，而不是中途崩溃
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    named = None if part is None else find_lesson(part, chosen)
    story = lessons(chosen) if named is None else [named]
    if pictures or notebooks or anki:
        study = None if model is None else Study.load(model)
        _write(console, story, chosen, study, pictures, notebooks, anki)
        return
    deck = Deck(progress, chosen)
    # 两端都是终端才提问：管道里没有人回答，等下去就是卡死
    interactive = sys.stdin is not None and sys.stdin.isatty() and console.is_terminal
    if contents:
        terminal.show_contents(console, deck, chosen)
        return
    if quiz:
        terminal.run_quiz(console, story, deck, chosen, interactive=interactive)
        return
    if exercises:
        terminal.run_exercises(console, story, chosen, interactive=interactive)
        return
    if cards:
        due = deck.due(lesson=None if named is None else named.id)
        terminal.run_cards(console, due, deck, chosen, interactive=interactive)
        return
    unread = [lesson for lesson in story if not deck.lesson_progress(lesson.id)[0]]
    lesson = named or next(iter(unread), None)
    if lesson is None:
        if model is not None:
            raise InputError("all parts are read; name one to compute: bertsmith learn 1 --model DIR")
        terminal.show_contents(console, deck, chosen)
        return
    study = None if model is None else Study.load(model)
    terminal.show_lesson(console, lesson, study, chosen, pictures=cache_folder())
    deck.mark_read(lesson.id)


def _write(
    console: Console,
    story: list[Lesson],
    language: Language,
    study: Study | None,
    pictures: Path | None,
    notebooks: Path | None,
    anki: Path | None,
) -> None:
    """Writes lessons into files, and prints which."""
    from bertsmith.learn.anki import write_anki
    from bertsmith.learn.notebooks import write_notebooks
    from bertsmith.learn.pictures.saving import save_pictures

    if anki:
        count = write_anki(anki, story, language)
        console.print(f"{anki}: {count} cards", soft_wrap=True, markup=False)
        return
    failed: list[str] = []
    if pictures:
        paths, failed = save_pictures(pictures, story, language, study)
    else:
        assert notebooks is not None
        paths = write_notebooks(notebooks, story, language, study)
    for line in [*map(str, paths), *failed]:
        console.print(line, soft_wrap=True, markup=False)
