"""*Next sentence*: would B follow A? The paper's second pre-training task (Devlin et al. 2019, §3.1) asks that."""

from __future__ import annotations

import gradio as gr

from bertsmith_school.lab.markup import Bar, bars, percent
from bertsmith_school.lab.models import LabModel, received, starting_text
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.learn.lesson import Text

_FIRST, _SECOND = Text("Text A", "文本 A"), Text("Text B", "文本 B")
_STARTS = (
    ("the man goes to the market .", "he buys some bread ."),
    ("The man went to the store.", "He bought a gallon of milk."),
    ("今天下雨了。", "他带了一把伞。"),
)


def follows(model: LabModel, first: str, second: str) -> float:
    """Returns the probability that B follows A."""
    with model.pipeline("next-sentence") as pipeline:
        return float(pipeline([received(first, _FIRST)], [received(second, _SECOND)])[0])


def build(state: PageState) -> None:
    """Lays the tab out."""
    state.lead(
        "Two texts. In pre-training, B was in half of the pairs what really came after A, and something random in"
        " the others.",
        "两段文字。预训练时，一半的 B 确实接在 A 之后，另一半是随机取来的。",
    )
    place = state.needs("next-sentence")
    start = starting_text(state.first.tokenizer, [first for first, _ in _STARTS])
    first, second = state.field(_FIRST, "next-first", start), state.field(_SECOND, "next-second", dict(_STARTS)[start])
    button = state.button("Does B follow A?", "B 接在 A 之后吗？", "next-button", variant="primary")
    results = gr.HTML(elem_id="next-results")

    def show(model: LabModel, one: str, two: str) -> tuple[str]:
        probability = follows(model, one, two)
        rows = [
            Bar(state.say("B follows A", "B 接在 A 之后"), probability, percent(probability)),
            Bar(state.say("B is random", "B 是随机的"), 1 - probability, percent(1 - probability)),
        ]
        return (bars(rows),)

    state.answer([button.click, first.submit, second.submit], show, [first, second], place, [results])
    state.on_choice(lambda _: [""], [results])
