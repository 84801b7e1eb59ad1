"""The pictures of ideas that are seen in numbers; each takes what a computation found and words, as in `pictures`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bertsmith_school.learn.lesson import Computation
from bertsmith_school.learn.pictures import MOST, Drawing, text_width

_LEFT, _WIDE = 210.0, 400.0
"""Where bars begin, and how long a bar of 100 % is."""


def draw_both_sides(found: Computation, say: Mapping[str, str]) -> str:
    """Draws what `both_sides` found: a word is changed, and each direction's states that move."""
    rows: Any = found.steps[0].value
    # 句子长时只画改动的词前后的一段
    first = max(0, min(found.values["place"] - MOST // 2, len(rows) - MOST))
    rows = rows[first : first + MOST]
    step = max(66.0, *(text_width(cell, 13) + 16 for row in rows for cell in row[:2]))
    drawing = Drawing(170 + step * len(rows), 260, title=found.title, description=say["about"])
    for line, (name, column) in enumerate((("before", 0), ("after", 1))):
        drawing.text(14, 36 + 38 * line, say[name], anchor="start", bold=True)
        for n, row in enumerate(rows):
            kind = "violet" if row[0] != row[1] else "plain"
            drawing.box(150 + n * step, 22 + 38 * line, step - 6, 28, row[column], kind=kind)
    for line, name in enumerate(found.steps[0].columns[2:5]):
        top = 124 + 40 * line
        drawing.text(14, top + 14, name, anchor="start")
        drawing.matrix(150, top, [[row[2 + line] for row in rows]], cell=(step - 4, 30), digits=2)
        if line == 0:
            drawing.text(150, top - 18, say["moves"], anchor="start", kind="soft", size=12)
    return drawing.svg()


def draw_published(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the average on GLUE of four systems, and BERT beside people on three other tasks."""
    drawing = Drawing(720, 400, title=found.title, description=say["about"])
    values = found.values
    drawing.text(14, 24, say["glue"], anchor="start", bold=True)
    names = ("ELMo", "GPT", "BERT base", "BERT large")
    for n, (name, key) in enumerate(zip(names, ("elmo", "gpt", "base", "large"), strict=True)):
        kind = "blue" if name.startswith("BERT") else "plain"
        _bar(drawing, 44 + 34 * n, name, values[f"glue_{key}"] / 100, f"{values[f'glue_{key}']:.1f}", kind)
    drawing.text(14, 204, say["people"], anchor="start", bold=True)
    for n, (name, key) in enumerate((("SQuAD 1.1", "squad"), ("SQuAD 2.0", "unanswered"), ("SWAG", "swag"))):
        for line, (whose, kind) in enumerate((("large", "blue"), ("human", "green"))):
            score = values[f"{key}_{whose}"]
            label = f"{name}, {say[whose]}"
            _bar(drawing, 222 + 56 * n + 26 * line, label, score / 100, f"{score:.1f}", kind, high=22)
    return drawing.svg()


def draw_ablation(found: Computation, say: Mapping[str, str]) -> str:
    """Draws how much each model of `ablation` gives to a verb, and to the right one."""
    rows: Any = found.steps[0].value
    drawing = Drawing(720, 60 + 92 * len(rows), title=found.title, description=say["about"])
    drawing.text(14, 26, found.values["probe"], anchor="start", bold=True)
    for n, (name, _, verbs, right) in enumerate(rows):
        top = 50 + 92 * n
        drawing.text(14, top + 8, name, anchor="start", bold=True)
        for line, (label, share, kind) in enumerate(((say["verbs"], verbs, "amber"), ("reads", right, "blue"))):
            _bar(drawing, top + 20 + 30 * line, label, float(share.rstrip("%")) / 100, share, kind, high=24)
    return drawing.svg()


def draw_schedule(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the learning rate over a run: up in a line, down in a line; a short warm-up is drawn wider than it is."""
    values = found.values
    drawing = Drawing(720, 290, title=found.title, description=say["about"])
    left, right, top, bottom = 80.0, 690.0, 60.0, 220.0
    peak = left + (right - left) * min(max(values["warmup_share"], 0.06), 0.94)
    drawing.arrow((left, bottom), (right + 10, bottom))
    drawing.arrow((left, bottom), (left, top - 26))
    drawing.arrow((left, bottom - 2), (peak, top), (right, bottom - 2), head=False)
    drawing.box(left, bottom + 12, peak - left, 26, kind="amber")
    drawing.box(peak + 2, bottom + 12, right - peak - 2, 26, say["down"], kind="blue")
    drawing.text(left, bottom + 54, say["up"], anchor="start", size=12)
    drawing.text(peak + 12, top - 6, say["peak"], anchor="start")
    drawing.text(right, bottom + 54, say["last"], anchor="end", size=12, kind="soft")
    drawing.text(left + 8, 22, say["rate"], anchor="start", kind="soft")
    return drawing.svg()


def draw_recovered(found: Computation, say: Mapping[str, str]) -> str:
    """Draws how much of an attention head stays unseen for each kind of input, and a row that was found again."""
    rows: Any = found.steps[0].value
    first = found.steps[1]
    drawing = Drawing(720, 280, title=found.title, description=say["about"])
    drawing.text(14, 26, say["unseen"], anchor="start", bold=True)
    for n, (name, unseen, count, *_) in enumerate(rows):
        _bar(drawing, 44 + 36 * n, name, unseen / count, f"{unseen} / {count}", "amber")
    drawing.text(14, 180, first.label, anchor="start", bold=True)
    for n, (name, numbers) in enumerate(zip(first.rows, first.value, strict=True)):  # type: ignore[arg-type]
        drawing.text(14, 210 + 32 * n, name, anchor="start")
        drawing.matrix(_LEFT, 197 + 32 * n, [numbers], cell=(92, 28), digits=4)
    return drawing.svg()


def draw_sharing(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the blocks of BERT beside those of a smaller family, and the parameters of each part of both."""
    values = found.values
    # 只有 ALBERT 的嵌入是分解的，也只有它各层共用一个块
    whole, own = values.get("whole", values["layers"]), 1 if "factored" in values else values["layers"]
    step = next(step for step in found.steps if len(step.columns) == 4 and "BERT" in step.columns[1:2])
    counts: Any = step.value
    drawing = Drawing(760, 410, title=found.title, description=say["about"])
    for x, name, blocks in ((14, "BERT", whole), (200, step.columns[2], own)):
        drawing.text(x + 80, 24, name, bold=True)
        high = 340 / whole
        for n in range(blocks):
            drawing.box(x, 44 + n * high, 160, high - 4, kind="blue" if name == "BERT" else "green")
    drawing.text(14, 396, say["blocks"], anchor="start", kind="soft", size=12)
    drawing.text(200, 396, say["used"], anchor="start", kind="soft", size=12)
    largest = max(count for row in counts for count in row[1:3])
    for n, (part, theirs, ours, _) in enumerate(counts):
        top = 44 + 88 * n
        drawing.text(390, top + 8, part, anchor="start", bold=True)
        for line, (count, kind) in enumerate(((theirs, "blue"), (ours, "green"))):
            width = 4 + 230 * count / largest
            drawing.box(390, top + 20 + 28 * line, width, 22, kind=kind)
            drawing.text(398 + width, top + 31 + 28 * line, f"{count:,}", anchor="start", size=12)
    return drawing.svg()


def draw_replaced(found: Computation, say: Mapping[str, str]) -> str:
    """Draws a sentence on its way through ELECTRA's two networks."""
    rows: Any = found.steps[-2].value
    # 挑一句真被换掉了词的；一句也没有时，画第一句
    masked, guesses, read, marks = next((row for row in rows if "✗" in row[3]), rows[0])
    before, after, signs = masked.split(), read.split(), marks.split()
    step = max(76.0, *(text_width(word, 13) + 18 for word in (*before, *after)))
    drawing = Drawing(max(560.0, 30 + step * len(before)), 390, title=found.title, description=say["about"])
    wide = step * len(before) - 6
    for n, (hidden, word, sign) in enumerate(zip(before, after, signs, strict=True)):
        x, middle = 15 + n * step, 15 + n * step + step / 2 - 3
        chosen = hidden != word
        drawing.box(x, 346, step - 6, 28, hidden, kind="amber" if chosen else "plain")
        drawing.arrow((middle, 344), (middle, 320))
        drawing.box(x, 208, step - 6, 28, word, kind="blue" if chosen else "plain")
        drawing.arrow((middle, 206), (middle, 182))
        drawing.arrow((middle, 136), (middle, 112))
        drawing.box(x, 80, step - 6, 28, say["replaced"] if sign == "✗" else say["own"], kind="green", size=12)
        if chosen:
            drawing.arrow((middle, 272), (middle, 240))
    drawing.box(15, 274, wide, 42, say["generator"], bold=True)
    drawing.box(15, 138, wide, 42, say["discriminator"], bold=True)
    drawing.text(15, 24, f"{say['thinks']} {guesses}", anchor="start", size=12, kind="soft")
    drawing.text(15, 50, say["loss"], anchor="start", bold=True)
    return drawing.svg()


def draw_window(found: Computation, say: Mapping[str, str]) -> str:
    """Draws who reads whom in a layer that reads everything, and in one that reads its neighbourhood."""
    step = next(step for step in found.steps if step.rows or (step.columns and step.columns[-1] == "11"))
    band = [str(row[-1]).split() for row in step.cells()]
    count, cell = len(band), 20.0
    drawing = Drawing(640, 340, title=found.title, description=say["about"])
    for x, name, note, whole in ((20.0, "all", "all_note", True), (340.0, "near", "near_note", False)):
        drawing.text(x, 22, say[name], anchor="start", bold=True)
        for down, row in enumerate(band):
            for across, sign in enumerate(row):
                kind = "blue" if whole or sign == "■" else "plain"
                drawing.box(x + across * cell, 40 + down * cell, cell - 3, cell - 3, kind=kind)
        drawing.text(x, 58 + count * cell, say[note], anchor="start", size=12)
    drawing.text(20, 330 - 14, say["share"], anchor="start", kind="soft", size=12)
    return drawing.svg()


def draw_masks(found: Computation, say: Mapping[str, str]) -> str:
    """Draws how many pieces have been asked for after each pass, with one mask and with new ones."""
    rows: Any = found.steps[-1].value
    drawing = Drawing(720, 60 + 52 * len(rows), title=found.title, description=say["about"])
    for x, key, kind in ((14, "one", "plain"), (_LEFT, "new", "green")):
        drawing.box(x, 16, 16, 16, kind=kind)
        drawing.text(x + 24, 24, say[key], anchor="start")
    pieces = found.values["pieces"]
    for n, (number, _, static, fresh) in enumerate(rows):
        for line, (count, kind) in enumerate(((static, "plain"), (fresh, "green"))):
            name = say["pass"].format(number) if line == 0 else ""
            _bar(drawing, 46 + 52 * n + 23 * line, name, count / pieces, f"{count} / {pieces}", kind, high=22)
    return drawing.svg()


def draw_depth(found: Computation, say: Mapping[str, str]) -> str:
    """Draws how long a state is, and how large the gradient, above some of the blocks, for both ways to normalise."""
    rows: Any = found.steps[-1].value
    drawing = Drawing(760, 60 + 52 * len(rows), title=found.title, description=say["about"])
    for x, first, title in ((14.0, 1, say["length"]), (400.0, 2, say["gradient"])):
        drawing.text(x, 24, title, anchor="start", bold=True)
        largest = max(row[first + side] for row in rows for side in (0, 2))
        for n, row in enumerate(rows):
            drawing.text(x, 70 + 52 * n, say["above"].format(row[0]), anchor="start", size=12)
            for line, kind in enumerate(("blue", "green")):
                number = row[first + 2 * line]
                top, width = 46 + 52 * n + 23 * line, 2 + 150 * number / largest
                drawing.box(x + 76, top, width, 18, kind=kind)
                drawing.text(x + 84 + width, top + 9, f"{number:.2f}", anchor="start", size=12)
    for x, name, kind in ((240.0, "BERT", "blue"), (310.0, "ModernBERT", "green")):
        drawing.box(x - 22, 16, 16, 16, kind=kind)
        drawing.text(x, 24, name, anchor="start", size=12)
    return drawing.svg()


def draw_turned(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the first pair of a query and of a key as hands of a clock, which turn one radian a place."""
    rows: Any = found.steps[-1].value
    drawing = Drawing(24 + 176 * len(rows), 290, title=found.title, description=say["about"])
    for n, (query, key, apart, _, turned) in enumerate(rows):
        x, middle = 16 + 176 * n, 16 + 176 * n + 80
        drawing.box(x, 40, 160, 160)
        for name, place in (("q", query), ("k", key)):
            # 每往后一个位置转一弧度：两根指针的夹角只看相隔多远
            across, down = math.cos(place), -math.sin(place)
            drawing.arrow((middle, 120), (middle + 58 * across, 120 + 58 * down))
            drawing.text(middle + 70 * across, 120 + 70 * down, name, bold=True)
        drawing.text(middle, 24, say["places"].format(query, key), size=12)
        drawing.text(middle, 220, say["apart"].format(apart), size=12)
        drawing.text(middle, 244, f"q · k = {float(turned):.4f}", size=12, kind="soft")
    drawing.text(16, 272, say["same"], anchor="start", bold=True, size=12)
    return drawing.svg()


def _bar(drawing: Drawing, top: float, name: str, share: float, words: str, kind: str, *, high: float = 28) -> None:
    drawing.text(14, top + high / 2 - 2, name, anchor="start", size=12)
    width = max(2.0, _WIDE * share)
    drawing.box(_LEFT, top, width, high - 4, kind=kind)
    drawing.text(_LEFT + width + 8, top + high / 2 - 2, words, anchor="start", size=12)
