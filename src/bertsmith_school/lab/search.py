"""*Search*: a question to an index, and its hits with what they were found by marked in their passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, get_args

import gradio as gr

from bertsmith.data.reading.sentences import split_sentences
from bertsmith.inference import Embed
from bertsmith.retrieval.lexical import places_of, words_of
from bertsmith.retrieval.search import Hit, Mode, SearchIndex
from bertsmith_school.lab.markup import Mark, marked, written
from bertsmith_school.lab.models import LabError, received
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.learn.lesson import Text

MOST_HITS = 10
COMMON = 0.2
"""A word that stands in a larger share of the passages is not marked: `the` tells nothing."""

_QUERY = Text("Question or words", "问题或词语")
_MODES = {
    "hybrid": Text("both", "两者结合"),
    "ranks": Text("both, by rank", "两者，按名次"),
    "dense": Text("vectors", "向量"),
    "lexical": Text("words (BM25)", "词（BM25）"),
}
_NONE = Text(
    "No index is open. Make one with `bertsmith index FOLDER --model MODEL --out INDEX`, and open the lab with"
    " `--index INDEX`.",
    "还没有打开索引。先用 `bertsmith index FOLDER --model MODEL --out INDEX` 建一个，再用 `--index INDEX` 打开实验室。",
)


class Found(NamedTuple):
    """A hit, and what is marked in its passage: words of the query (0), the sentence nearest to it (1)."""

    hit: Hit
    marks: list[Mark]


def find(state: PageState, name: str, query: str, mode: Mode) -> list[Found]:
    """Searches an index."""
    asked = received(query, _QUERY)
    with state.models.index(name) as index:
        hits = index.search(asked, k=MOST_HITS, mode=mode)
        words = set() if mode == "dense" else _telling_words(index, asked)
        embed = None if mode == "lexical" else index.embed
        return [
            Found(hit, _marks(hit.text, places_of(hit.text, words, index.lexical.fold), embed, asked)) for hit in hits
        ]


def _telling_words(index: SearchIndex, query: str) -> set[str]:
    """Returns the words of a query that stand in few passages."""
    asked = set(words_of(query, index.lexical.fold))
    return {word for word in asked if (index.lexical.scores(word) > 0).mean() <= COMMON}


def _marks(text: str, places: list[tuple[int, int]], embed: Embed | None, query: str) -> list[Mark]:
    marks = [Mark(start, end, "") for start, end in places]
    start, end = (0, 0) if embed is None else _nearest_sentence(text, embed, query)
    # 句子被其中的词切开：两种颜色不重叠
    for first, last in (*((a, b) for a, b in places if start <= a < end), (end, end)):
        if start < first:
            marks.append(Mark(start, min(first, end), "", 1))
        start = max(start, last)
    return marks


def _nearest_sentence(text: str, embed: Embed, query: str) -> tuple[int, int]:
    """Returns where the sentence of a passage stands whose vector is nearest to the query's."""
    spans, position = [], 0
    for sentence in (one for line in text.splitlines() for one in split_sentences(line)):
        start = text.find(sentence, position)
        if start >= 0:
            position = start + len(sentence)
            spans.append((start, position))
    if len(spans) < 2:
        return spans[0] if spans else (0, 0)
    vectors = embed([query, *(text[start:end] for start, end in spans)])
    return spans[int((vectors[1:] @ vectors[0]).argmax())]


def build(state: PageState) -> None:
    """Lays the tab out."""
    state.lead(
        "A folder of text, searched by the model that made its index. Rare words of the question are marked in one"
        " colour, the sentence that is nearest to it by vectors in another.",
        "在一个文件夹的文本里搜索，用的是建索引的那个模型。问题里的少见词用一种颜色标出，向量上最接近问题的句子用另一种。",
    )
    names = list(state.models.indexes)
    place = state.place_for_notice(lambda _: None if names else LabError(*_NONE))
    query = state.field(_QUERY, "search-query", max_lines=3)
    with gr.Row():
        first, several = names[0] if names else None, len(names) > 1
        name = state.menu(names, "Index", "索引", "search-index", value=first, visible=several)
        mode = gr.Radio(
            [(state.say(_MODES[mode]), mode) for mode in get_args(Mode)],
            value="hybrid",
            label=state.say("Find by", "按什么找"),
            elem_id="search-mode",
        )
    button = state.button("Search", "搜索", "search-button", variant="primary")
    results = gr.HTML(elem_id="search-results")

    def show(index: str | None, typed: str, way: Mode) -> tuple[str]:
        return (_listed(find(state, index or "", typed, way), state),)

    state.answer([button.click, query.submit], show, [name, query, mode], place, [results], slow=True, with_model=False)


def _listed(found: Sequence[Found], state: PageState) -> str:
    if not found:
        return f"<p>{written(state.say('Nothing was found.', '什么也没找到。'))}</p>"
    items = "".join(
        f"<li><h3>{written(one.hit.place)}<small>{written(one.hit.heading)}</small>"
        f"<span class='value'>{one.hit.score:.4f}</span></h3>{marked(one.hit.text, one.marks)}</li>"
        for one in found
    )
    return f"<ol class='hits'>{items}</ol>"
