"""`bertsmith learn`: the story of the paper and its families, with computations that run as one reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def learn(
    part: Annotated[
        str | None,
        typer.Argument(help="Part 1 to 7, or its id; default: the first one not read yet.", show_default=False),
    ] = None,
    language: Annotated[
        Literal["en", "zh"] | None, typer.Option(help="Language; default: from the environment.", show_default=False)
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Model to compute with: folder or org/name; default: the village model.")
    ] = None,
    quiz: Annotated[bool, typer.Option("--quiz", help="Ask the questions of the part, or of all.")] = False,
    exercises: Annotated[bool, typer.Option("--exercises", help="Ask the exercises of the part, or of all.")] = False,
    cards: Annotated[bool, typer.Option("--cards", help="Go through the flash cards that are due.")] = False,
    contents: Annotated[bool, typer.Option("--list", help="Give an overview, with your progress.")] = False,
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

    from bertsmith.errors import ConfigError, InputError

    try:
        from bertsmith_school.learn import Deck, Study, environment_language, exports, find_lesson, lessons, terminal
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'bertsmith[school]'") from None

    asked: dict[str, object] = {"--quiz": quiz, "--exercises": exercises, "--cards": cards, "--list": contents}
    asked |= {"--pictures": pictures, "--notebooks": notebooks, "--anki": anki}
    given = [name for name, value in asked.items() if value]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are {len(given)} things; choose one")
    if contents and part is not None:
        raise InputError("--list shows all parts; leave the part out")
    if model is not None and given and given[0] not in ("--pictures", "--notebooks"):
        raise InputError(f"--model computes, and {given[0]} does not; leave it out here")
    chosen = environment_language(os.environ) if language is None else language
    # 终端编码写不出 √ 或汉字时，用问号代替，而不是中途崩溃
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    named = None if part is None else find_lesson(part, chosen)
    story = lessons(chosen) if named is None else [named]
    if pictures or notebooks or anki:
        study = None if model is None else Study.load(model)
        lines: list[object] = []
        if anki:
            lines += [f"{anki}: {exports.write_anki(anki, story, chosen)} cards"]
        elif pictures:
            lines += exports.save_pictures(pictures, story, chosen, study)
        elif notebooks:
            lines += exports.write_notebooks(notebooks, story, chosen, study)
        for line in lines:
            console.print(str(line), soft_wrap=True, markup=False)
        return
    deck = Deck(progress, chosen)
    # 两端都是终端才提问：管道里没有人回答，等下去就是卡死
    interactive = sys.stdin is not None and sys.stdin.isatty() and console.is_terminal
    unread = [lesson for lesson in story if not deck.lesson_progress(lesson.id)[0]]
    lesson = named or next(iter(unread), None)
    if quiz or exercises or cards:
        try:
            if quiz:
                terminal.run_quiz(console, story, deck, chosen, interactive=interactive)
            elif exercises:
                terminal.run_exercises(console, story, chosen, interactive=interactive)
            else:
                due = deck.due(lesson=None if named is None else named.id)
                terminal.run_cards(console, due, deck, chosen, interactive=interactive)
        except EOFError:
            terminal.say_goodbye(console, chosen)
    elif lesson is None and model is not None:
        raise InputError("all parts are read; name one to compute: bertsmith learn 1 --model DIR")
    elif contents or lesson is None:
        terminal.show_overview(console, deck, chosen, pictures=exports.cache_folder())
    else:
        study = None if model is None else Study.load(model)
        terminal.show_lesson(console, lesson, study, chosen, pictures=exports.cache_folder())
        deck.mark_read(lesson.id)
