"""A Transformer block from bottom to top, with the state of one token at every stage."""

from __future__ import annotations

from typing import Any

from bertsmith.learn.lesson import Computation, Language, Text
from bertsmith.learn.pictures.drawing import Drawing


def draw_block(found: Computation, language: Language) -> str:
    """Draws what `first_block` found."""

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    states: Any = found.steps[0].value
    values = found.values
    about = say(
        "A token's state passes attention and a feed-forward layer; each is added to it, and LayerNorm follows the sum",
        "词元的状态依次经过注意力和前馈层；两者的结果都加回状态，相加之后做 LayerNorm",
    )
    drawing = Drawing(760, 560, title=found.title, description=about)
    inner, hidden = values["inner"], values["hidden"]
    stages = (
        (say(f"state of {values['piece']}", f"{values['piece']} 的状态"), "violet", states[0]),
        (say("attention: reads all tokens", "注意力：读所有词元"), "blue", states[1]),
        (say("+", "+"), "", states[2]),
        ("LayerNorm", "green", states[3]),
        (
            say(f"feed-forward: {hidden} → {inner} → {hidden}", f"前馈层：{hidden} → {inner} → {hidden}"),
            "amber",
            states[4],
        ),
        ("+", "", states[5]),
        ("LayerNorm", "green", states[6]),
    )
    bottom, step, middle = 516.0, 74.0, 240.0
    for number, (name, kind, row) in enumerate(stages):
        y = bottom - number * step
        if kind:
            drawing.box(middle - 120, y - 18, 240, 36, name, kind=kind, bold=number == 0)
        else:
            drawing.box(middle - 15, y - 15, 30, 30, "+", size=18)
        low = 18 if kind else 15
        if number:
            below = 18 if stages[number - 1][1] else 15
            drawing.arrow((middle, y + step - below), (middle, y + low + 2))
        drawing.matrix(440, y - 13, [row], cell=(66, 28), digits=2)
        drawing.text(440 + 66 * len(row) + 10, y, "…", kind="soft")
    for start, end in ((0, 2), (3, 5)):
        # 残差：绕过子层的那条路
        foot, top = bottom - start * step - 26, bottom - end * step
        drawing.arrow((middle, foot), (middle - 150, foot), (middle - 150, top), (middle - 17, top))
        drawing.text(middle - 156, (foot + top) / 2, say("residual", "残差"), size=12, kind="soft", anchor="end")
    drawing.text(
        440,
        24,
        say(f"the first {len(states[0])} of {hidden} numbers", f"{hidden} 个数中的前 {len(states[0])} 个"),
        anchor="start",
        kind="soft",
        size=12,
    )
    drawing.text(middle, 28, say("to the next block ↑", "到下一层 ↑"), kind="soft", size=12)
    return drawing.svg()
