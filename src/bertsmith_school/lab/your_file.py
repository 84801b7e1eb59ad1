"""*Your file*: what `bertsmith look` says of a file that is dropped here, which is read and taken away again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gradio as gr

from bertsmith.errors import BertsmithError, InputError
from bertsmith.finetune.look import Look, look
from bertsmith_school.lab.markup import Bar, bars, notice, percent, table, written
from bertsmith_school.lab.models import LabModel
from bertsmith_school.lab.page_state import PageState

MOST_LABELS = 20


def look_at(model: LabModel, path: Path) -> Look:
    """Returns what is understood of a file, lengths in a model's pieces; an `InputError` names it as its owner does."""
    try:
        return look(path, model=model.served.folder)
    except BertsmithError as error:
        raise InputError(_without_folder(str(error), path)) from None


def build(state: PageState) -> None:
    """Lays the tab out."""
    state.lead(
        "Drop a file of texts and labels, or of text: you see how it would be read before anything is learned from it.",
        "拖入一个文件，有标签或没有标签的文本都行：学习之前先看看会怎样读它。",
    )
    place = state.place_for_notice()
    dropped = gr.File(label=state.say("Your file", "你的文件"), elem_id="file-drop", height=140)
    results = gr.HTML(elem_id="file-results")

    def show(model: LabModel, name: str) -> tuple[str, None]:
        path = Path(name)
        try:
            return _shown(state, look_at(model, path), path), None
        finally:
            # 别人的数据不留在这台机器上
            path.unlink(missing_ok=True)

    state.answer([dropped.upload], show, [dropped], place, [results, dropped], slow=True)
    state.on_choice(lambda _: [""], [results])


def _shown(state: PageState, found: Look, path: Path) -> str:
    lengths, say = found.lengths, state.say
    unit = {"pieces": say("pieces", "词片")}.get(lengths.unit, lengths.unit)
    read = ", ".join(f"{name} → {part}" for name, part in found.columns.items() if part)
    rest = ", ".join(name for name, part in found.columns.items() if not part)
    rows = {
        say("form", "格式"): found.form,
        say("read for", "用于"): found.task or say("text without labels", "没有标签的文本"),
        say("rows", "行数") if found.task else say("documents", "文档数"): f"{found.rows:,}",
        say("columns", "列"): read,
        say("columns that are not read", "不读的列"): rest,
        say("numbers: least, middle, greatest", "数值：最小、中间、最大"): ", ".join(
            f"{one:g}" for one in found.scores
        ),
        say(f"length in {unit}: half, 95 %, longest", f"{unit}数：一半、95 %、最长"): (
            f"{lengths.half:,}, {lengths.most:,}, {lengths.longest:,}"
        ),
        say("longer than the model reads", "超过模型能读的"): f"{lengths.cut:,}" if lengths.cut else "",
        say("duplicates", "重复的"): f"{found.repeated:,}" if found.repeated else "",
        say("texts with several labels", "有几个标签的文本"): f"{found.contradictions:,}"
        if found.contradictions
        else "",
        say("scripts", "文字"): _shares(found.scripts),
        say("languages", "语言"): _shares(found.languages),
    }
    head = say("what|found", "项目|结果").split("|")
    shown = table(head, [[name, value] for name, value in rows.items() if value], name=found.name, texts=2)
    total, shares = sum(found.labels.values()), list(found.labels.items())
    counts = [Bar(label, count / total, f"{count:,}") for label, count in shares[:MOST_LABELS]]
    caption = say(f"{len(shares):,} labels", f"{len(shares):,} 种标签")
    notes = "".join(notice(_without_folder(note, path)) for note in found.notes)
    labels = bars(counts, caption=caption) if counts else ""
    return f"<h3>{written(found.name)}</h3>{shown}{notes}{labels}"


def _shares(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {percent(share)}" for name, share in found.items())


def _without_folder(said: str, path: Path) -> str:
    """Takes the folder of the copy out of a message."""
    return said.replace(f"{path.parent}/", "")
