"""*Attention*: one head, the mean of a layer or the rollout as a map, and what every head does in a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np

from bertsmith_school.lab.figures import PAIR_COLOURS, draw_heads, draw_map, map_width
from bertsmith_school.lab.markup import details, notice, percent, table, written
from bertsmith_school.lab.models import LabError, LabModel, received
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.learn.lesson import Text
from bertsmith_school.looking.maps import (
    MEASURES,
    PAIRS,
    AttentionMaps,
    Floats,
    mean_over_heads,
    pair_shares,
    rollout,
    summaries,
)

MEAN, ROLLOUT = "mean", "rollout"
STRONGEST = 4
"""Weights of each token in the table: the map's content for those who cannot point at it."""

_FIRST, _SECOND = Text("Text A", "文本 A"), Text("Text B, or nothing", "文本 B，可以不写")
_STARTS = ("the man reads the book to the woman .", "The cat sat on the mat because it was tired.", "今天天气很好。")
_MEASURES = {
    "entropy": Text("entropy", "熵"),
    "distance": Text("distance", "距离"),
    "cls": Text("share to [CLS]", "给 [CLS] 的份额"),
    "sep": Text("share to [SEP]", "给 [SEP] 的份额"),
    "itself": Text("share to itself", "给自己的份额"),
    "previous": Text("share to previous token", "给前一个词元的份额"),
    "next": Text("share to next token", "给后一个词元的份额"),
}


@dataclass(frozen=True)
class View:
    """What is looked at: weights [S, S] of a layer and head from 0; no head for a mean or the rollout."""

    attention: AttentionMaps
    weights: Floats
    layer: int
    head: int | None


def look(model: LabModel, first: str, second: str, layer: int, head: str) -> View:
    """Chooses a map of a text or pair: of a layer from 1, and a head from 1, `mean` or `rollout`."""
    first, second = received(first, _FIRST), received(second, _SECOND, may_be_empty=True)
    attention = model.maps(first, second if second.strip() else None)
    layers, heads = attention.maps.shape[:2]
    if not 1 <= layer <= layers or (head not in (MEAN, ROLLOUT) and not 1 <= int(head) <= heads):
        raise LabError(
            f"The model has {layers} layers of {heads} heads; choose one of them.",
            f"这个模型有 {layers} 层、每层 {heads} 个头，请在其中选择。",
        )
    if head in (MEAN, ROLLOUT):
        of_layers = (mean_over_heads if head == MEAN else rollout)(attention.maps)
        return View(attention, of_layers[layer - 1], layer - 1, None)
    weights = attention.maps[layer - 1, int(head) - 1]
    if np.isnan(weights).any():
        raise LabError("This head was pruned; choose another one.", "这个头已被剪掉，请另选一个。")
    return View(attention, weights, layer - 1, int(head) - 1)


def build(state: PageState) -> None:
    """Lays the tab out."""
    state.lead(
        "A row is a token that reads, a column one that is read; the darker, the more. Point at a cell for the weight.",
        "行是“在读”的词元，列是“被读”的词元；颜色越深，权重越大。指向一格可以看到权重。",
    )
    place = state.place_for_notice()
    first = state.field(_FIRST, "attention-first", _STARTS)
    second = state.field(_SECOND, "attention-second")
    with gr.Row(elem_classes="controls"):
        layer = state.menu(**_layers(state.first), en="Layer", zh="层", id="attention-layer", min_width=120)
        head = state.menu(**_heads(state, state.first), en="Head", zh="头", id="attention-head", min_width=120)
    by_pair = gr.Checkbox(label=state.say("Colour by pair", "按文本对着色"), elem_id="attention-pairs")
    button = state.button("Look", "看注意力", "attention-button", variant="primary")
    told = gr.HTML(elem_id="attention-told")
    figure = gr.Plot(show_label=False, elem_id="attention-map", elem_classes="scrolls", container=False)
    measures = [(state.say(_MEASURES[name]), name) for name in MEASURES]
    measure = state.menu(measures, "Every head by", "比较所有的头，按", "attention-measure", value="entropy")
    heads = gr.Plot(show_label=False, elem_id="attention-heads", container=False)

    def show(model: LabModel, one: str, two: str, layer: int, head: str, pairs: bool, name: str) -> tuple[Any, ...]:
        view = look(model, one, two, layer, head)
        attention = view.attention
        words = state.say("reads", "在读"), state.say("is read", "被读")
        coloured = bool(pairs) and attention.is_pair
        drawn = draw_map(attention.tokens, view.weights, attention.sequence_ids, words=words, by_pair=coloured)
        axes = state.say("layer", "层"), state.say("head", "头")
        of_all = summaries(attention)
        overview = draw_heads(of_all[name], share=MEASURES[name].is_share, words=axes, chosen=(view.layer, view.head))
        return _told(state, view, of_all, coloured, bool(pairs)), drawn, overview

    inputs = [first, second, layer, head, by_pair, measure]
    outputs = [told, figure, heads]
    triggers = [button.click, first.submit, second.submit, layer.input, head.input, by_pair.input, measure.input]
    state.answer(triggers, show, inputs, place, outputs)
    state.on_choice(
        lambda model: ["", None, None, gr.Dropdown(**_layers(model)), gr.Dropdown(**_heads(state, model))],
        [*outputs, layer, head],
    )


def _layers(model: LabModel) -> dict[str, Any]:
    count = model.config.num_hidden_layers
    return {"choices": list(range(1, count + 1)), "value": count, "filterable": False}


def _heads(state: PageState, model: LabModel) -> dict[str, Any]:
    count = model.config.num_attention_heads
    named = [(str(number), str(number)) for number in range(1, count + 1)]
    named += [(state.say("mean of all", "全部头的平均"), MEAN), (state.say("rollout", "逐层追溯（rollout）"), ROLLOUT)]
    return {"choices": named, "value": "1", "filterable": False}


def _told(state: PageState, view: View, of_all: dict[str, Floats], coloured: bool, wanted: bool) -> str:
    """Describes the map: whether the text was cut, the head's measures, the pair's shares."""
    attention = view.attention
    # 图至少这么宽：手机上横向滚动，标签不会挤在一起
    parts = [f"<style>#attention-map .js-plotly-plot{{min-width:{map_width(len(attention.tokens))}px}}</style>"]
    if attention.dropped:
        read = len(attention.tokens)
        said = Text(
            attention.note,
            f"文本有 {read + attention.dropped} 个词元，模型只读 {read} 个：末尾的 {attention.dropped} 个被截去了。",
        )
        parts.append(notice(state.say(said)))
    if wanted and not attention.is_pair:
        parts.append(notice(state.say("Colours by pair need a text B.", "按文本对着色需要文本 B。")))
    if view.head is not None:
        values = {name: float(of_all[name][view.layer, view.head]) for name in MEASURES}
        # 每个度量一行：横着排七列，手机上放不下
        rows = [
            [state.say(_MEASURES[name]), percent(value) if MEASURES[name].is_share else f"{value:.2f}"]
            for name, value in values.items()
        ]
        title = state.say("This head in numbers", "这个头的数字")
        place = Text(
            f"layer {view.layer + 1}, head {view.head + 1}", f"第 {view.layer + 1} 层，第 {view.head + 1} 个头"
        )
        parts.append(table([title, state.say(place)], rows, name=title))
    if coloured:
        shares = pair_shares(view.weights[None, None], attention.sequence_ids)[0, 0]
        keys = [
            f"<span class='pair' style='--pair:{colour}'>{written(name)} {percent(float(share))}</span>"
            for name, colour, share in zip(PAIRS, PAIR_COLOURS.values(), shares.ravel(), strict=True)
        ]
        parts.append(f"<p class='key'>{' '.join(keys)}</p>")
    parts.append(_strongest(state, view))
    return "".join(parts)


def _strongest(state: PageState, view: View) -> str:
    """Says in words what the map shows when pointed at: for each token what it reads most."""
    tokens = view.attention.tokens
    rows = []
    for token, weights in zip(tokens, view.weights, strict=True):
        best = np.argsort(-weights, kind="stable")[:STRONGEST]
        # 百分号紧跟着数：窄屏上折行时不分家
        rows.append([token, *(f"{tokens[place]} {weights[place]:.1%}" for place in best)])
    head = [state.say("token", "词元"), state.say("reads most", "读得最多的"), *[""] * (len(rows[0]) - 2)]
    name = state.say("The strongest weights, as a table", "最大的权重，列成表")
    return details(name, table(head, rows, name=name, texts=len(head)))
