"""*My task*: what the model's own head says, each kind with its own fields and results, and which words it goes by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import gradio as gr

from bertsmith.finetune.tasks import all_tasks
from bertsmith.inference import Answered, Choice, LabelsPrediction, Prediction, Ranked, TextEntity
from bertsmith.inference.task_file import paired_of
from bertsmith_school.lab.markup import Bar, Mark, attributed, bars, details, marked, notice, percent, table, written
from bertsmith_school.lab.models import LabError, LabModel, LabModels, received, starting_text
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.learn.lesson import Text
from bertsmith_school.looking.attribution import Attribution

MOST_LINES = 100
"""Choices, or texts to rank."""


_STARTS = (
    "in the evening the man says that the day was wonderful .",
    "The film was a pleasure from beginning to end.",
    "这部电影从头到尾都很好看。",
)


class Fields(NamedTuple):
    """What a head reads: the names of a first text, a second one, and of lines; None for what it does not."""

    first: Text
    second: Text | None = None
    lines: Text | None = None
    needs_second: bool = True


_PAIR = Text("Text A", "文本 A"), Text("Text B", "文本 B")
_TARGETS = {"class": "类别", "label": "标签", "choice": "选项", "the output": "这个输出", "the answer": "答案"}
"""How what is explained begins, in English and in Chinese."""


def task_of(model: LabModel) -> str:
    """Returns what the head is for."""
    if model.task is None:
        raise LabError(
            f"The model `{model.name}` has not been fine-tuned for a task. `bertsmith finetune` makes one that is;"
            " the other tabs work with this one.",
            f"模型 `{model.name}` 还没有针对任务微调过。用 `bertsmith finetune` 微调后再来；别的标签页可以用它。",
        )
    return model.task


def with_task(models: LabModels, chosen: LabModel) -> LabModel:
    """Returns the chosen model, or where it has no task the first of the lab that has one, if there is any."""
    every = (chosen, *map(models.named, models.names))
    return next((model for model in every if model.task is not None), chosen)


def fields_of(model: LabModel) -> Fields:
    """Returns what the head reads."""
    inputs = all_tasks()[task_of(model)].spec.inputs
    first, second, lines = (named and Text(*named) for named in (inputs.first, inputs.second, inputs.lines))
    assert first is not None
    if not inputs.pairs:
        return Fields(first, second, lines)
    paired = paired_of(model.served.folder)
    if paired is None:
        # 别处来的文件夹不说明读一段还是两段：第二段可写可不写
        return Fields(_PAIR[0], Text("Text B, or nothing", "文本 B，可以不写"), needs_second=False)
    return Fields(*_PAIR) if paired else Fields(first)


def text_to_begin_with(model: LabModel) -> str:
    """Returns the text that stands in the first field: of a head that reads one text; of others none."""
    if model.task is None:
        return ""
    fields = fields_of(model)
    reads_one = fields.lines is None and (fields.second is None or not fields.needs_second)
    return starting_text(model.tokenizer, _STARTS) if reads_one else ""


def texts_of(model: LabModel, first: str, second: str, lines: str) -> list[str]:
    """Returns what was typed as the texts of one input."""
    fields = fields_of(model)
    texts = [received(first, fields.first)]
    if fields.second is not None:
        given = received(second, fields.second, may_be_empty=not fields.needs_second)
        texts += [given] if given.strip() else []
    if fields.lines is not None:
        listed = [line.strip() for line in received(lines, fields.lines).splitlines() if line.strip()]
        if len(listed) > MOST_LINES:
            raise LabError(
                f"{len(listed)} lines are too many; at most {MOST_LINES} here.",
                f"{len(listed)} 行太多了，这里最多 {MOST_LINES} 行。",
            )
        texts += listed
    return texts


def predict(model: LabModel, texts: Sequence[str]) -> Any:
    """Returns what the head's pipeline says of the texts of one input: its own result, see `bertsmith.inference`."""
    task = task_of(model)
    with model.pipeline(task) as pipeline:
        if task == "rank":
            return pipeline(texts[0], texts[1:])
        if task == "choose":
            return pipeline([texts[0]], [texts[1:]])[0]
        return pipeline(*([text] for text in texts))[0]


def explain(model: LabModel, texts: Sequence[str]) -> Attribution:
    """Attributes what the head says to the words; of texts that are ranked, the score of the best one."""
    if not all_tasks()[task_of(model)].spec.is_explained:
        raise LabError(
            "What this head says cannot be attributed to words; it reads more than the last layer of the encoder.",
            "这个头读的不只是编码器的最后一层，没法归因到词。",
        )
    if model.task == "rank":
        texts = [texts[0], predict(model, texts)[0].text]
    return model.attribute(texts)


def in_chinese(target: str) -> str:
    """Says in Chinese what is explained, see `ScoredText.target`; names and texts in it stay as they are."""
    word = re.fullmatch(r"tag (.+) of word (\d+), (.+)", target, re.DOTALL)
    if word is not None:
        return f"第 {word[2]} 个词 {word[3]} 的标签 {word[1]}"
    for english, chinese in _TARGETS.items():
        if target.startswith(english):
            return f"{chinese} {target.removeprefix(english).strip()}".strip()
    return f" {target}"


def build(state: PageState) -> None:
    """Lays the tab out."""

    def unfit(chosen: LabModel) -> LabError | None:
        try:
            task_of(with_task(state.models, chosen))
        except LabError as error:
            return error
        return None

    place = state.place_for_notice(unfit)
    lead, able, shown_first, shown_second, shown_lines = _layout(state, state.first)
    start = text_to_begin_with(with_task(state.models, state.first))
    said = gr.HTML(lead)
    first = gr.Textbox(start, **shown_first, max_lines=6, elem_id="task-first")
    second = gr.Textbox(**shown_second, max_lines=12, elem_id="task-second")
    lines = gr.Textbox(**shown_lines, lines=4, max_lines=12, elem_id="task-lines")
    with gr.Row(elem_classes="buttons"):
        button = state.button("Predict", "预测", "task-button", variant="primary", visible=able)
        why = state.button("Which words?", "凭哪些词？", "task-why", visible=able)
    results = gr.HTML(elem_id="task-results")
    reasons = gr.HTML(elem_id="task-reasons")

    def show(chosen: LabModel, one: str, two: str, many: str) -> tuple[str, str]:
        model = with_task(state.models, chosen)
        texts = texts_of(model, one, two, many)
        return _results(state, task_of(model), texts, predict(model, texts)), ""

    def show_reasons(chosen: LabModel, one: str, two: str, many: str) -> tuple[str]:
        model = with_task(state.models, chosen)
        return (_reasons(state, explain(model, texts_of(model, one, two, many))),)

    inputs = [first, second, lines]
    # 一打开就有结果，和“填空”一样；没有现成的文本，就等人来写
    opened = [state.page.load] if start else []
    state.answer([*opened, button.click, first.submit, second.submit], show, inputs, place, [results, reasons])
    state.answer([why.click], show_reasons, inputs, place, [reasons], slow=True)

    def other_model(model: LabModel) -> list[Any]:
        told, able, *shown = _layout(state, model)
        buttons = [gr.Button(visible=able), gr.Button(visible=able)]
        return [told, *(gr.Textbox(**one) for one in shown), *buttons, "", ""]

    state.on_choice(other_model, [said, first, second, lines, button, why, results, reasons])


def _layout(state: PageState, chosen: LabModel) -> tuple[str, bool, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Returns the sentence at the top, whether there is a task, and labels and visibility of the three fields."""
    model = with_task(state.models, chosen)
    if model.task is None:
        hidden: dict[str, Any] = {"visible": False, "label": ""}
        return "", False, hidden, hidden, hidden
    fields = fields_of(model)
    kind, name = state.say(*all_tasks()[model.task].spec.title), f"<code>{written(model.name)}</code>"
    other = Text(
        f"The model chosen above, <code>{written(chosen.name)}</code>, has no task, so another one is shown. ",
        f"上面所选的 <code>{written(chosen.name)}</code> 没有微调过，这里换一个微调过的模型。",
    )
    said = Text(f"The head of {name} is for <b>{kind}</b>.", f"{name} 的头用于<b>{kind}</b>。")
    lead = f"<p class='lead'>{state.say(other) if model is not chosen else ''}{state.say(said)}</p>"
    shown = [
        {"visible": name is not None, "label": "" if name is None else state.say(name)}
        for name in (fields.first, fields.second, fields.lines)
    ]
    return lead, True, shown[0], shown[1], shown[2]


def _results(state: PageState, task: str, texts: Sequence[str], found: Any) -> str:
    if isinstance(found, Prediction):
        return _shares(found.probabilities.items())
    if isinstance(found, LabelsPrediction):
        none = state.say("No label is likely enough.", "没有一个标签的概率够高。")
        named = {f"{'✓ ' if name in found.labels else ''}{name}": share for name, share in found.probabilities.items()}
        return ("" if found.labels else notice(none)) + _shares(named.items())
    if isinstance(found, Answered):
        return _answer(state, texts[1], found)
    if isinstance(found, Choice):
        return _shares(zip(texts[1:], found.probabilities, strict=True))
    if task == "rank":
        ranking: list[Ranked] = found
        return bars([Bar(one.text, one.score, f"{one.score:.3f}") for one in ranking])
    if task in ("tag", "features"):
        return _entities(state, texts[0], found)
    return f"<p class='number-found'>{float(found):.4f}</p>"


def _shares(found: Iterable[tuple[str, float]]) -> str:
    return bars([Bar(name, share, percent(share)) for name, share in sorted(found, key=lambda item: -item[1])])


def _answer(state: PageState, passage: str, found: Answered) -> str:
    if found.no_answer:
        none = Text(
            f"The passage does not answer the question ({percent(found.probability)}).",
            f"段落里没有答案（{percent(found.probability)}）。",
        )
        top = notice(state.say(none)) + marked(passage, [])
    else:
        top = marked(passage, [Mark(found.start, found.end, percent(found.probability))])
    rows = [Bar(one.text, one.probability, percent(one.probability)) for one in found.candidates[:5]]
    return top + bars(rows, caption=state.say("Best spans", "最好的片段"))


def _entities(state: PageState, text: str, found: Sequence[TextEntity]) -> str:
    types = list(dict.fromkeys(one.type for one in found))
    marks = [Mark(one.start, one.end, one.type, types.index(one.type)) for one in found]
    if not found:
        return notice(state.say("Nothing was found in this text.", "这段文本里什么也没找到。")) + marked(text, [])
    head = state.say("text|type|probability", "文字|类型|概率").split("|")
    rows = [[one.text, one.type, percent(one.probability)] for one in found]
    return marked(text, marks) + table(head, rows, name=state.say("Entities", "实体"), texts=2)


def _reasons(state: PageState, attribution: Attribution) -> str:
    raises, lowers = state.say("raises it|lowers it", "推高它|压低它").split("|")
    found, target = attribution.completeness, attribution.scored.target
    heading = state.say(f"What speaks for {target}", f"是什么支持{in_chinese(target)}")
    checked = Text(
        f"Integrated gradients from a text of [MASK]. {attribution.check[0].upper()}{attribution.check[1:]}.",
        f"积分梯度，基线是全部换成 [MASK] 的文本。归因之和 {found.total:+.4f}，应为"
        f" {found.difference:+.4f}，相差 {found.gap:.2%}（{found.steps} 步）。",
    )
    numbers = [[token, f"{value:+.4f}"] for token, value in zip(attribution.tokens, attribution.values, strict=True)]
    head = state.say("token|attribution", "词元|归因").split("|")
    values = details(state.say("Values", "数值"), table(head, numbers, name=heading))
    note = notice(attribution.scored.note)
    return (
        f"<h3>{written(heading)}</h3>{note}{attributed(attribution, raises=raises, lowers=lowers)}"
        f"<p class='lead'>{written(state.say(checked))}</p>{values}"
    )
