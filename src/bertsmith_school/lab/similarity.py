"""*Similarity*: lines of text as points, and how alike every two of them are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from bertsmith_school.lab.figures import draw_matrix, draw_scatter
from bertsmith_school.lab.markup import written
from bertsmith_school.lab.models import LabError, LabModel, received
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.learn.lesson import Text

MOST_LINES = 200
"""Lines of a map; a matrix of more cannot be read."""

_NAME = Text("Lines", "每行一段文本")
STARTS = (
    "the man reads a book .\nthe woman reads a newspaper .\nthe farmer feeds the cow .\nthe baker sells the bread .\n"
    "he buys some bread .",
    "How do I reset my password?\nI forgot my login details.\nWhere is my parcel?\nThe delivery is late.\nDo you ship"
    " to Norway?",
    "今天天气很好。\n外面阳光明媚。\n我想买一本书。\n书店在哪里？",
)


@dataclass(frozen=True)
class SimilarityMap:
    """N lines: cosines [N, N] in [-1, 1], and points [N, 2] with the share of the variance that each column shows.

    `untrained` where the model was never trained for vectors of texts.
    """

    lines: list[str]
    matrix: NDArray[np.float32]
    points: NDArray[np.float64]
    shares: tuple[float, float]
    untrained: bool


def similarity_map(model: LabModel, text: str) -> SimilarityMap:
    """Compares lines."""
    lines = [line.strip() for line in received(text, _NAME).splitlines() if line.strip()]
    if not 2 <= len(lines) <= MOST_LINES:
        raise LabError(
            f"Write 2 to {MOST_LINES} lines, a text on each; there are {len(lines)}.",
            f"请写 2 到 {MOST_LINES} 行，每行一段文本；现在有 {len(lines)} 行。",
        )
    vectors = model.embed(lines)
    components = PCA(2)
    # 各行都一样时没有方差可分：份额记作 0
    with np.errstate(invalid="ignore"):
        points = components.fit_transform(vectors.astype(np.float64))
    first, second = np.nan_to_num(components.explained_variance_ratio_).tolist()
    untrained = "note" in model.served.describe()
    # 舍入会让同一文本的余弦略大于 1
    return SimilarityMap(lines, np.clip(vectors @ vectors.T, -1.0, 1.0), points, (first, second), untrained)


def build(state: PageState) -> None:
    """Lays the tab out."""
    state.lead(
        "A text on each line. The closer two points, the more alike the model finds their texts; the matrix has the"
        " cosine of every two. A fine-tuned model compares texts as its task does.",
        "每行一段文本。两个点越近，模型认为两段文本越相像；矩阵里是每两段的余弦相似度。微调过的模型按微调任务的标准比较文本。",
    )
    place = state.place_for_notice()
    text = state.field(_NAME, "similarity-text", STARTS, lines=6, max_lines=14)
    button = state.button("Compare", "比较", "similarity-button", variant="primary")
    listed = gr.HTML(elem_id="similarity-lines")
    scatter = gr.Plot(show_label=False, elem_id="similarity-scatter", container=False)
    matrix = gr.Plot(show_label=False, elem_id="similarity-matrix", elem_classes="scrolls", container=False)

    def show(model: LabModel, typed: str) -> tuple[Any, ...]:
        found = similarity_map(model, typed)
        axes = tuple(
            state.say(f"component {n} ({share:.0%} of the variance)", f"主成分 {n}（占方差 {share:.0%}）")
            for n, share in enumerate(found.shares, 1)
        )
        items = "".join(f"<li>{written(line)}</li>" for line in found.lines)
        width = f"<style>#similarity-matrix .js-plotly-plot{{min-width:{110 + 24 * len(found.lines)}px}}</style>"
        untrained = state.say(
            "This model was never trained for vectors of texts: unrelated texts look alike to it, too.",
            "这个模型没有为句向量训练过：在它看来，不相干的文本也相像。",
        )
        return (
            f"{width}{f'<p>{untrained}</p>' if found.untrained else ''}<ol class='lines'>{items}</ol>",
            draw_scatter(found.lines, found.points, (axes[0], axes[1])),
            draw_matrix(found.lines, found.matrix),
        )

    state.answer([button.click, text.submit], show, [text], place, [listed, scatter, matrix])
    state.on_choice(lambda _: ["", None, None], [listed, scatter, matrix])
