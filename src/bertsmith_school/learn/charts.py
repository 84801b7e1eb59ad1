"""The pictures of ideas that are seen in numbers; each takes what a computation found and words, as in `pictures`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertsmith_school.learn.lesson import Computation
from bertsmith_school.learn.pictures import MOST, Drawing, text_width

_LEFT, _WIDE = 210.0, 400.0
"""Where bars begin, and how long a bar of 100 % is."""
_DOT = 10.0


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


def draw_stages(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the two stages: plain text makes one network, and each task takes it over and adds a little."""
    values = found.values
    tasks: Any = values["tasks"]
    drawing = Drawing(790, 30 + 88 * len(tasks), title=found.title, description=say["about"])
    middle = 15 + 44 * len(tasks)
    drawing.box(14, middle - 34, 200, 68, kind="green")
    drawing.text(114, middle - 10, say["text"], bold=True)
    drawing.text(114, middle + 12, say["words"], size=12)
    drawing.arrow((214, middle), (336, middle))
    drawing.text(275, middle - 14, say["first"], size=12, kind="soft")
    drawing.box(340, middle - 34, 150, 68, kind="blue")
    drawing.text(415, middle - 10, "BERT", bold=True, size=15)
    drawing.text(415, middle + 12, say["carried"], size=12)
    for n, (name, read, new) in enumerate(tasks):
        top = 18 + 88 * n
        drawing.arrow((490, middle), (556, top + 36))
        drawing.box(560, top, 216, 72, kind="amber")
        drawing.text(668, top + 16, say["later"].format(name), bold=True)
        drawing.text(668, top + 37, say["labels"].format(read), size=12)
        drawing.text(668, top + 56, say["new"].format(new), size=12)
    return drawing.svg()


def draw_readers(found: Computation, say: Mapping[str, str]) -> str:
    """Draws who reads whom in a layer of ELMo's two networks, of GPT, and of BERT: a row reads the marked columns."""
    grids, systems = found.steps[:3], found.steps[3].cells()
    pieces: Any = found.values["pieces"]
    names = 20 + max(text_width(piece, 12) for piece in pieces)
    cell = min(26.0, 208 / len(pieces))
    wide = cell * len(pieces)
    drawing = Drawing(names + 3 * (wide + 30), 116 + wide, title=found.title, description=say["about"])
    kinds = {"■": "blue", "←": "blue", "→": "amber", "↔": "violet", "·": "plain"}
    for n, piece in enumerate(pieces):
        drawing.text(names - 12, 44 + cell * (n + 0.5), piece, anchor="end", size=12)
    for number, (step, (name, networks, pairs, share)) in enumerate(zip(grids, systems, strict=True)):
        x = names + number * (wide + 30)
        drawing.text(x + wide / 2, 22, name, bold=True)
        for down, row in enumerate(step.cells()):
            for across, sign in enumerate(row[-1].split()):
                drawing.box(x + across * cell, 44 + down * cell, cell - 2, cell - 2, kind=kinds[sign])
        drawing.text(x + wide / 2, 62 + wide, f"{networks} × {pairs} ({share})", size=12)
    drawing.text(14, 92 + wide, say["key"], anchor="start", size=12, kind="soft")
    return drawing.svg()


def draw_paths(found: Computation, say: Mapping[str, str]) -> str:
    """Draws how a word finds its way back to itself in two layers, and what is found where it was hidden."""
    values = found.values
    pieces, place = list(values["pieces"]), values["place"]
    step = max(66.0, *(text_width(piece, 13) + 18 for piece in pieces))
    drawing = Drawing(max(110 + step * len(pieces), 520), 470, title=found.title, description=say["about"])
    for panel, name in enumerate(("seen", "hidden")):
        top = 234.0 * panel
        drawing.text(14, top + 22, say[name], anchor="start", bold=True)
        middles = [100 + n * step + step / 2 - 3 for n in range(len(pieces))]
        for n in range(len(pieces)):
            if n != place:
                # 两段路：输入里的词 → 别的词 → 第二层的它自己
                for ends in (((place, 182), (n, 146)), ((n, 116), (place, 78))):
                    line = [(middles[token], top + y) for token, y in ends]
                    drawing.curve(*line, kind="plain" if panel else "violet", dashed=panel == 1)
        for row, label in enumerate((say["layer"].format(2), say["layer"].format(1), say["input"])):
            y = top + 48 + 68 * row
            drawing.text(14, y + 14, label, anchor="start", size=12, kind="soft")
            for n, piece in enumerate(pieces):
                masked = panel == 1 and row == 2 and n == place
                kind = "amber" if masked else "violet" if n == place and row != 1 else "plain"
                drawing.box(100 + n * step, y, step - 6, 28, "[MASK]" if masked else piece, kind=kind)
    return drawing.svg()


def draw_paper_ablation(found: Computation, say: Mapping[str, str]) -> str:
    """Draws how many points each of the paper's ablations loses on each task."""
    rows: Any = found.steps[1].value
    kinds = ("amber", "violet", "blue")
    tasks = found.steps[1].columns[1:]
    drawing = Drawing(720, 110 + 82 * len(tasks), title=found.title, description=say["about"])
    drawing.text(14, 22, say["lost"], anchor="start", bold=True)
    for n, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
        drawing.box(14, 36 + 22 * n, 16, 16, kind=kind)
        drawing.text(38, 44 + 22 * n, row[0], anchor="start", size=12)
    most = max(float(number) for row in rows for number in row[1:])
    for n, task in enumerate(tasks):
        for line, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
            name = task if line == 1 else ""
            top = 110 + 82 * n + 24 * line
            _bar(drawing, top, name, float(row[1 + n]) / most, row[1 + n], kind, high=23)
    return drawing.svg()


def draw_swapped(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the parts of BERT and of each family: its own, swapped, or left out."""
    values = found.values
    families, modules, kinds = ["BERT", *values["families"]], values["modules"], values["kinds"]
    colours = {"bert": "blue", "own": "amber", "": "plain"}
    drawing = Drawing(170 + 108 * len(families), 96 + 36 * len(modules), title=found.title, description=say["about"])
    for x, (key, kind) in zip((14, 200, 386), (("same", "blue"), ("swapped", "amber"), ("out", "plain")), strict=True):
        drawing.box(x, 14, 16, 16, kind=kind)
        drawing.text(x + 24, 22, say[key], anchor="start", size=12)
    for column, family in enumerate(families):
        x = 160 + 108 * column
        drawing.text(x + 51, 52, family, bold=True, size=12)
        for row, name in enumerate(modules):
            if column == 0:
                drawing.text(14, 82 + 36 * row, name, anchor="start", size=12)
            kind = "bert" if column == 0 else kinds[row][column - 1]
            drawing.box(x, 68 + 36 * row, 102, 30, "" if kind else "–", kind=colours[kind])
        if column:
            count = f"{values['swapped'][column - 1]} / {values['parts']}"
            drawing.text(x + 51, 82 + 36 * len(modules), count, size=12, kind="soft")
    return drawing.svg()


def _bar(drawing: Drawing, top: float, name: str, share: float, words: str, kind: str, *, high: float = 28) -> None:
    drawing.text(14, top + high / 2 - 2, name, anchor="start", size=12)
    width = max(2.0, _WIDE * share)
    drawing.box(_LEFT, top, width, high - 4, kind=kind)
    drawing.text(_LEFT + width + 8, top + high / 2 - 2, words, anchor="start", size=12)


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


def draw_curve(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the loss of `learning_curve` step by step, with what knowing nothing and word frequencies alone cost."""
    values = found.values
    losses: Sequence[float] = values["losses"]
    drawing = Drawing(720, 350, title=found.title, description=say["about"])
    left, right, top, bottom = 60.0, 690.0, 50.0, 300.0
    across = _scale((1, len(losses)), (left, right))
    # 纵轴从零画起：曲线降了多少，一眼看得出比例
    down = _scale((0, max(*losses, values["blind"])), (bottom, top))
    drawing.arrow((left, bottom), (right + 10, bottom))
    drawing.arrow((left, bottom), (left, top - 22))
    drawing.text(left + 10, 24, say["loss"], anchor="start", kind="soft")
    for name, kind in (("blind", "amber"), ("entropy", "violet")):
        y = down(values[name])
        drawing.curve((left, y), (right, y), kind=kind, dashed=True)
        drawing.text(right, y - 11, say[name], anchor="end", size=12)
    drawing.curve(*((across(step), down(loss)) for step, loss in enumerate(losses, 1)))
    drawing.text(right, down(values["last"]) + 24, say["last"], anchor="end", bold=True)
    drawing.text(left, bottom + 20, "1", size=12, kind="soft")
    drawing.text(right, bottom + 20, say["steps"], anchor="end", size=12, kind="soft")
    return drawing.svg()


def draw_gradient(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the loss as one entry of a parameter moves, and the line whose slope was derived by hand."""
    values = found.values
    curve: Sequence[tuple[float, float]] = values["curve"]
    moves, losses = zip(*curve, strict=True)
    here = losses[len(losses) // 2]
    drawing = Drawing(720, 340, title=found.title, description=say["about"])
    left, right, top, bottom = 40.0, 690.0, 90.0, 290.0
    across, down = _scale((moves[0], moves[-1]), (left, right)), _scale((min(losses), max(losses)), (bottom, top))
    drawing.arrow((left, bottom + 8), (right + 10, bottom + 8))
    for move in (moves[0], 0.0, moves[-1]):
        drawing.text(across(move), bottom + 26, f"{move:+g}" if move else "0", size=12, kind="soft")
    drawing.curve(*((across(move), down(loss)) for move, loss in curve))
    # 切线只画到图框之内：往上、往下各有多少余地
    slope, rooms = values["derived"], (max(losses) - here, here - min(losses))
    reaches = [min(0.6 * moves[-1], room / abs(slope)) for room in rooms]
    ends = [math.copysign(reach, side * slope) for reach, side in zip(reaches, (1, -1), strict=True)]
    drawing.curve(*((across(move), down(here + slope * move)) for move in ends), kind="amber", dashed=True)
    _dot(drawing, across(0.0), down(here), "violet")
    drawing.text(left, 22, say["entry"], anchor="start", bold=True)
    drawing.text(left, 46, say["derived"], anchor="start", size=12)
    drawing.text(left, 66, say["measured"], anchor="start", size=12)
    return drawing.svg()


def draw_seeds(found: Computation, say: Mapping[str, str]) -> str:
    """Draws a point for every seed: what each model gives to a verb, and to the right one."""
    shares: Mapping[str, Sequence[tuple[float, float]]] = found.values["shares"]
    drawing = Drawing(720, 70 + 76 * len(shares), title=found.title, description=say["about"])
    across = _scale((0, 1), (230, 620))
    for x, name, kind in ((230, "verbs", "amber"), (420, "right", "blue")):
        _dot(drawing, x, 22, kind)
        drawing.text(x + 12, 22, say[name], anchor="start", size=12)
    for n, (name, pairs) in enumerate(zip(say["models"].split("|"), shares.values(), strict=True)):
        y = 62 + 76 * n
        drawing.text(14, y + 14, name, anchor="start", bold=True)
        for line, kind in enumerate(("amber", "blue")):
            drawing.arrow((across(0), y + 30 * line), (across(1), y + 30 * line), head=False)
            points = [pair[line] for pair in pairs]
            for number, share in enumerate(points):
                # 上下错开一点：重合的点也数得出来
                _dot(drawing, across(share), y + 30 * line + 3 * (number % 3 - 1), kind)
            ends = f"{min(points):.0%} – {max(points):.0%}"
            drawing.text(640, y + 30 * line, ends, anchor="start", size=12)
    return drawing.svg()


def draw_sizes(found: Computation, say: Mapping[str, str]) -> str:
    """Draws the accuracy on three tasks over the networks of table 6, from the smallest to the largest."""
    rows: Any = found.steps[0].value
    tasks: Sequence[str] = found.values["tasks"]
    drawing = Drawing(760, 404, title=found.title, description=say["about"])
    left, right, top, bottom = 70.0, 640.0, 60.0, 310.0
    scores = [[float(row[-len(tasks) + n]) for row in rows] for n in range(len(tasks))]
    across = _scale((0, len(rows) - 1), (left, right))
    # 差别只有几分：纵轴不从零开始，用线而不用条
    down = _scale((math.floor(min(map(min, scores))), math.ceil(max(map(max, scores)))), (bottom, top))
    drawing.text(14, 24, say["accuracy"], anchor="start", bold=True)
    drawing.arrow((left - 30, bottom + 14), (right + 30, bottom + 14))
    for n, (layers, hidden, heads, count, *_) in enumerate(rows):
        drawing.text(across(n), bottom + 32, f"{layers} / {hidden} / {heads}", size=12)
        drawing.text(across(n), bottom + 50, f"{count:,}", size=11, kind="soft")
    drawing.text(14, bottom + 70, say["axis"], anchor="start", size=12, kind="soft")
    for task, line, kind in zip(tasks, scores, ("blue", "amber", "green"), strict=True):
        points = [(across(n), down(score)) for n, score in enumerate(line)]
        drawing.curve(*points, kind=kind)
        for x, y in points:
            _dot(drawing, x, y, kind)
        drawing.text(points[0][0] - 12, points[0][1], f"{line[0]}", anchor="end", size=12)
        drawing.text(points[-1][0] + 12, points[-1][1], f"{line[-1]} {task}", anchor="start", size=12, bold=True)
    return drawing.svg()


def _scale(values: tuple[float, float], pixels: tuple[float, float]) -> Callable[[float], float]:
    """Returns what maps values between two ends to pixels between two others, in a straight line."""
    (low, high), (start, end) = values, pixels
    return lambda value: start + (end - start) * (value - low) / ((high - low) or 1)


def _dot(drawing: Drawing, x: float, y: float, kind: str) -> None:
    drawing.box(x - _DOT / 2, y - _DOT / 2, _DOT, _DOT, kind=kind)
