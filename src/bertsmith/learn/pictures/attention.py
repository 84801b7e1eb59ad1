"""One attention head, step by step: words, Q, K and V, scores, softmax, mixture."""

from __future__ import annotations

from bertsmith.learn.lesson import Computation, Language, Text
from bertsmith.learn.pictures.drawing import Drawing


def draw_head(found: Computation, language: Language) -> str:
    """Draws what `looking_up` found, for its last word."""

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    values = found.values
    words, last = values["words"], len(values["words"]) - 1
    told = found.steps[3].columns
    sought = found.steps[1].columns
    about = say(
        "The last word's query meets all keys; softmax turns the scores into shares; the values are mixed by them",
        "最后一个词的查询与各词的键相乘；softmax 把分数变成份额；再按份额混合各词的值",
    )
    drawing = Drawing(720, 392, title=found.title, description=about)
    drawing.text(14, 74, say("1  words", "1  每个词"), anchor="start", bold=True)
    heads = (say("Q, asks for", "Q，找谁"), say("K, is found as", "K，被当作"), say("V, tells", "V，告诉"))
    for x, head, names in zip((150, 330, 510), heads, (sought, sought, told), strict=True):
        drawing.text(x + 62, 26, head, bold=True)
        for n, name in enumerate(names):
            drawing.text(x + 31 + 62 * n, 48, name, size=11, kind="soft")
    for n, word in enumerate(words):
        top = 62 + n * 34
        drawing.box(84, top, 56, 26, word, kind="violet" if n == last else "plain")
        for x, name in zip((150, 330, 510), "qkv", strict=True):
            drawing.matrix(x, top, [values[name][n]], cell=(62, 28), digits=0)
    y = 196
    drawing.text(14, y + 13, say(f"2  {words[last]}: scores", f"2  {words[last]}：分数"), anchor="start", bold=True)
    drawing.arrow((212, 160), (212, y - 6))
    drawing.arrow((392, 160), (392, 176), (260, 176), (260, y - 6))
    drawing.matrix(190, y, [values["scores"][last]], cell=(72, 28), digits=0)
    drawing.text(430, y + 13, "Q · K", anchor="start", kind="soft")
    drawing.text(14, y + 67, say("3  ÷ √D, softmax", "3  ÷ √D，softmax"), anchor="start", bold=True)
    drawing.arrow((297, y + 32), (297, y + 50))
    drawing.matrix(190, y + 54, [values["weights"][last]], cell=(72, 28), share=True)
    for n, word in enumerate(words):
        drawing.text(226 + 72 * n, y + 92, say(f"from {word}", f"从 {word}"), size=11, kind="soft")
    drawing.text(14, y + 143, say("4  mix the values", "4  混合各词的值"), anchor="start", bold=True)
    drawing.arrow((297, y + 102), (297, y + 126))
    drawing.arrow((572, 160), (572, y + 116), (340, y + 116), (340, y + 126))
    drawing.matrix(235, y + 130, [values["z"][last]], cell=(72, 28), digits=2)
    for n, name in enumerate(told):
        drawing.text(271 + 72 * n, y + 170, name, size=11, kind="soft")
    summary = say(
        f"{words[last]} → {values['found']}: {values['told']}", f"{words[last]} → {values['found']}：{values['told']}"
    )
    drawing.box(460, y + 130, 230, 30, summary, kind="green")
    drawing.arrow((386, y + 144), (456, y + 144))
    return drawing.svg()
