"""The pictures of README and site, drawn in both languages from committed lines.

`docs/NAME.en.svg` and `docs/NAME.zh.svg` are what GitHub shows; the site draws them anew each time it is built, so that
it never shows older figures than its tables. `benchmarks/chinese.py` has the words. What is drawn from:

images/learning-curves   `benchmarks/results/learning_curves.jsonl`, the last commit of which both curves are measured
images/quickstart-loss   `docs/studies/quickstart.jsonl`, the `metrics.jsonl` of one run of `bertsmith quickstart`
studies/NAME             `docs/studies/NAME.json`, the `results.json` of a study

    python docs/site/pictures.py      # write all; `make bench-tables` does
"""

from __future__ import annotations

import io
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path[1:1] = [str(ROOT / "src"), str(ROOT / "benchmarks"), str(DOCS / "site")]

from architecture import draw as draw_architecture  # noqa: E402

from bertsmith.model import ModelConfig  # noqa: E402
from bertsmith.reporting.plots import draw_loss_curves  # noqa: E402
from bertsmith_school.study import study_named  # noqa: E402
from bertsmith_school.study.report import columns_of, draw_study  # noqa: E402
from bertsmith_school.study.study import Row as StudyRow  # noqa: E402
from chinese import chinese  # noqa: E402
from measured import RESULTS, Row, read_rows  # noqa: E402

FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "WenQuanYi Micro Hei")
"""In the order in which a browser tries them; those that this machine has measure the words."""

CURVES = {
    "ours: modernbert": ("bertsmith", "#0b6e4f"),
    "expert: modernbert": ("an expert's loop over transformers' ModernBERT", "#c8553d"),
}
"""Name of a line → what the picture calls it, and its colour."""


def learning_curves() -> Figure:
    """Draws the held-out loss of ten minutes on two cores; of several seeds, the mean."""
    figure = Figure(figsize=(7.2, 4.3), layout="constrained")
    panel = figure.subplots()
    ours, theirs = _draw_curves(panel, _learned(threads=2))
    panel.set_title(
        f"Ten minutes on two cores: {ours:.2f} nats, an expert's loop over transformers {theirs:.2f}", fontsize=11
    )
    return _with_legend(figure, panel)


def learning_curves_of_sizes() -> Figure:
    """Draws the same on one core, a panel for each size, the narrowest first."""
    rows = _learned(threads=1)
    sizes = sorted({row["size"] for row in rows}, key=lambda size: ModelConfig.shape_of(size)[1])
    figure = Figure(figsize=(7.2, 7.1), layout="constrained")
    panels = figure.subplots(-(-len(sizes) // 2), 2, squeeze=False, sharex=True, sharey=True).flatten()
    for spare in panels[len(sizes) :]:
        spare.remove()
        # 它上面的一格，刻度原本由它来写
        panels[len(sizes) - 2].tick_params(labelbottom=True)
    for size, panel in zip(sizes, panels, strict=False):
        ours, theirs = _draw_curves(panel, [row for row in rows if row["size"] == size])
        panel.set_title(f"{size}: {ours:.2f}, the expert's loop {theirs:.2f}", fontsize=10)
    return _with_legend(figure, panels[0])


def _learned(*, threads: int) -> list[Row]:
    asked = {"threads": threads, "precision": "bf16", "minutes": 10.0}
    lines = read_rows(RESULTS / "learning_curves.jsonl")
    rows = [row for row in lines if asked.items() <= row.items() and row["name"] in CURVES]
    commits = dict.fromkeys(row["commit"] for row in reversed(rows))
    # 不同提交的代码不求平均；还没测完的提交不画：缺了一方就无从比较
    return next(filter(_has_both, ([row for row in rows if row["commit"] == commit] for commit in commits)))


def _has_both(rows: Sequence[Row]) -> bool:
    """Tells whether each size has both curves."""
    found = {(row.get("size"), row["name"]) for row in rows}
    return len(found) == len(CURVES) * len({size for size, _ in found})


def _draw_curves(panel: Axes, rows: Sequence[Row]) -> list[float]:
    """Draws a curve for each name and the loss of word frequencies; returns the last loss of each curve, in nats."""
    ends = []
    for name, (label, colour) in CURVES.items():
        curves = [row["curve"] for row in rows if row["name"] == name]
        marks = [[statistics.mean(values) for values in zip(*same, strict=True)] for same in zip(*curves, strict=True)]
        minutes, losses = [mark[0] / 60 for mark in marks], [mark[2] for mark in marks]
        panel.plot(minutes, losses, color=colour, linewidth=2, label=label)
        ends.append(losses[-1])
    entropy = next(row["unigram_entropy"] for row in read_rows(RESULTS / "families_learning.jsonl"))
    panel.axhline(entropy, color="#555555", linestyle=":", label=f"word frequencies alone: {entropy:.2f}")
    # 最初几步的损失在词频之上：画出来只会把后面压扁
    panel.set_ylim(top=entropy + 0.2)
    panel.set_xlabel("minutes of training")
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    return ends


def _with_legend(figure: Figure, panel: Axes) -> Figure:
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    figure.supylabel("held-out loss, nats", fontsize=10)
    return figure


def quickstart_loss() -> Figure:
    """Draws the losses of the bundled village as the report of a run shows them."""
    rows = read_rows(DOCS / "studies/quickstart.jsonl")
    return draw_loss_curves(rows, unigram_entropy=rows[0]["unigram_entropy"])


def study(name: str) -> Figure:
    """Draws every run of a study as its report shows them."""
    asked = study_named(name)
    rows = [StudyRow(**row) for row in json.loads((DOCS / f"studies/{name}.json").read_text())]
    groups = dict.fromkeys(row.group for row in rows)
    names = {group: list(dict.fromkeys(row.arm for row in rows if row.group == group)) for group in groups}
    return draw_study(asked, rows, columns_of(rows, asked.columns), names)


PICTURES: dict[str, Callable[[], Figure]] = {
    "images/architecture": draw_architecture,
    "images/learning-curves": learning_curves,
    "images/learning-curves-sizes": learning_curves_of_sizes,
    "images/quickstart-loss": quickstart_loss,
    **{f"studies/{path.stem}": partial(study, path.stem) for path in sorted((DOCS / "studies").glob("*.json"))},
}
"""Name under `docs` → what draws the picture, in English."""

LANGUAGES: dict[str, Callable[[str], str]] = {"en": str, "zh": chinese}


def drawn(name: str, language: str) -> str:
    """Returns a picture as SVG; its words stay text, which the fonts of the reader show."""
    known = {entry.name for entry in fontManager.ttflist}
    fonts = [font for font in FONTS if font in known]
    settings: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "bertsmith", "font.family": fonts}
    file = io.StringIO()
    with rc_context(settings):
        figure = PICTURES[name]()
        _translate(figure, LANGUAGES[language])
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    # 字宽用本机有的字体量，文件里写全部字体：哪台机器画的都一样
    here, everywhere = (", ".join(map(repr, names)) for names in (fonts, FONTS))
    return file.getvalue().replace(f"font-family: {here}", f"font-family: {everywhere}, sans-serif")


def _translate(figure: Figure, say: Callable[[str], str]) -> None:
    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        labels = axis.get_majorticklabels()
        # 刻度的文字由刻度自己写：改文字对象没有用，要换掉刻度的标签
        if labels and isinstance(axis.get_major_locator(), FixedLocator):
            axis.set_ticklabels([say(label.get_text()) for label in labels])
    for text in figure.findobj(Text):
        text.set_text(say(text.get_text()))


def redrawn(path: Path) -> str | None:
    """Returns what the file of a picture holds today; None for a file that is not drawn here."""
    name, _, language = path.relative_to(DOCS).as_posix().removesuffix(".svg").rpartition(".")
    return drawn(name, language) if name in PICTURES and language in LANGUAGES else None


if __name__ == "__main__":
    for picture in PICTURES:
        for written_in in LANGUAGES:
            (DOCS / f"{picture}.{written_in}.svg").write_text(drawn(picture, written_in), encoding="utf-8")
        print(picture)
