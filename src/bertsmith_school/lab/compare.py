"""*Compare*: what the chosen model and another, of the lab or a folder on this machine, make of the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gradio as gr

from bertsmith.tinyworld import trained_model
from bertsmith_school.lab import fill_mask, similarity
from bertsmith_school.lab.markup import percent, pieces, table, written
from bertsmith_school.lab.models import LabError, LabModel, LabModels
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.learn.lesson import Text

_PROBABILITY = Text("probability", "概率")


def filled_by_both(models: Sequence[LabModel], text: str) -> list[fill_mask.Filled]:
    """Fills the masks of a text by each model."""
    filled = [fill_mask.fill(model, text) for model in models]
    # 一个模型自己的掩码写法（如 <mask>），在另一个模型眼里只是普通文字
    if len({len(one.masks) for one in filled}) > 1:
        raise LabError(
            "Write every mask as [MASK]: both models know that.", "请把每个空都写成 [MASK]：两个模型都认得。"
        )
    return filled


def similarities(models: Sequence[LabModel], text: str) -> tuple[list[str], list[list[float]]]:
    """Returns the N - 1 other lines of a text, and for each model their cosines with the first, in [-1, 1]."""
    found = [similarity.similarity_map(model, text) for model in models]
    return found[0].lines[1:], [one.matrix[0, 1:].tolist() for one in found]


def chosen_first(models: LabModels) -> str | None:
    """Returns what the first model is compared with to begin with: one that fills masks as well; None where none is."""
    first, *others = (models.named(name) for name in models.names)
    filling = [model.name for model in others if "fill-mask" in model.served.pipelines]
    # 没有别的会填空的模型，就拿自带的小村庄模型来比；也不行就空着：一打开就是一对比不成的，不如请人来选
    village = [str(trained_model())] if models.may_open and Path(first.served.folder) != trained_model() else []
    return next(iter([*filling, *village]), None)


def build(state: PageState) -> None:
    """Lays the tab out."""
    state.lead(
        "The model chosen above and another one read the same text: what each would write at <code>[MASK]</code>,"
        " into which pieces it cuts the text, how alike it finds two texts.",
        "上面所选的模型和另一个模型读同一段文字：各自会在 <code>[MASK]</code> 处填什么，把文字切成哪些词片，"
        "觉得两段文字有多相像。",
    )
    place = state.place_for_notice()
    names, may_open = state.models.names, state.models.may_open
    named = Text("Other model: one of the lab's, or its folder", "另一个模型：实验室里的，或者它的文件夹")
    other = gr.Dropdown(
        names,
        value=chosen_first(state.models),
        label=state.say(named if may_open else Text("Other model", "另一个模型")),
        allow_custom_value=may_open,
        filterable=may_open,
        elem_id="compare-other",
    )
    text = state.field(fill_mask.NAME, "compare-text", fill_mask.STARTS)
    fill = state.button("Fill and cut", "填词并切分", "compare-fill", variant="primary")
    filled = gr.HTML(elem_id="compare-filled")
    each = Text("A text on each line; the first is compared with the others", "每行一段文本；第一行与其余各行比较")
    lines = state.field(each, "compare-lines", similarity.STARTS, lines=4, max_lines=14)
    button = state.button("How alike?", "有多相像？", "compare-button", variant="primary")
    alike = gr.HTML(elem_id="compare-alike")

    def show_filled(model: LabModel, second: str | None, typed: str) -> tuple[str]:
        models = [model, state.models.opened(second)]
        return (_filled(state, models, filled_by_both(models, typed)),)

    def show_alike(model: LabModel, second: str | None, typed: str) -> tuple[str]:
        models = [model, state.models.opened(second)]
        others, cosines = similarities(models, typed)
        head = [state.say("line", "行"), *(one.name for one in models)]
        rows = [[line, *(f"{cosine:.3f}" for cosine in pair)] for line, *pair in zip(others, *cosines, strict=True)]
        return (table(head, rows, name=state.say("Cosines with the first line", "与第一行的余弦")),)

    state.answer([fill.click, text.submit], show_filled, [other, text], place, [filled], slow=True)
    state.answer([button.click], show_alike, [other, lines], place, [alike], slow=True)
    state.on_choice(lambda _: ["", ""], [filled, alike])


def _filled(state: PageState, models: Sequence[LabModel], filled: Sequence[fill_mask.Filled]) -> str:
    """Returns a table for each mask, and the pieces of the text below."""
    head = [word for model in models for word in (model.name, state.say(_PROBABILITY))]
    parts = []
    for number, both in enumerate(zip(*(one.masks for one in filled), strict=True), 1):
        rows = [
            [cell for one in rank for cell in (one.piece, percent(one.probability))]
            for rank in zip(*both, strict=False)
        ]
        parts.append(table(head, rows, name=state.say(f"Mask {number}", f"第 {number} 个空"), texts=len(head)))
    for model, one in zip(models, filled, strict=True):
        ids = model.tokenizer(one.text, parse_special="mask")["input_ids"]
        title = Text(f"{model.name}: {len(ids)} pieces", f"{model.name}：{len(ids)} 个词片")
        parts.append(f"<h3>{written(state.say(title))}</h3>{pieces((model.tokenizer.vocab[id], 0) for id in ids)}")
    return "".join(parts)
