"""`report.html` of a fine-tuning run or of a search, at any time: from the files of its folder and nothing else.

Notable:
- scores stand with their bootstrap intervals, BERT beside the baselines, all runs of a search in one table
- mistakes are shown of the dev file only: whoever reads those of the test file and changes the recipe has no test
  file any more
- texts are the user's: everything is escaped
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import write_text, written_by_another
from bertsmith.finetune.baselines.scores_file import BASELINES_FILE, BaselineScores, read_baselines
from bertsmith.finetune.metrics.bootstrap import Interval
from bertsmith.finetune.metrics.classification import in_digits
from bertsmith.finetune.report.plots import draw_confusion, draw_course
from bertsmith.finetune.run import FORMAT, FineTuningResult
from bertsmith.finetune.tasks.registry import task_named
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.finetune.trials import RUNS, SearchResult, Spread
from bertsmith.reporting.page import FigureRow, Part, Picture, Table, figures_table, render_report
from bertsmith.train.monitor import read_metrics

REPORT = "report.html"
_LONGEST_TEXT = 600
"""Longer texts of mistakes are cut in the table."""


@dataclass(frozen=True)
class _Run:
    """What a report is made from.

    Attributes:
        folder: the run's.
        request: `finetune.json`.
        result: `result.json`.
        rows: `metrics.jsonl`.
    """

    folder: Path
    request: dict[str, Any]
    result: FineTuningResult
    rows: list[dict[str, Any]]

    @classmethod
    def load(cls, folder: Path) -> _Run:
        if not (folder / "result.json").exists() or not (folder / "finetune.json").exists():
            raise InputError(f"{folder}: holds no finished fine-tuning run; run the same `finetune` command to its end")
        try:
            request = json.loads((folder / "finetune.json").read_text(encoding="utf-8"))
            sizes = [request[name]["examples"] for name in ("train", "dev")]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{folder / 'finetune.json'}: damaged ({error}); choose another --out") from None
        assert sizes
        if request.get("format") != FORMAT:
            raise RunFolderError(f"{folder}: {written_by_another(request)}")
        return cls(
            folder,
            request,
            FineTuningResult.load(folder / "result.json"),
            read_metrics(folder / "metrics.jsonl"),
        )

    @property
    def metric(self) -> str:
        """The figure that chose the epoch."""
        return next(iter(self.result.dev.metrics))

    @property
    def parts(self) -> dict[str, tuple[Evaluation, int]]:
        """File → its evaluation and its number of examples; the test file only where there is one."""
        parts = {"dev": (self.result.dev, int(self.request["dev"]["examples"]))}
        if self.result.test is not None:
            parts["test"] = (self.result.test, int(self.request["test"]["examples"]))
        return parts


def write_report(run: str | Path) -> Path:
    """Writes the report of a finished run, or of a finished search.

    Args:
        run: the folder of `fine_tune` or `search`, with `baselines.json` where baselines were trained.

    Returns:
        `report.html` in that folder.

    Raises:
        InputError: the folder holds no finished run.
        RunFolderError: one of its files is damaged, or the report cannot be written.
    """
    folder = Path(run)
    searched = None
    best = folder
    if (folder / "search.json").exists():
        if not (folder / "result.json").exists():
            raise InputError(f"{folder}: the search is not finished; run the same `finetune` command to its end")
        searched = SearchResult.load(folder / "result.json")
        best = folder / RUNS / searched.best
    found = _Run.load(best)
    baselines = read_baselines(folder)
    task = found.request["task"]["task"]
    examples = found.request["train"]["examples"]
    lead = f"{examples:,} training examples, the best of {_counted(_epochs(found), 'epoch')} kept."
    parts: list[Part] = [figures_table(_figures(found, searched))]
    if baselines is not None:
        parts.append(_baselines_table(found, baselines))
    if searched is not None:
        parts += [*_spread_table(searched), _runs_table(searched)]
    parts += [_course(found), *_confusions(found), *_classes_table(found), _mistakes_table(found), _recipe_table(found)]
    target = folder / REPORT
    write_text(target, render_report(f"Fine-tuning: {task}, {folder.resolve().name}", lead, parts))
    return target


def in_words(value: float, interval: Interval | None = None) -> str:
    """Returns a figure as it is printed, with its interval where it has one: `0.912 (0.893 to 0.931)`."""
    bounds = "" if interval is None else f" ({in_digits(interval.low)} to {in_digits(interval.high)})"
    return in_digits(value) + bounds


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _epochs(run: _Run) -> int:
    return sum(row["kind"] == "dev" for row in run.rows)


def _figures(run: _Run, searched: SearchResult | None) -> list[FigureRow]:
    """Returns all figures on dev and test, and what they cost."""
    rows = []
    for name, (evaluation, examples) in run.parts.items():
        for figure, value in evaluation.metrics.items():
            interval = evaluation.intervals.get(figure)
            setting = f"{examples:,} examples" + ("; 95 % bootstrap interval" if interval else "")
            rows.append(FigureRow(f"{figure} on {name}", in_words(value, interval), setting))
    rows.append(FigureRow("best epoch", str(run.result.epoch), f"of {_epochs(run)}, by {run.metric} on dev"))
    seconds = [run.result.seconds] if searched is None else [row.seconds for row in searched.rows]
    rows.append(
        FigureRow("training time", f"{sum(seconds):,.0f} s", f"{_counted(len(seconds), 'run')}, without evaluations")
    )
    return rows


def _baselines_table(run: _Run, baselines: BaselineScores) -> Table:
    if baselines.on not in run.parts:
        raise RunFolderError(
            f"{run.folder}: {BASELINES_FILE} is of the {baselines.on} file, which the run has none of; remove it"
        )
    ours, _ = run.parts[baselines.on]
    systems = {f"BERT, {run.request['task']['task']}": ours, **baselines.evaluations}
    figures = [name for name in ours.metrics if all(name in scores.metrics for scores in systems.values())]
    rows = [
        [system, *(in_words(scores.metrics[name], scores.intervals.get(name)) for name in figures)]
        for system, scores in systems.items()
    ]
    note = "What the same files give without a pre-trained encoder; settings and epochs of all are chosen on dev."
    return Table(f"Baselines, on {baselines.on}", ["system", *figures], rows, note)


def _spread_table(searched: SearchResult) -> list[Table]:
    rows = [
        [f"{name} on {part}", *(f"{value:.4f}" for value in (s.mean, s.deviation, s.low, s.high)), str(s.seeds)]
        for part, spread in (("dev", searched.dev_spread), ("test", searched.test_spread))
        for name, s in _first(spread, searched.metric)
    ]
    if not rows:
        return []
    head = ["figure", "mean", "standard deviation", "smallest", "largest", "seeds"]
    note = "The same settings from several seeds: a difference smaller than this spread says nothing."
    if len(searched.rows) > max(s.seeds for s in searched.dev_spread.values()):
        # 网格里在 dev 上最好的一次也算在内：它是被挑出来的
        note += " The first of them is the best of the grid on dev, so the mean on dev is a little too good."
    return [Table("Spread over seeds", head, rows, note)]


def _first(spread: Mapping[str, Spread], metric: str) -> list[tuple[str, Spread]]:
    return sorted(spread.items(), key=lambda item: item[0] != metric)


def _runs_table(searched: SearchResult) -> Table:
    varied = list(searched.best_row.settings)
    # 网格里各行的测试分数不列出：逐行看测试集就等于用它来挑选
    tested = bool(searched.test_spread) and varied == ["seed"]
    head = [
        *varied,
        f"{searched.metric} on dev",
        *([f"{searched.metric} on test"] if tested else []),
        "epoch",
        "seconds",
    ]
    rows = []
    for row in searched.rows:
        figures = [row.dev, row.test] if tested else [row.dev]
        cells = [str(value) for value in row.settings.values()]
        cells += [f"{figure[searched.metric]:.4f}" for figure in figures]
        rows.append([*cells, str(row.epoch), f"{row.seconds:.0f}"])
    marked = next(number for number, row in enumerate(searched.rows) if row.name == searched.best)
    note = "Dev alone decides; the marked run is the one whose model was kept."
    return Table("All runs", head, rows, note, marked=marked)


def _course(run: _Run) -> Picture:
    explanation = "Left: how well the training file is fitted. Right: what decides which epoch is kept."
    return Picture("Course", explanation, draw_course(run.rows, run.metric, run.result.epoch))


def _confusions(run: _Run) -> list[Picture]:
    sections = []
    for name, (evaluation, _) in run.parts.items():
        if evaluation.confusion is not None:
            figure, note = draw_confusion(list(evaluation.classes), evaluation.confusion)
            explanation = "Rows are true labels; whatever lies off the diagonal was mistaken for the column's label."
            sections.append(Picture(f"Confusion on {name}", explanation, figure, note))
    return sections


def _classes_table(run: _Run) -> list[Table]:
    if not run.result.dev.classes:
        return []
    # 以各文件标签的并集为行：实体类型可能只在其中一个文件里出现
    labels = dict.fromkeys(label for evaluation, _ in run.parts.values() for label in evaluation.classes)
    head = [
        "label",
        *(f"{column}, {name}" for name in run.parts for column in ("precision", "recall", "F1", "examples")),
    ]
    rows = []
    for label in labels:
        cells = [label]
        for evaluation, _ in run.parts.values():
            scores = evaluation.classes.get(label)
            numbers = None if scores is None else (scores.precision, scores.recall, scores.f1)
            cells += ["–"] * 3 + ["0"] if numbers is None else [f"{number:.3f}" for number in numbers]
            cells += [] if scores is None else [f"{scores.support:,}"]
        rows.append(cells)
    return [Table("By label", head, rows)]


def _mistakes_table(run: _Run) -> Table:
    mistakes = run.result.dev.mistakes
    # 预测的是数时没有“把握”可言，表里列的是偏差
    is_number = task_named(run.request["task"]["task"]).spec.predicts_number
    rows = [
        [_cut(m.text), m.expected, m.predicted, f"{m.confidence:.3g}" if is_number else f"{m.confidence:.2f}"]
        for m in mistakes
    ]
    head = ["text", "true", "predicted", "error" if is_number else "confidence"]
    known = "Farthest off" if is_number else "Wrong and sure of it"
    note = f"{known}: some of these may be errors of the labels." if mistakes else "None."
    return Table("Worst mistakes on dev", head, rows, note, styles=("text", "text", "text", "figure"))


def _recipe_table(run: _Run) -> Table:
    rows = [[name, str(value)] for name, value in run.request["settings"].items()]
    return Table("Recipe", ["setting", "value"], rows)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
