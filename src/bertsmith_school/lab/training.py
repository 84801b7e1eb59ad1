"""*Training*: the curves of runs while they go, side by side.

Only `metrics.jsonl` is read, by the reports' reader and where it has grown; a run that is broken says so in its line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr

from bertsmith.train.monitor import read_metrics
from bertsmith_school.lab.figures import draw_curves
from bertsmith_school.lab.markup import notice, table
from bertsmith_school.lab.models import LabError
from bertsmith_school.lab.page_state import QUIET, PageState
from bertsmith_school.learn.lesson import Text

SECONDS = 2.0
"""Between two looks at the files, while the tab is open."""

MOST_RUNS, MOST_POINTS = 200, 1500
AXES = ("step", "tokens", "epoch")
_PREFERRED = (("heldout", "mlm_loss"), ("heldout", "ltr_loss"), ("train", "mlm_loss"), ("dev", ""), ("train", "loss"))
_AXES = {"step": Text("step", "步"), "tokens": Text("tokens seen", "读过的词元"), "epoch": Text("epoch", "轮")}
_KINDS = {"train": Text("training", "训练"), "heldout": Text("held out", "留出集"), "dev": Text("dev", "开发集")}

Rows = Sequence[Mapping[str, Any]]
Figure = tuple[str, str]
"""Kind of row, and the name of a figure in it."""


@dataclass(frozen=True)
class Run:
    """What a run folder says of itself: its rows, and what is wrong with it."""

    rows: Rows
    trouble: Text | None = None


@dataclass
class RunFolders:
    """The run folders that are watched."""

    roots: tuple[Path, ...]
    _read: dict[Path, tuple[tuple[int, int], Run]] = field(default_factory=dict)

    def find(self) -> dict[str, Path]:
        """Returns the runs by name, those of now: a run may begin while one looks."""
        found: dict[Path, Path] = {}
        for root in self.roots:
            if (root / "metrics.jsonl").exists() or not root.is_dir():
                found.setdefault(root.resolve(), root)
                continue
            for log in sorted(log for depth in (1, 2, 3) for log in root.glob("*/" * depth + "metrics.jsonl")):
                found.setdefault(log.parent.resolve(), log.parent)
        places = list(found)[:MOST_RUNS]
        # 从共同的上级文件夹写起：名字短，又不会有两个一样的
        above = os.path.commonpath([place.parent for place in places] or [Path()])
        return {place.relative_to(above).as_posix(): found[place] for place in places}

    def read(self, folder: Path) -> Run:
        """Reads a run; never fails, see `Run.trouble`."""
        log = folder / "metrics.jsonl"
        try:
            status = log.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            # 页面每隔几秒来看一次：日志没有变，就不再解析
            if folder not in self._read or self._read[folder][0] != stamp:
                self._read[folder] = (stamp, _checked(read_metrics(log)))
            return self._read[folder][1]
        except FileNotFoundError:
            none = "no metrics.jsonl: not a run folder, or not begun", "没有 metrics.jsonl：不是运行文件夹，或尚未开始"
            return Run((), Text(*none))
        except (OSError, ValueError) as error:
            kind = type(error).__name__
            return Run((), Text(f"metrics.jsonl cannot be read ({kind})", f"metrics.jsonl 读不出来（{kind}）"))


def figures_of(runs: Sequence[Run]) -> list[Figure]:
    """Returns all figures that some run has, the most telling one first."""
    found = dict.fromkeys(
        (str(row["kind"]), name)
        for run in runs
        for row in run.rows
        for name, value in row.items()
        if name not in ("kind", *AXES) and _is_number(value)
    )

    def rank(figure: Figure) -> int:
        places = (n for n, (kind, name) in enumerate(_PREFERRED) if figure[0] == kind and name in ("", figure[1]))
        return next(places, len(_PREFERRED))

    return sorted(found, key=rank)


def curve(run: Run, figure: Figure, over: str) -> tuple[list[float], list[float]]:
    """Returns where a figure was measured, and what it was, in at most about `MOST_POINTS` points."""
    kind, name = figure
    rows = (row for row in run.rows if row["kind"] == kind and all(_is_number(row.get(key)) for key in (name, over)))
    points = [(float(row[over]), float(row[name])) for row in rows]
    stride = max(1, len(points) // MOST_POINTS)
    # 抽稀时从末尾往前取：最新的一点总在图上
    kept = points[::-1][::stride][::-1]
    return [x for x, _ in kept], [y for _, y in kept]


def build(state: PageState, runs: RunFolders, tab: gr.Tab) -> gr.Timer:
    """Lays the tab out, and returns what makes it look at the files, at rest; see `look_while_open`."""
    state.lead(
        "Runs of <code>bertsmith pretrain</code> and <code>bertsmith finetune</code>, as they go; choose several to"
        " compare them.",
        "<code>bertsmith pretrain</code> 和 <code>bertsmith finetune</code> 的运行，边训练边看；可以选几个来比较。",
    )
    place = state.place_for_notice()
    names = list(runs.find())
    chosen = gr.CheckboxGroup(names, value=names[:6], label=state.say("Runs", "运行"), elem_id="training-runs")
    with gr.Row(elem_classes="stacks"):
        figures = _figure_choices(state, figures_of([runs.read(folder) for folder in runs.find().values()]))
        first = figures[0][1] if figures else None
        figure = state.menu(figures, "Figure", "指标", "training-figure", value=first)
        axes = [(state.say(text), name) for name, text in _AXES.items()]
        over = state.menu(axes, "Over", "横轴", "training-over", value="step")
    states = gr.HTML(elem_id="training-states")
    plot = gr.Plot(show_label=False, elem_id="training-plot", container=False)
    shown = gr.State("")
    timer = gr.Timer(SECONDS, active=False)

    def show(wanted: list[str], name: str | None, axis: str, before: str) -> tuple[Any, ...]:
        there = runs.find()
        if not there:
            raise LabError(
                "There is no run to show. Start the lab with --runs FOLDER, a run folder or one that holds some.",
                "没有可看的运行。请用 --runs 文件夹 启动：可以是一个运行文件夹，也可以是装着它们的文件夹。",
            )
        read = {run: runs.read(there[run]) for run in wanted or [] if run in there}
        options = _figure_choices(state, figures_of(list(read.values())))
        values = [value for _, value in options]
        name = name if name in values else (values[0] if values else None)
        stamp = repr((list(there), [(run, len(found.rows)) for run, found in read.items()], name, axis, values))
        # 什么都没变就不重画：用户正在看的悬停和缩放不会被打断
        if stamp == before:
            return (gr.skip(),) * 5
        drawn = None
        if name is not None:
            kind, _, own = name.partition("/")
            curves = {run: curve(found, (kind, own), axis) for run, found in read.items()}
            curves = {run: points for run, points in curves.items() if points[0]}
            if curves:
                drawn = draw_curves(curves, over=state.say(_AXES[axis]), title=_figure_name(state, (kind, own)))
        missing = Text(f"No chosen run has this figure over {axis}.", "所选的运行都没有这个横轴上的这个指标。")
        said = _states(state, read) + ("" if drawn is not None or name is None else notice(state.say(missing)))
        # 运行文件夹可能已被删除：选项和已选的都要跟着变，否则下一次刷新会因“不在选项里”而失败
        boxes = gr.CheckboxGroup(choices=list(there), value=list(read))
        return said, drawn, gr.Dropdown(options, value=name), boxes, stamp

    inputs = [chosen, figure, over, shown]
    outputs = [states, plot, figure, chosen, shown]
    triggers = [tab.select, timer.tick, chosen.input, figure.input, over.input]
    state.answer(triggers, show, inputs, place, outputs, with_model=False)
    return timer


def look_while_open(timer: gr.Timer, tab: gr.Tab, others: Sequence[gr.Tab]) -> None:
    """Runs the timer while its tab is open, and only then."""
    for one in (tab, *others):
        active = one is tab
        one.select(lambda active=active: gr.Timer(active=active), None, [timer], **QUIET)


def _checked(rows: Sequence[Any]) -> Run:
    good = [row for row in rows if isinstance(row, dict) and isinstance(row.get("kind"), str)]
    if len(good) < len(rows):
        bad = len(rows) - len(good)
        return Run(good, Text(f"{bad} lines of metrics.jsonl are not figures", f"metrics.jsonl 有 {bad} 行不是指标"))
    if not good:
        return Run((), Text("no figures yet", "还没有指标"))
    return Run(good)


def _is_number(value: Any) -> bool:
    # 整数可以大到装不进浮点数：那不是量得出的值
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _figure_name(state: PageState, figure: Figure) -> str:
    kind, name = figure
    return f"{name.replace('_', ' ')}, {state.say(_KINDS.get(kind, Text(kind, kind)))}"


def _figure_choices(state: PageState, figures: Sequence[Figure]) -> list[tuple[str, str]]:
    return [(_figure_name(state, figure), "/".join(figure)) for figure in figures]


def _states(state: PageState, runs: Mapping[str, Run]) -> str:
    """Returns a line for every run: how far it is, or what is wrong."""
    rows = []
    for name, run in runs.items():
        last = run.rows[-1] if run.rows else {}
        reached = ", ".join(f"{state.say(_AXES[axis])} {last[axis]:,}" for axis in AXES if _is_number(last.get(axis)))
        rows.append([name, reached or "–", "" if run.trouble is None else state.say(run.trouble)])
    head = state.say("run|reached|note", "运行|进度|备注").split("|")
    return table(head, rows, name=state.say("Runs", "运行"), texts=3) if rows else ""
