"""How lessons look in a terminal: paragraphs folded to its width, steps as tables, quiz and cards by the keyboard.

On a terminal it asks and waits; where input or output is piped it prints everything, answers included, and never reads.
Chinese is folded by hand: rich breaks lines at spaces, of which Chinese has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import indent
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as RichText

from bertsmith.errors import InputError, RunFolderError
from bertsmith_school.learn.computations import COMPUTATIONS, compute
from bertsmith_school.learn.deck import ANSWERS, Answer, Deck
from bertsmith_school.learn.exports import save_picture
from bertsmith_school.learn.facts import check_answer
from bertsmith_school.learn.lesson import (
    Card,
    Computation,
    Exercise,
    Grade,
    Language,
    Lesson,
    Question,
    Step,
    Text,
    grade,
    is_number,
    spans,
)
from bertsmith_school.learn.story import lessons
from bertsmith_school.learn.study import Study

T = TypeVar("T")

WIDEST = 88
"""Columns of running text: longer lines are hard to read."""

_OPENING, _CLOSING = "（《“‘【", "，。；：！？、）】》”’…"
_CHINESE = r"\u2e80-\u9fff\uff00-\uffef"
_PIECES = re.compile(
    # 一个可断行的单位：空白，或“开括号 + 一个汉字或一串西文 + 收尾标点”
    rf"\s+|[{_OPENING}]*(?:[{_CHINESE}]|[^\s{_CHINESE}{_OPENING}{_CLOSING}]+)?[{_CLOSING}]*"
)
_STYLES = {"": "", "bold": "bold", "code": "green", "italic": "italic"}


def show_lesson(
    console: Console, lesson: Lesson, study: Study | None, language: Language, *, pictures: Path | None = None
) -> None:
    """Prints a lesson, each computation run as it comes, or why it fails, by default on the village model."""
    console.print()
    console.rule(RichText(f"{lesson.number}  {lesson.title}", style="bold"), align="left")
    noted: set[str] = set()
    for section in lesson.sections:
        id = section.computation
        if id is None:
            show_markdown(console, section.fill())
            continue
        try:
            found = compute(id, language=language, study=study)
        except InputError as error:
            # 正文里的数都来自计算：算不出就没有正文可填，只说明原因，课接着往下讲
            _show_failure(console, id, error, language)
            continue
        show_markdown(console, section.fill(found))
        show_computation(console, found, with_note=found.note not in noted)
        noted.add(found.note)
        if pictures is not None:
            show_picture(console, lesson, found, language, pictures)
    show_links(console, lesson, language)


def show_markdown(console: Console, text: str) -> None:
    """Prints paragraphs with **bold**, *italic* and `code`."""
    for paragraph in text.split("\n\n"):
        console.print()
        _print_folded(console, _styled(paragraph))


def show_computation(console: Console, computation: Computation, *, with_note: bool = True) -> None:
    """Prints the steps of a computation."""
    console.print()
    console.print(RichText(f"▸ {computation.title}", style="bold cyan"))
    if with_note and computation.note:
        _print_indented(console, computation.note, indent=2, style="dim")
    for step in computation.steps:
        show_step(console, step)
    if computation.code:
        console.print(RichText("  PyTorch", style="bold"))
        # 代码不折行：复制出来就能运行
        console.print(RichText(indent(computation.code, "    ")), soft_wrap=True)


def show_picture(console: Console, lesson: Lesson, found: Computation, language: Language, folder: Path) -> None:
    """Saves the picture of a computation, if it has one, and prints where it is."""
    try:
        path = save_picture(folder, lesson, found, language)
    except RunFolderError as error:
        # 图存不下不妨碍上课：说明原因，接着讲
        _print_indented(console, " ".join(str(error).split()), indent=2, style="dim")
        return
    if path is not None:
        said = Text("Picture: ", "图：")(language)
        link = RichText(str(path), style=f"underline link {path.resolve().as_uri()}")
        console.print(RichText.assemble((f"  {said}", "bold"), link), soft_wrap=True)


def show_step(console: Console, step: Step) -> None:
    """Prints one step: its name, what it is, and its value as a line or a table."""
    if not step.is_table:
        # 标题里有汉字（占两格）才用全角冒号
        colon = "：" if cell_len(step.label) > len(step.label) else ": "
        line = RichText.assemble((f"{step.label}{colon}", "bold"), (step.cells()[0][0], "green"))
        _print_folded(console, line, first=2, rest=4)
    else:
        console.print(RichText(f"  {step.label}", style="bold"))
    if step.note:
        _print_indented(console, step.note, indent=4, style="dim")
    if not step.is_table:
        return
    rows, headings = step.cells(), step.headings
    table = Table(box=None, show_header=bool(headings), padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for number in range(max(map(len, rows), default=0)):
        numeric = all(is_number(row[number]) for row in rows if number < len(row))
        table.add_column(headings[number] if headings else "", justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(RichText(cell) for cell in row))
    console.print(Padding(table, (0, 0, 0, 4), expand=False))


def show_links(console: Console, lesson: Lesson, language: Language) -> None:
    """Prints where the lesson is in the code, and what comes next."""
    console.print()
    console.print(RichText(Text("In the code", "在代码里")(language), style="bold"))
    colon = Text(": ", "：")(language)
    for link in lesson.code_links:
        console.print(RichText(f"  {link.about}{colon}{link.name}"), soft_wrap=True)
        console.print(RichText(f"    {link.file} · {link.map_page}", style="dim"), soft_wrap=True)
    console.print()
    what = Text("Questions, exercises and cards", "测验、练习与卡片")(language)
    commands = " · ".join(f"bertsmith learn {lesson.number} --{what}" for what in ("quiz", "exercises", "cards"))
    console.print(RichText(f"{what}{colon}{commands}"), soft_wrap=True)


def show_overview(console: Console, deck: Deck, language: Language, *, pictures: Path) -> None:
    """Prints an overview: of each part its progress, its idea, what it computes, and where its picture is."""
    done = Text("read|quiz|cards due", "已读|测验|待复习卡片")(language).split("|")
    for lesson in lessons(language):
        read, quiz = deck.lesson_progress(lesson.id)
        due = f"{len(deck.due(lesson=lesson.id))}/{len(lesson.cards)}"
        marks = [f"✓ {done[0]}"] * read + ([f"{done[1]} {quiz[0]}/{quiz[1]}"] if quiz else []) + [f"{done[2]} {due}"]
        console.print()
        head = RichText.assemble((f"{lesson.number}  {lesson.title}", "bold"), (f"  {lesson.id}", "green"))
        console.print(head + RichText(f"  {' · '.join(marks)}", style="dim"), soft_wrap=True)
        _print_indented(console, lesson.idea, indent=2)
        titles = " · ".join(COMPUTATIONS[id].title(language) for id in lesson.computations)
        _print_indented(console, titles, indent=2, style="dim")
        # 总览只算每部分的一幅图：都是不用训练的计算，很快
        show_picture(console, lesson, compute(lesson.shown, language=language), language, pictures)


def run_quiz(console: Console, story: Iterable[Lesson], deck: Deck, language: Language, *, interactive: bool) -> None:
    """Asks the questions of lessons; prints them with their answers where nobody can be asked."""
    for lesson in story:
        _show_title(console, lesson)
        right = 0
        for place, question in enumerate(lesson.questions, 1):
            _show_prompt(console, f"{place}. {question.prompt}")
            for number, choice in enumerate(question.choices):
                _print_indented(console, f"  {_letter(number)}  {choice}")
            chosen = _ask_choice(console, question, language) if interactive else question.answer
            marked = grade(question, chosen)
            right += marked.correct
            _show_verdict(console, marked, f"{_letter(question.answer)}  {marked.answer}", language, interactive)
        if interactive:
            asked = len(lesson.questions)
            deck.record_quiz(lesson.id, right, asked)
            console.print()
            console.print(RichText(Text(f"{right} of {asked} right.", f"{asked} 题对了 {right} 题。")(language)))


def run_exercises(console: Console, story: Iterable[Lesson], language: Language, *, interactive: bool) -> None:
    """Asks the exercises of lessons; prints them with their answers where nobody can be asked."""
    for lesson in story:
        _show_title(console, lesson)
        for place, exercise in enumerate(lesson.exercises, 1):
            _show_prompt(console, f"{place}. {exercise.prompt}")
            asked = _ask_number(console, exercise, language) if interactive else None
            marked = asked or check_answer(exercise, exercise.answer)
            _show_verdict(console, marked, marked.answer, language, interactive)


def run_cards(console: Console, cards: list[Card], deck: Deck, language: Language, *, interactive: bool) -> None:
    """Goes through flash cards, keeping each answer at once; prints them where nobody can be asked."""
    if not cards:
        console.print(RichText(Text("No card is due.", "没有到期的卡片。")(language)))
    for place, card in enumerate(cards, 1):
        _show_prompt(console, f"[{place}/{len(cards)}] {card.front}")
        if interactive:
            _read(console, Text("(Enter turns the card) ", "（回车翻面）")(language))
        _print_indented(console, card.back)
        if interactive:
            review = deck.answer(card, _ask_answer(console, language))
            days = Text(f"Again in {review.interval} day(s).", f"{review.interval} 天后再问。")(language)
            console.print(RichText(days, style="dim"))


def say_goodbye(console: Console, language: Language) -> None:
    """Says what is kept, where input ended in the middle."""
    console.print()
    said = Text("Stopped here; finished parts and answered cards are kept.", "到此为止；完成的部分和答过的卡片已保存。")
    console.print(RichText(said(language)))


def _show_failure(console: Console, id: str, error: InputError, language: Language) -> None:
    console.print()
    console.print(RichText(f"▸ {COMPUTATIONS[id].title(language)}", style="bold cyan"))
    message = " ".join(str(error).split())
    said = Text(f"Not computed: {message}", f"算不出来：{message}")
    # 报错里可能引用词片或文件名：原样显示，不当作标记
    _print_folded(console, RichText(said(language), style="yellow"), first=2, rest=2)


def _show_title(console: Console, lesson: Lesson) -> None:
    console.print()
    console.print(RichText(f"{lesson.number}  {lesson.title}", style="bold"))


def _show_prompt(console: Console, prompt: str) -> None:
    console.print()
    _print_indented(console, prompt, style="bold")


def _show_verdict(console: Console, marked: Grade, answer: str, language: Language, interactive: bool) -> None:
    """Says whether an answer was right, where one was given, then the right one and why."""
    if interactive:
        said = Text("Right.", "对。") if marked.correct else Text("Not quite:", "不对，应为：")
        console.print(RichText(said(language), style="green" if marked.correct else "yellow"))
    _print_indented(console, f"→ {answer}")
    _print_indented(console, marked.explanation)


def _ask(
    console: Console, prompt: str, understood: Callable[[str], T | None], otherwise: Text, language: Language
) -> T:
    """Asks until the answer is understood; `EOFError` where input ends."""
    while (answer := understood(_read(console, prompt).strip().lower())) is None:
        console.print(RichText(otherwise(language)))
    return answer


def _ask_choice(console: Console, question: Question, language: Language) -> int:
    letters = [_letter(number) for number in range(len(question.choices))]
    places = {letter: place for place, letter in enumerate(letters)}
    otherwise = Text(f"One of {', '.join(letters)}.", f"请输入 {'、'.join(letters)} 之一。")
    return _ask(console, f"{'/'.join(letters)}? ", places.get, otherwise, language)


def _ask_number(console: Console, exercise: Exercise, language: Language) -> Grade:
    def understood(typed: str) -> Grade | None:
        try:
            return check_answer(exercise, typed)
        except InputError:
            return None

    otherwise = Text("A number, such as 1,234 or 0.56 or 56%.", "请输入一个数，如 1,234、0.56 或 56%。")
    return _ask(console, "= ", understood, otherwise, language)


def _ask_answer(console: Console, language: Language) -> Answer:
    labels = Text("1 not known · 2 hard · 3 good · 4 easy? ", "1 没记住 · 2 吃力 · 3 记得 · 4 很轻松？")
    answers = {str(number): answer for number, answer in enumerate(ANSWERS, 1)}
    return _ask(console, labels(language), answers.get, Text("A number from 1 to 4.", "请输入 1 到 4。"), language)


def _read(console: Console, prompt: str) -> str:
    try:
        return console.input(RichText(prompt, style="cyan"))
    except UnicodeDecodeError:
        # 终端送来不是 UTF-8 的字节：当作没看懂，再问一次
        return ""


def _print_indented(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    lead = indent + len(text) - len(text.lstrip())
    _print_folded(console, _styled(text.lstrip(), style), first=lead, rest=lead)


def _print_folded(console: Console, text: RichText, *, first: int = 0, rest: int = 0) -> None:
    """Prints a text with the first line and the others indented."""
    for number, line in enumerate(_fold(text, min(console.width, WIDEST) - rest)):
        lead = RichText(" " * (rest if number else first))
        console.print(lead + line, no_wrap=True, overflow="ignore", crop=False)


def _styled(text: str, style: str = "") -> RichText:
    """Turns the little markdown of lessons into styles; everything else stays as it is written."""
    styled = RichText(style=style)
    for kind, part in spans(text):
        styled.append(part, style=_STYLES[kind])
    return styled


def _fold(text: RichText, width: int) -> list[RichText]:
    """Folds a line at spaces and between Chinese characters; closing punctuation never starts a line."""
    breaks, line = [], 0
    for match in _PIECES.finditer(text.plain):
        piece, place = match.group(), match.start()
        # 比整行还长的词：只能从中间折断
        for part in piece if cell_len(piece) > width else [piece]:
            if line and line + cell_len(part) > width and not part.isspace():
                breaks.append(place)
                line = 0
            line += cell_len(part)
            place += len(part)
    lines = list(text.divide(breaks))
    for each in lines:
        each.rstrip()
    return lines


def _letter(number: int) -> str:
    return "abcdefghij"[number]
