"""*Topics*: what a folder, an index or a dropped file is about, as `bertsmith topics` finds it."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError, InputError
from bertsmith.journeys.topics import Topics, find_topics, map_passages
from bertsmith.retrieval import SearchIndex, load_index
from bertsmith.retrieval.build import index
from bertsmith.retrieval.stored import CLAIM
from bertsmith_school.lab.figures import draw_over_time, draw_topics
from bertsmith_school.lab.markup import Bar, bars, details, percent, table, written
from bertsmith_school.lab.models import LabError, LabModel, LabModels, received
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.learn.lesson import Text

_FOLDER = Text("Folder or index on this machine", "本机的文件夹或索引")


class Mapped(NamedTuple):
    """Topics, and those D passages that are drawn: which of them [D], and where [D, 2]."""

    topics: Topics
    rows: NDArray[np.int64]
    points: NDArray[np.float32]


def topics_of(models: LabModels, model: LabModel, given: str | None) -> Mapped:
    """Finds the topics of an index of the lab, or of a folder or index on this machine."""
    with _opened(models, model, given) as opened:
        return _mapped(opened)


def topics_of_file(model: LabModel, path: Path) -> Mapped:
    """Finds the topics of a file that was dropped, and takes it away; an `InputError` names it as its owner does."""
    with tempfile.TemporaryDirectory(prefix="bertsmith-topics-") as passing:
        folder = Path(passing) / "text"
        folder.mkdir()
        # 移走而不是复制：别人的数据不留在这台机器上
        shutil.move(path, folder / path.name)
        try:
            return _mapped(load_index(index(folder, model.served.folder, Path(passing) / "index").folder))
        except BertsmithError as error:
            said = str(error).replace(f"{folder}/", "").replace(str(folder), path.name)
            raise InputError(said) from None


def _mapped(opened: SearchIndex) -> Mapped:
    return Mapped(find_topics(opened), *map_passages(opened))


@contextmanager
def _opened(models: LabModels, model: LabModel, given: str | None) -> Iterator[SearchIndex]:
    """Lends an index of the lab; or one of a folder, which is made and taken away again where it is none."""
    if given in models.indexes or not models.may_open:
        with models.index(given or "") as lent:
            yield lent
        return
    folder = Path(os.path.abspath(os.path.expanduser(received(given, _FOLDER).strip())))
    if not folder.is_dir():
        raise LabError(f"{folder}: there is no such folder.", f"{folder}：没有这个文件夹。")
    with tempfile.TemporaryDirectory(prefix="bertsmith-topics-") as passing:
        made = folder if (folder / CLAIM).is_file() else Path(passing) / "index"
        yield load_index(made if made == folder else index(folder, model.served.folder, made).folder)


def build(state: PageState) -> None:
    """Lays the tab out."""
    state.lead(
        "What a folder or a file is about: passages that the model finds alike, the words of each group, and its"
        " share of each period, where files have dates. Best with a model that was trained for vectors.",
        "一个文件夹或文件讲些什么：模型认为相像的段落归为一组，列出每组的用词；文件带日期的，还画出各时期所占的比例。"
        "最好用专为向量训练过的模型。",
    )
    names, may_open = list(state.models.indexes), state.models.may_open
    place = state.place_for_notice()
    given = gr.Dropdown(
        names,
        value=names[0] if names else None,
        label=state.say(_FOLDER if may_open else Text("Index", "索引")),
        allow_custom_value=may_open,
        filterable=may_open,
        visible=may_open or bool(names),
        elem_id="topics-folder",
    )
    button = state.button("Find topics", "找主题", "topics-button", variant="primary", visible=may_open or bool(names))
    dropped = gr.File(label=state.say("Or a file of yours", "或者你的一个文件"), elem_id="topics-drop", height=140)
    listed = gr.HTML(elem_id="topics-words")
    drawn = gr.Plot(show_label=False, elem_id="topics-map", container=False)
    dated = gr.Plot(show_label=False, elem_id="topics-dates", elem_classes="scrolls", container=False)
    one_at_a_time = threading.Lock()

    def show(model: LabModel, name: str | None) -> tuple[Any, ...]:
        # 每次都要算完所有向量：几位访客一起来，排队比一起挤更快
        with one_at_a_time:
            return _shown(state, topics_of(state.models, model, name))

    def show_file(model: LabModel, name: str) -> tuple[Any, ...]:
        with one_at_a_time:
            return *_shown(state, topics_of_file(model, Path(name))), None

    shown = [listed, drawn, dated]
    state.answer([button.click], show, [given], place, shown, slow=True)
    state.answer([dropped.upload], show_file, [dropped], place, [*shown, dropped], slow=True)
    state.on_choice(lambda _: ["", None, None], shown)


def _shown(state: PageState, found: Mapped) -> tuple[Any, ...]:
    """Returns the words as HTML, the map, and the counts over time, None where no file has a date."""
    told, say = found.topics, state.say
    first = told.topics[0]
    verdict = say(
        told.verdict,
        f"{told.documents:,} 个文件、{len(told.passages):,} 段，分为 {len(told.topics)} 个主题；"
        f"最大的是“{first.name}”，占 {first.share:.0%}。",
    )
    rows = [
        Bar(f"{topic.number}  {', '.join(topic.words)}", topic.share, f"{topic.passages:,} · {percent(topic.share)}")
        for topic in told.topics
    ]
    nearest = [
        [topic.name, " ".join(hit.text.split())[:300], hit.place] for topic in told.topics for hit in topic.examples
    ]
    examples = say("Passages nearest to the middle of each topic", "最接近各主题中心的段落")
    head = say("topic|passage|place", "主题|段落|位置").split("|")
    caption = say("Words of each topic, and its passages", "各主题的用词与段数")
    listed = f"<p>{written(verdict)}</p>{bars(rows, caption=caption)}"
    listed += details(examples, table(head, nearest, name=examples, texts=3))
    names = [topic.name for topic in told.topics]
    groups = np.array([told.passages[row][1] for row in found.rows])
    drawn = draw_topics(found.points, groups, names, [told.passages[row][0] for row in found.rows])
    if not told.dated:
        return listed, drawn, None
    counts = np.array([list(topic.over_time.values()) for topic in told.topics])
    title = say("Over time: share of each period’s passages", "各时期：占该时期段落的比例")
    # 手机上一格窄到看不清：给图一个最小宽度，左右滑动来看
    listed += f"<style>#topics-dates .js-plotly-plot{{min-width:{270 + 20 * len(first.over_time)}px}}</style>"
    return listed, drawn, draw_over_time(names, list(first.over_time), counts, title=title)
