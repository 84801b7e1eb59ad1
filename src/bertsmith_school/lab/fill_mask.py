"""*Fill the mask*: what the model would write at `[MASK]`, and its words a click away from the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gradio as gr

from bertsmith.inference import Candidate
from bertsmith_school.lab.markup import Bar, bars, percent
from bertsmith_school.lab.models import LabError, LabModel, received
from bertsmith_school.lab.page_state import QUIET, PageState
from bertsmith_school.learn.lesson import Text

WRITTEN_MASK = "[MASK]"
"""What the page calls the mask, whatever a model's own is."""

TOP = 10
"""Candidates for each mask."""

STARTS = ("the man eats the [MASK] .", "Paris is the [MASK] of France.", "今天天气很[MASK]。")
NAME = Text("Text", "文本")


class Filled(NamedTuple):
    """A text, and the candidates for each of its masks, best first."""

    text: str
    masks: list[list[Candidate]]


def with_own_mask(model: LabModel, text: str) -> str:
    """Writes the model's own mask token where `[MASK]` is written: the page calls it so for every model."""
    # RoBERTa 写作 <mask>：换了模型，页面上现成的句子也应该能填
    return text.replace(WRITTEN_MASK, model.tokenizer.special_tokens.mask)


def fill(model: LabModel, text: str) -> Filled:
    """Fills the masks of a text."""
    text = with_own_mask(model, received(text, NAME))
    mask = model.tokenizer.special_tokens.mask
    with model.pipeline("fill-mask") as pipeline:
        if mask not in text:
            raise LabError(
                f"Write {WRITTEN_MASK} where a word is to be filled in.", f"请在要填词的地方写上 {WRITTEN_MASK}。"
            )
        size = len(model.tokenizer(text, parse_special="mask")["input_ids"])
        if size > pipeline.max_length:
            raise LabError(
                f"The text has {size} tokens, the model reads {pipeline.max_length}; shorten it.",
                f"文本有 {size} 个词元，模型只读 {pipeline.max_length} 个；请缩短。",
            )
        return Filled(text, pipeline(text, top_k=min(TOP, model.tokenizer.vocab_size)))


def inserted(model: LabModel, text: str, mask_number: int, piece: str) -> str:
    """Puts a piece where a mask stood, by its number from 0; `##` joins the piece to what stands before."""
    text = with_own_mask(model, text)
    read = model.tokenizer(text, parse_special="mask")
    pairs = zip(read["input_ids"], read["offsets"], strict=True)
    places = [place for index, place in pairs if index == model.tokenizer.mask_token_id]
    if mask_number >= len(places):
        raise LabError("The text has changed; fill it again first.", "文本已经改过，请先重新填一次。")
    start, end = places[mask_number]
    before, after = text[:start], text[end:]
    if end > start and text[start].isspace():
        # 有的 [MASK] 吞掉它前面的空格：写回单词时要还给它
        before += " "
    # 词内片段要与前一个词连写，英文词之间的空格须去掉
    return before.rstrip(" ") + piece[2:] + after if piece.startswith("##") else before + piece + after


def build(state: PageState) -> None:
    """Lays the tab out."""
    state.lead(
        "Write a text with <code>[MASK]</code> in it. The model was trained to guess what stands there; choose a"
        " guess to write it into the text.",
        "写一段带有 <code>[MASK]</code> 的文字。模型受过训练，会猜那里原来是什么词；点一个猜测，就写进文本里。",
    )
    place = state.needs("fill-mask")
    text = state.field(NAME, "fill-text", STARTS)
    with gr.Row(elem_classes="buttons"):
        button = state.button("Fill", "填词", "fill-button", variant="primary")
        mask = state.button("Add [MASK]", "加上 [MASK]", "fill-add")
    results = gr.HTML(
        elem_id="fill-results",
        js_on_load=(
            "element.addEventListener('click', event => {"
            " const button = event.target.closest('[data-choice]');"
            " if (button) trigger('click', {choice: button.dataset.choice}); });"
        ),
    )
    shown: gr.State = gr.State([])

    def show(model: LabModel, typed: str) -> tuple[str, list[list[Candidate]]]:
        filled = fill(model, typed)
        return _results(state, filled.masks), filled.masks

    def choose(
        model: LabModel, typed: str, masks: Sequence[Sequence[Candidate]], event: Mapping[str, Any]
    ) -> tuple[str, str, Sequence[Sequence[Candidate]]]:
        number, candidate = map(int, str(event["choice"]).split(":"))
        chosen = inserted(model, received(typed, NAME), number, masks[number][candidate].piece)
        # 填上一个词，其余空的猜测也会跟着变：有空就接着算
        if model.tokenizer.special_tokens.mask in chosen:
            filled = fill(model, chosen)
            return chosen, _results(state, filled.masks), filled.masks
        done = state.say("Written into the text.", "已写进文本。")
        return chosen, f"<p class='done' role='status'>{done}</p>", []

    # 一打开就有结果：第一眼看到的不是空页
    state.answer([state.page.load, button.click, text.submit], show, [text], place, [results, shown])
    state.answer([results.click], choose, [text, shown], place, [text, results, shown], with_event=True)
    mask.click(lambda typed: f"{(typed or '').rstrip()} {WRITTEN_MASK}".lstrip(), [text], [text], **QUIET)
    state.on_choice(lambda _: ["", []], [results, shown])


def _results(state: PageState, masks: Sequence[Sequence[Candidate]]) -> str:
    parts = []
    for number, candidates in enumerate(masks):
        caption = state.say(f"Mask {number + 1}", f"第 {number + 1} 个空") if len(masks) > 1 else ""
        rows = [Bar(one.piece, one.probability, percent(one.probability)) for one in candidates]
        hint = state.say("write it into the text", "写进文本")
        parts.append(bars(rows, caption=caption, choice=str(number), hint=hint))
    return "".join(parts)
