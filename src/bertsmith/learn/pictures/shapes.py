"""The shapes of pre-training and fine-tuning: figures 1 and 4 of the paper in our own drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertsmith.learn.lesson import Computation, Language, Text
from bertsmith.learn.pictures.drawing import Drawing, text_width


def draw_example(found: Computation, language: Language) -> str:
    """Draws what `one_example` found: a masked pair below, the two predictions and their losses above."""

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    values = found.values
    pieces, positions = values["read"], values["positions"]
    step = max(50.0, *(text_width(piece, 13) + 12 for piece in pieces))
    about = say("A masked pair goes through BERT; both losses are added", "带掩码的句对经过 BERT，两个损失相加")
    drawing = Drawing(max(640, 30 + step * len(pieces)), 330, title=found.title, description=about)
    _tokens(drawing, pieces, values["segments"], 15, 254, step, marked=positions)
    drawing.box(15, 176, step * len(pieces) - 6, 44, "BERT", kind="plain", size=16, bold=True)
    for n in range(len(pieces)):
        middle = 15 + n * step + step / 2 - 3
        drawing.arrow((middle, 252), (middle, 223))
    follows = say(f"NSP: B follows A {values['follows']:.0%}", f"NSP：B 接着 A {values['follows']:.0%}")
    first = 15 + step / 2 - 3
    drawing.arrow((first, 174), (first, 134))
    drawing.box(15, 104, text_width(follows, 13) + 16, 28, follows, kind="green")
    for number, (place, _true, guess, top, _) in enumerate(values["filled"]):
        middle = 15 + place * step + step / 2 - 3
        words = f"{guess} {top:.0%}"
        width = text_width(words, 13) + 16
        high = 104 if number % 2 else 64
        drawing.arrow((middle, 174), (middle, high + 30))
        drawing.box(min(middle - width / 2, drawing.width - width - 10), high, width, 28, words, kind="blue")
    words, pair, total = (f"{values[name]:.2f}" for name in ("words_loss", "pair_loss", "loss"))
    loss = say(
        f"loss = {words} (masked words) + {pair} (next sentence) = {total}",
        f"损失 = {words}（遮住的词）+ {pair}（下一句）= {total}",
    )
    drawing.text(15, 26, loss, anchor="start", bold=True)
    return drawing.svg()


def draw_shapes(found: Computation, language: Language) -> str:
    """Draws the four kinds of task with the new parameters that `head_sizes` counted."""

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    tasks: Any = found.steps[0].value
    names, new = [row[0] for row in tasks], [row[2] for row in tasks]
    about = say("Four kinds of task, one small layer each on top of BERT", "四类任务，BERT 之上各加一个小层")
    drawing = Drawing(860, 560, title=found.title, description=about)
    text, pair = say("text", "文本"), say("A|B", "A|B").split("|")
    question, passage = say("question|passage", "问题|段落").split("|")
    panels: tuple[tuple[str, int, Sequence[str], Sequence[tuple[int, str, str]]], ...] = (
        (names[0], new[0], ["[CLS]", pair[0], "[SEP]", pair[1], "[SEP]"], [(0, say("class", "类别"), "green")]),
        (
            names[1],
            new[1],
            ["[CLS]", "Anna", "feeds", "cows", "[SEP]"],
            [(1, "B-PER", "blue"), (2, "O", "blue"), (3, "O", "blue")],
        ),
        (
            names[2],
            new[2],
            ["[CLS]", question, "[SEP]", passage, passage, "[SEP]"],
            [(3, say("start", "起点"), "amber"), (4, say("end", "终点"), "amber")],
        ),
        (
            names[3],
            new[3],
            ["[CLS]", text, "[SEP]", say("ending", "结尾"), "[SEP]"],
            [(0, say("score", "分数"), "violet")],
        ),
    )
    for number, (name, count, tokens, outputs) in enumerate(panels):
        x, y = 16 + 424 * (number % 2), 16 + 270 * (number // 2)
        drawing.text(x, y + 14, name, anchor="start", bold=True, size=14)
        told = say(f"{count:,} new parameters", f"新增 {count:,} 个参数")
        drawing.text(x, y + 36, told, anchor="start", kind="soft", size=12)
        step = 400 / len(tokens)
        _tokens(drawing, tokens, None, x, y + 206, step)
        drawing.box(x, y + 136, 394, 40, "BERT", size=15, bold=True)
        for n in range(len(tokens)):
            middle = x + n * step + step / 2 - 3
            drawing.arrow((middle, y + 204), (middle, y + 179))
        for place, words, kind in outputs:
            middle = x + place * step + step / 2 - 3
            drawing.arrow((middle, y + 134), (middle, y + 98))
            width = min(step - 6, text_width(words, 13) + 18)
            drawing.box(middle - width / 2, y + 66, width, 28, words, kind=kind)
    several = say("once for each ending; a softmax over the scores", "每个结尾各读一遍；在各分数上做 softmax")
    drawing.text(540, 368, several, anchor="start", kind="soft", size=12)
    return drawing.svg()


def _tokens(
    drawing: Drawing,
    pieces: Sequence[str],
    segments: Sequence[int] | None,
    x: float,
    y: float,
    step: float,
    *,
    marked: Sequence[int] = (),
) -> None:
    for n, piece in enumerate(pieces):
        drawing.box(x + n * step, y, step - 6, 28, piece, kind="blue" if n in marked else "plain")
        if segments is not None:
            drawing.text(x + n * step + step / 2 - 3, y + 42, "AB"[segments[n]], size=11, kind="soft")
