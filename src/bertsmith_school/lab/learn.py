"""*Learn*: the lessons of `bertsmith learn` and its file of cards, the computations live on the chosen model."""

from __future__ import annotations

import base64
import functools
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from bertsmith.errors import BertsmithError, InputError
from bertsmith_school.lab.markup import details, notice, saved, table, written
from bertsmith_school.lab.models import LabError, LabModel, received
from bertsmith_school.lab.page_state import QUIET, PageState
from bertsmith_school.learn import (
    COMPUTATIONS,
    Card,
    Computation,
    Deck,
    Exercise,
    Grade,
    Input,
    Lesson,
    Question,
    Section,
    Study,
    check_answer,
    compute,
    grade,
    lessons,
    picture,
)
from bertsmith_school.learn.deck import Answer
from bertsmith_school.learn.lesson import Language, Step, Text, as_html, is_number

_GRADES: tuple[tuple[Answer, Text], ...] = (
    ("again", Text("not known", "没记住")),
    ("hard", Text("hard", "勉强")),
    ("good", Text("good", "记得")),
    ("easy", Text("easy", "很容易")),
)
_QUESTIONS, _EXERCISES = Text("Questions", "问题"), Text("Exercises", "练习")
_CODE, _CARDS = Text("In the code", "在代码里"), Text("Flash cards", "记忆卡片")

_RESULTS_KEPT = 64

Starts = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Model → computation → input → the text that its field begins with."""

Fields = dict[tuple[str, str], gr.Textbox]
"""The fields of texts, by computation and input."""

_one_at_a_time = threading.Lock()


def markdown(text: str) -> str:
    """Returns paragraphs with **bold**, *italic* and `code` as HTML; whatever else is in them is shown as it is."""
    return "".join(f"<p>{as_html(paragraph, written)}</p>" for paragraph in text.split("\n\n"))


def parsed(given: Input, value: Any) -> Any:
    """Returns what was typed for an input in the form that the computation takes."""
    if given.kind == "integer":
        # 只把浮点数变成整数，不反过来：308 位以上的整数放不进浮点数；范围由 check 管
        return int(value) if isinstance(value, float) and value.is_integer() else value
    text = received(value, given.label, may_be_empty=True)
    if given.kind not in ("numbers", "matrix"):
        return text
    rows = [row.replace(",", " ").split() for row in re.split(r"[;\n；]", text) if row.strip()]
    try:
        numbers = [[float(cell) for cell in row] for row in rows]
    except ValueError:
        raise LabError(
            f"{given.label.en}: write numbers with spaces between, rows with ; between.",
            f"“{given.label.zh}”：请写数字，用空格隔开；各行之间用分号。",
        ) from None
    return numbers if given.kind == "matrix" else [cell for row in numbers for cell in row]


def typed(given: Input) -> Any:
    """Returns an input's default as one would type it."""
    if given.kind == "matrix":
        return "; ".join(" ".join(f"{cell:g}" for cell in row) for row in given.default)
    return " ".join(f"{cell:g}" for cell in given.default) if given.kind == "numbers" else given.default


def computed(id: str, language: Language, study: Study | None, values: dict[str, Any]) -> Computation:
    """Runs a computation; what it finds without inputs of the visitor's own is kept for the next one."""
    with _one_at_a_time:
        return compute(id, language=language, study=study, **values) if values else _at_first(id, language, study)


@functools.lru_cache(_RESULTS_KEPT)
def _at_first(id: str, language: Language, study: Study | None) -> Computation:
    return compute(id, language=language, study=study)


def section_html(section: Section, found: Computation | None, language: Language) -> str:
    """Returns a section's text with its numbers, the picture if there is one, and the steps of its computation."""
    told = markdown(section.fill(found))
    if found is None:
        return f"<div class='lesson'>{told}</div>"
    steps = "".join(map(_step, found.steps))
    if found.code:
        # 可获得焦点：只用键盘的人也能左右滚动长行
        steps += f"<div class='step'><b>PyTorch</b><pre tabindex='0'><code>{written(found.code)}</code></pre></div>"
    return (
        f"<div class='lesson'>{told}{_picture(found, language)}<section class='steps'><h4>{written(found.title)}</h4>"
        f"{notice(found.note)}{steps}</section></div>"
    )


def _picture(found: Computation, language: Language) -> str:
    drawn = picture(found, language)
    if drawn is None:
        return ""
    image = _image(drawn, found.title, "lesson-picture")
    return saved(f"<div class='picture-frame'>{image}</div>", name=found.title, kind="PNG")


def _image(drawn: str, title: str, style: str) -> str:
    # 作为图片嵌入：图有自己的深浅两套颜色，不受页面样式影响
    data = base64.b64encode(drawn.encode("utf-8")).decode("ascii")
    return f"<img class='{style}' alt='{written(title)}' src='data:image/svg+xml;base64,{data}'>"


def overview(story: Sequence[Lesson], language: Language) -> str:
    """Returns all parts on a page: the idea of each, the picture that shows it, and what the part computes."""
    cards = []
    for lesson in story:
        found = computed(lesson.shown, language, None, {})
        image = _image(picture(found, language) or "", found.title, "overview-picture")
        titles = " · ".join(COMPUTATIONS[id].title(language) for id in lesson.computations)
        head = f"<b>{lesson.number}  {written(lesson.title)}</b><br>{as_html(lesson.idea, written)}"
        cards.append(f"<li><p>{head}</p>{image}<p class='lead'>{written(titles)}</p></li>")
    return f"<ol class='overview'>{''.join(cards)}</ol>"


def opened(state: PageState, model: LabModel, section: Section) -> str:
    """Returns a section as it is first seen: computed with what its fields begin with, or why it cannot be."""
    id = section.computation
    if id is None:
        return section_html(section, None, state.language)
    recipe = COMPUTATIONS[id]
    try:
        study = model.study() if recipe.needs_study else None
        return section_html(section, computed(id, state.language, study, {}), state.language)
    except BertsmithError as error:
        # 一个计算做不到，只在它自己的位置说明：同一课的其余部分照常
        title, told = written(recipe.title(state.language)), notice(state.in_words(error), wrong=True)
        return f"<div class='lesson'><section class='steps'><h4>{title}</h4>{told}</section></div>"


def renewed(values: Sequence[str | None], names: Sequence[tuple[str, str]], starts: Starts, model: str) -> list[Any]:
    """Returns what fields hold when another model is chosen: its own texts to begin with; what was typed stays."""
    return [
        starts[model][id][name] if value in {start[id][name] for start in starts.values()} else gr.skip()
        for value, (id, name) in zip(values, names, strict=True)
    ]


def build(state: PageState, progress: Path | None, tab: gr.Tab) -> None:
    """Lays the tab out; opening it lays the chosen part out."""
    state.lead(
        "The BERT paper in six parts, and its families in a seventh, worked by hand. The computations run on the"
        " model above, on inputs of yours.",
        "六个部分讲完 BERT 论文，第七部分讲它的各个家族，亲手算一遍。计算用的是上面所选的模型，输入都可以改。",
    )
    story = lessons(state.language)
    gr.HTML(
        details(state.say("Overview: all parts on one page", "总览：一页看完各部分"), overview(story, state.language))
    )
    parts = [(f"{lesson.number}  {lesson.title}", lesson.id) for lesson in story]
    part = state.menu(parts, "Part", "部分", "learn-part", value=story[0].id)
    again = state.button("Compute with this model", "用这个模型计算", "learn-again", size="sm")
    starts = {name: starts_of(state.models.named(name)) for name in state.models.names}
    there = gr.State("")

    def open_part(model: str, id: str) -> None:
        (lesson,) = (one for one in story if one.id == id)
        lay_out(state, state.models.named(model), lesson, starts, [tab.select, again.click])

    # 七个部分共四百来个组件：打开哪一部分才建哪一部分，首屏不必等浏览器把它们全建好
    gr.render([state.chosen, there], [there.change], queue=False, show_progress="minimal")(open_part)

    for event in (tab.select, part.input):
        # 经队列：不经队列的回答里，浏览器不看 State 变了没有
        event(lambda id: id, [part], [there], queue=True, show_progress="hidden", api_visibility="private")
    _cards(state, story, part, progress)


def lay_out(state: PageState, model: LabModel, lesson: Lesson, starts: Starts, again: Sequence[Any]) -> None:
    """Lays a part out: its sections, computed, its questions and exercises, and where its code is."""
    with gr.Column(elem_id=f"lesson-{lesson.id}"):
        place = state.place_for_notice()
        gr.HTML(_contents(state, lesson))
        texts = []
        fields: Fields = {}
        for number, section in enumerate(lesson.sections, 1):
            text, inputs = _section(state, model, section, f"{lesson.id}-{number}", starts[model.name])
            texts.append(text)
            fields |= inputs
        gr.HTML(f"<h3 id='questions'>{state.say(_QUESTIONS)}</h3>")
        for question in lesson.questions:
            _question(state, question)
        gr.HTML(f"<h3 id='exercises'>{state.say(_EXERCISES)}</h3>")
        for exercise in lesson.exercises:
            _exercise(state, exercise)
        gr.HTML(_links(state, lesson))

    def compute_again(chosen: LabModel) -> list[str]:
        return [opened(state, chosen, section) for section in lesson.sections]

    def renew(chosen: LabModel, *values: str | None) -> list[Any]:
        return renewed(values, list(fields), starts, chosen.name)

    state.answer(again, compute_again, [], place, texts, slow=True)
    state.answer([state.chosen.change], renew, list(fields.values()), place, list(fields.values()))


def _contents(state: PageState, lesson: Lesson) -> str:
    """Returns the table of contents of a part: a link to each section, and to what follows the sections."""
    entries = [
        (f"section-{lesson.id}-{number}", _heading(section, state.language))
        for number, section in enumerate(lesson.sections, 1)
    ]
    after = {"questions": _QUESTIONS, "exercises": _EXERCISES, "in-the-code": _CODE, "cards": _CARDS}
    entries += [(place, state.say(title)) for place, title in after.items()]
    rows = "".join(f"<li><a href='#{place}'>{as_html(title, written)}</a></li>" for place, title in entries)
    name = state.say("Contents of this part", "本部分目录")
    return f"<nav class='contents' aria-label='{name}'><b>{name}</b><ol>{rows}</ol></nav>"


def _heading(section: Section, language: Language) -> str:
    """Returns what a section is about: the title of its computation, its heading in bold, or its first sentence."""
    if section.computation is not None:
        return COMPUTATIONS[section.computation].title(language)
    text = section.fill()
    found = re.match(r"\*\*(.+?)\.?\*\*", text) or re.match(r"(.+?)(?:[。：]|[.:](?:\s|$))", text, re.DOTALL)
    return found[1] if found else text


def starts_of(model: LabModel) -> dict[str, dict[str, str]]:
    """Returns what fields begin with for a model, by computation and input: sentences that its vocabulary covers."""
    return {id: recipe.sentences(model.tokenizer) for id, recipe in COMPUTATIONS.items() if recipe.needs_study}


def _section(
    state: PageState, model: LabModel, section: Section, name: str, starts: Mapping[str, Mapping[str, str]]
) -> tuple[gr.HTML, Fields]:
    """Lays a section out: its text, and below it what can be changed about its computation."""
    text = gr.HTML(opened(state, model, section), elem_id=f"section-{name}")
    id = section.computation
    if id is None or not COMPUTATIONS[id].inputs:
        return text, {}
    recipe, begin = COMPUTATIONS[id], starts.get(id, {})
    with gr.Accordion(state.say("Change the inputs", "改一改输入"), open=False):
        place = state.place_for_notice()
        fields = {given.name: _field(state, given, begin.get(given.name, typed(given))) for given in recipe.inputs}
        button = state.button("Compute", "计算", f"compute-{name}")

    def run(model: LabModel, *values: Any) -> tuple[str]:
        given = {each.name: parsed(each, value) for each, value in zip(recipe.inputs, values, strict=True)}
        study = model.study() if recipe.needs_study else None
        return (section_html(section, computed(id, state.language, study, given), state.language),)

    state.answer([button.click], run, list(fields.values()), place, [text], slow=True)
    return text, {(id, name): fields[name] for name in begin}


def _field(state: PageState, given: Input, start: Any) -> Any:
    name = state.say(given.label)
    if given.kind == "choice":
        return gr.Dropdown(list(given.choices), value=start, label=name, filterable=False)
    if given.kind == "integer":
        # 不用 precision=0：Gradio 会把 1e400（无穷大）取整，抛出看不懂的错误；整数与否由 `parsed` 判断
        return gr.Number(start, label=name)
    return gr.Textbox(start, label=name)


def _question(state: PageState, question: Question) -> None:
    choices = [(choice, number) for number, choice in enumerate(question.choices)]
    radio = gr.Radio(choices, value=None, label=question.prompt, elem_classes="question")
    told = gr.HTML()

    def show(choice: int | None) -> str:
        return "" if choice is None else _verdict(state, grade(question, int(choice)), "")

    radio.input(show, [radio], [told], **QUIET)


def _exercise(state: PageState, exercise: Exercise) -> None:
    field = gr.Textbox(
        label=exercise.prompt.replace("`", ""),
        placeholder=state.say("a number", "一个数"),
        submit_btn=state.say("Check", "检查"),
        elem_classes="question",
    )
    told = gr.HTML()

    def show(answer: str) -> str:
        try:
            marked = check_answer(exercise, received(answer, Text("answer", "答案")))
        except BertsmithError as error:
            return notice(state.in_words(error), wrong=True)
        return _verdict(state, marked, state.say(".", "。"))

    field.submit(show, [field], [told], **QUIET)


def _verdict(state: PageState, marked: Grade, stop: str) -> str:
    wrong = state.say(f"No: {marked.answer}", f"不对：{marked.answer}") + stop
    verdict = state.say("Right.", "对。") if marked.correct else wrong
    return f"<div role='status'>{markdown(f'**{verdict}** {marked.explanation}')}</div>"


def _links(state: PageState, lesson: Lesson) -> str:
    rows = "".join(
        f"<li>{written(link.about)}: <code>{written(link.name)}</code>, {written(link.file)}</li>"
        for link in lesson.code_links
    )
    return f"<h3 id='in-the-code'>{state.say(_CODE)}</h3><ul class='code-links'>{rows}</ul>"


def _cards(state: PageState, story: Sequence[Lesson], part: gr.Dropdown, progress: Path | None) -> None:
    """Lays the flash cards out: the front, then the back, then how well it went."""
    gr.HTML(f"<h3 id='cards'>{state.say(_CARDS)}</h3>")
    place = state.place_for_notice()
    face = gr.HTML(elem_id="card")
    with gr.Row(elem_classes="buttons"):
        ask = state.button("Next card", "下一张", "card-next")
        turn = state.button("Turn it over", "翻面", "card-turn", visible=False)
        marks = [state.button(*name, f"card-{answer}", visible=False, size="sm") for answer, name in _GRADES]
    current = gr.State("")
    buttons = [ask, turn, *marks]

    def shown(asking: bool, turning: bool, marking: bool) -> list[Any]:
        return [gr.Button(visible=on) for on in (asking, turning, *([marking] * len(marks)))]

    def deck() -> Deck:
        # 每次都重新读：另一个窗口或终端里可能刚答过同一张
        return Deck(progress, state.language)

    def next_card(lesson: str) -> list[Any]:
        due = deck().due(lesson=lesson)
        if not due:
            done = Text("No card of this part is due; come back another day.", "这一部分没有到期的卡片，改天再来。")
            return [notice(state.say(done)), "", *shown(True, False, False)]
        left = state.say(f"{len(due)} due", f"到期 {len(due)} 张")
        front = f"<div class='card'><small>{left}</small>{markdown(due[0].front)}</div>"
        return [front, due[0].id, *shown(False, True, False)]

    def turned(id: str) -> list[Any]:
        card = _card(story, id)
        back = f"<div class='card'>{markdown(card.front)}<hr>{markdown(card.back)}</div>"
        return [back, id, *shown(False, False, True)]

    def mark(answer: Answer, lesson: str, id: str) -> list[Any]:
        deck().answer(_card(story, id), answer)
        return next_card(lesson)

    outputs = [face, current, *buttons]
    state.answer([ask.click], next_card, [part], place, outputs, with_model=False)
    state.answer([turn.click], turned, [current], place, outputs, with_model=False)
    for (answer, _), button in zip(_GRADES, marks, strict=True):
        state.answer([button.click], functools.partial(mark, answer), [part, current], place, outputs, with_model=False)


def _card(story: Sequence[Lesson], id: str) -> Card:
    card = next((card for lesson in story for card in lesson.cards if card.id == id), None)
    if card is None:
        raise InputError(f"there is no card {id[:40]!r}")
    return card


def _step(step: Step) -> str:
    """Returns one step of a computation: its name, its value, what to look at."""
    note = f"<p class='lead'>{written(step.note)}</p>" if step.note else ""
    cells = step.cells()
    if not step.is_table:
        return f"<div class='step'><b>{written(step.label)}</b>: <code>{written(cells[0][0])}</code>{note}</div>"
    columns = step.headings or [""] * max(map(len, cells), default=0)
    # 数靠右对齐，文字和代码靠左：最后一个含文字的列及其左边都靠左
    texts = max((place + 1 for row in cells for place, cell in enumerate(row) if not is_number(cell)), default=0)
    shown = table(columns, cells, name=step.label, texts=texts)
    return f"<div class='step'><b>{written(step.label)}</b>{note}{shown}</div>"
