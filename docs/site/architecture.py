"""The picture of the architecture: the rooms of the package, and the way of a text through them.

Run `python docs/site/pictures.py` after a room was added; `tests/test_architecture.py` holds the rooms drawn here
against the folders of the package.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

BANDS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "ground",
        (
            (
                "errors · files · hub · settings · seeding · batch · parallel",
                "used everywhere",
            ),
        ),
    ),
    (
        "parts",
        (
            ("tokenizer", "text ↔ ids"),
            ("kernels", "fast on this processor"),
            ("reporting", "pages, plots"),
            ("tinyworld", "the bundled village"),
        ),
    ),
    (
        "core",
        (
            ("data", "reading → corpus → stream"),
            ("model", "families, heads, folder, peft"),
        ),
    ),
    ("learning", (("objectives", "what a model learns to do"), ("train", "recipe, loop, state"))),
    ("using", (("inference", "engine, pipelines"), ("finetune", "tasks, datasets, metrics, report"))),
    ("beside", (("retrieval", "index, search"), ("interop", "TensorFlow, ONNX, Hub"))),
    (
        "doors",
        (
            ("journeys", "the main job"),
            ("sklearn", "estimators"),
            ("serve", "HTTP"),
            ("cli", "commands"),
        ),
    ),
)
"""From the ground up: a room may import only from its left and from the bands above it in the picture."""

_COLOURS = ("#eef1f5", "#e4eefb", "#d3e4f8", "#dcefe2", "#fbeed9", "#f6e4ef", "#ece7f8")
_FLOW = ("text files", "sentences", "token shards", "batches", "loss", "weights", "predictions")
_WIDTH, _STEP, _HEIGHT = 12.0, 1.05, 0.78


def draw() -> Figure:
    """Returns the picture."""
    figure = Figure(figsize=(_WIDTH, _STEP * len(BANDS) + 1.5))
    axes = figure.add_axes((0, 0, 1, 1))
    top = _STEP * len(BANDS) + 1.5
    axes.set_xlim(0, _WIDTH)
    axes.set_ylim(0, top)
    axes.axis("off")
    axes.text(0.3, top - 0.35, "The rooms of bertsmith", fontsize=15, weight="bold", color="#1d2733")
    axes.text(0.3, top - 0.65, "A room imports only from rooms above it or to its left.", fontsize=10, color="#51606f")
    for number, (_, rooms) in enumerate(BANDS):
        bottom = top - 0.85 - _STEP * (number + 1) + (_STEP - _HEIGHT)
        width = (_WIDTH - 0.6 - 0.2 * (len(rooms) - 1)) / len(rooms)
        for place, (name, about) in enumerate(rooms):
            _box(axes, 0.3 + place * (width + 0.2), bottom, width, name, about, _COLOURS[number])
    axes.text(0.3, 0.28, "The way of a text:  " + "  →  ".join(_FLOW), fontsize=10.5, color="#1f4e8c")
    return figure


def _box(axes: Axes, left: float, bottom: float, width: float, name: str, about: str, colour: str) -> None:
    shape = FancyBboxPatch(
        (left + 0.05, bottom + 0.05),
        width - 0.1,
        _HEIGHT - 0.1,
        boxstyle="round,pad=0.05,rounding_size=0.09",
        facecolor=colour,
        edgecolor="#8fa3b8",
        linewidth=1,
    )
    axes.add_patch(shape)
    middle = left + width / 2
    axes.text(middle, bottom + 0.5, name, ha="center", va="center", fontsize=11, weight="bold", color="#1d2733")
    axes.text(middle, bottom + 0.22, about, ha="center", va="center", fontsize=9, color="#51606f")
