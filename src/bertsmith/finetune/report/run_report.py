"""`report.html` of a fine-tuning run or of a search, at any time: from the files of its folder and nothing else.

Notable:
- scores stand with their bootstrap intervals, BERT beside the baselines, all runs of a search in one table
- mistakes are shown of the dev file only: whoever reads those of the test file and changes the recipe has no test
  file any more
- the parts of the page are tables and pictures, see `reporting.page`; texts of users are escaped there
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import write_text, written_by_another
from bertsmith.finetune.baselines.scores_file import BASELINES_FILE, BaselineScores, read_baselines
from bertsmith.finetune.metrics.bootstrap import in_words
from bertsmith.finetune.report.plots import draw_confusion, draw_course, draw_reliability
from bertsmith.finetune.run import FORMAT, FineTuningResult
from bertsmith.finetune.tasks.registry import task_named
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.finetune.trials import RUNS, SearchResult
from bertsmith.json_files import read_json
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
        task: the name of its task.
        settings: its recipe.
        examples: file → how many examples it holds; the test file only where there is one.
        result: `result.json`.
        rows: `metrics.jsonl`.
    """

    folder: Path
    task: str
    settings: dict[str, Any]
    examples: dict[str, int]
    result: FineTuningResult
    rows: list[dict[str, Any]]

    @classmethod
    def load(cls, folder: Path) -> _Run:
        request, result = folder / "finetune.json", folder / "result.json"
        if not request.exists() or not result.exists():
            raise InputError(f"{folder}: holds no finished fine-tuning run; run the same `finetune` command to its end")
        asked = read_json(request, dict[str, Any], RunFolderError, "choose another --out")
        if asked.get("format") != FORMAT:
            raise RunFolderError(f"{folder}: {written_by_another(asked)}")
        try:
            task, settings = asked["task"]["task"], dict(asked["settings"])
            # 没有测试文件时，那一项是 null
            files = ["train", "dev", *(["test"] if asked["test"] else [])]
            examples = {part: int(asked[part]["examples"]) for part in files}
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"{request}: damaged ({error}); choose another --out") from None
        if asked.get("format") != FORMAT:
            raise RunFolderError(f"{folder}: {written_by_another(asked)}")
        rows = read_metrics(folder / "metrics.jsonl")
        return cls(folder, task, settings, examples, FineTuningResult.load(result), rows)

    @property
    def metric(self) -> str:
        """The metric that chose the epoch."""
        return next(iter(self.result.dev.metrics))

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """File → how the kept weights do on it; the test file only where there is one."""
        found = {"dev": self.result.dev, "test": self.result.test}
        return {part: evaluation for part, evaluation in found.items() if evaluation is not None}

    @property
    def epochs(self) -> int:
        """How many were run."""
        return sum(row["kind"] == "dev" for row in self.rows)


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
    searched, best = None, folder
    if (folder / "search.json").exists():
        if not (folder / "result.json").exists():
            raise InputError(f"{folder}: the search is not finished; run the same `finetune` command to its end")
        searched = SearchResult.load(folder / "result.json")
        best = folder / RUNS / searched.best
    found = _Run.load(best)
    lead = f"{found.examples['train']:,} training examples, the best of {_counted(found.epochs, 'epoch')} kept."
    if searched is not None and searched.fold_spread:
        lead += " Curves, labels and mistakes below are of the model that is kept, from the whole training file."
    parts = list(_parts(found, read_baselines(folder), searched))
    target = folder / REPORT
    write_text(target, render_report(f"Fine-tuning: {found.task}, {folder.resolve().name}", lead, parts))
    return target


def _parts(run: _Run, baselines: BaselineScores | None, searched: SearchResult | None) -> Iterator[Part]:
    """Yields the tables and pictures of the page, from the top."""
    yield figures_table(_scores(run, searched))
    if baselines is not None:
        yield _baselines(run, baselines)
    if searched is not None:
        yield from _spread(searched)
        yield _runs(searched)
    explanation = "Left: how well the training file is fitted. Right: what decides which epoch is kept."
    yield Picture("Course", explanation, draw_course(run.rows, run.metric, run.result.epoch))
    for part, evaluation in run.evaluations.items():
        if evaluation.confusion is not None:
            figure, note = draw_confusion(list(evaluation.classes), evaluation.confusion)
            explanation = "Rows are true labels; whatever lies off the diagonal was mistaken for the column's label."
            yield Picture(f"Confusion on {part}", explanation, figure, note)
    if run.result.dev.calibration is not None:
        yield _calibration(run)
        reliable = {part: one.calibration for part, one in run.evaluations.items() if one.calibration is not None}
        explanation = (
            "How often predictions of a confidence are right: on the dashed line the two agree; below it the model is"
            " too sure. Larger dots are more predictions."
        )
        yield Picture("Reliability", explanation, draw_reliability(reliable))
    if run.result.dev.thresholds:
        yield _thresholds(run)
    if run.result.dev.classes:
        yield _classes(run)
    yield _mistakes(run)
    yield Table("Recipe", ["setting", "value"], [[name, str(value)] for name, value in run.settings.items()])


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _scores(run: _Run, searched: SearchResult | None) -> list[FigureRow]:
    """Returns all metrics on dev and test, and what they cost."""
    rows = []
    for part, evaluation in run.evaluations.items():
        for name, value in evaluation.metrics.items():
            interval = evaluation.intervals.get(name)
            setting = f"{run.examples[part]:,} examples" + ("; 95 % bootstrap interval" if interval else "")
            rows.append(FigureRow(f"{name} on {part}", in_words(value, interval), setting))
    rows.append(FigureRow("best epoch", str(run.result.epoch), f"of {run.epochs}, by {run.metric} on dev"))
    seconds = [run.result.seconds] if searched is None else [row.seconds for row in searched.rows]
    cost = f"{_counted(len(seconds), 'run')}, without evaluations"
    return [*rows, FigureRow("training time", f"{sum(seconds):,.0f} s", cost)]


def _baselines(run: _Run, baselines: BaselineScores) -> Table:
    if baselines.on not in run.evaluations:
        raise RunFolderError(
            f"{run.folder}: {BASELINES_FILE} is of the {baselines.on} file, which the run has none of; remove it"
        )
    ours = run.evaluations[baselines.on]
    systems = {f"BERT, {run.task}": ours, **baselines.evaluations}
    names = [name for name in ours.metrics if all(name in scores.metrics for scores in systems.values())]
    rows = [
        [system, *(in_words(scores.metrics[name], scores.intervals.get(name)) for name in names)]
        for system, scores in systems.items()
    ]
    note = "What the same files give without a pre-trained encoder; settings and epochs of all are chosen on dev."
    return Table(f"Baselines, on {baselines.on}", ["system", *names], rows, note)


def _spread(searched: SearchResult) -> Iterator[Table]:
    if searched.fold_spread:
        yield _folds(searched)
    rows = [
        [f"{name} on {part}", *(f"{value:.4f}" for value in (s.mean, s.deviation, s.low, s.high)), str(s.seeds)]
        for part, spread in (("dev", searched.dev_spread), ("test", searched.test_spread))
        for name, s in sorted(spread.items(), key=lambda item: item[0] != searched.metric)
    ]
    if not rows:
        return
    note = "The same settings from several seeds: a difference smaller than this spread says nothing."
    if len(searched.rows) > max(s.seeds for s in searched.dev_spread.values()):
        # 网格里在 dev 上最好的一次也算在内：它是被挑出来的
        note += " The first of them is the best of the grid on dev, so the mean on dev is a little too good."
    head = ["figure", "mean", "standard deviation", "smallest", "largest", "seeds"]
    yield Table("Spread over seeds", head, rows, note)


def _folds(searched: SearchResult) -> Table:
    rows = [
        [name, *(f"{value:.4f}" for value in (s.mean, s.deviation, s.low, s.high)), str(s.seeds)]
        for name, s in sorted(searched.fold_spread.items(), key=lambda item: item[0] != searched.metric)
    ]
    note = (
        "Each part of the training file scored once, by a model that learned from the other parts and chose its epoch"
        " without it. This is what the recipe is worth on new text."
    )
    return Table(
        "Cross-validation", ["figure", "mean", "standard deviation", "smallest", "largest", "folds"], rows, note
    )


def _runs(searched: SearchResult) -> Table:
    varied, metric = list(searched.best_row.settings), searched.metric
    # 网格里各行的测试分数不列出：逐行看测试集就等于用它来挑选
    is_test_shown = bool(searched.test_spread and varied == ["seed"]) or bool(searched.fold_spread)
    shown = ["dev", "test"] if is_test_shown else ["dev"]
    rows = [
        [
            *(str(value) for value in row.settings.values()),
            *(f"{getattr(row, part)[metric]:.4f}" if getattr(row, part) else "–" for part in shown),
            str(row.epoch),
            f"{row.seconds:.0f}",
        ]
        for row in searched.rows
    ]
    marked = next(number for number, row in enumerate(searched.rows) if row.name == searched.best)
    note = "Dev alone decides; the marked run is the one whose model was kept."
    if searched.fold_spread:
        note = "The test of a fold is the part it did not see; the marked run is the model that is kept."
    head = [*varied, *(f"{metric} on {part}" for part in shown), "epoch", "seconds"]
    return Table("All runs", head, rows, note, marked=marked)


def _calibration(run: _Run) -> Table:
    rows = []
    for part, evaluation in run.evaluations.items():
        if (found := evaluation.calibration) is not None:
            for temperature, one in ((1.0, found.before), (found.temperature, found.after)):
                rows.append([part, f"{temperature:g}", *(f"{x:.4f}" for x in (one.error, one.brier, one.log_loss))])
    note = (
        "The temperature is the one with the least log loss on dev; only test says what it is worth. It changes no"
        " prediction; `bertsmith predict --calibrated` uses it."
    )
    head = ["file", "temperature", "expected calibration error", "Brier score", "log loss"]
    return Table("Calibration", head, rows, note)


def _thresholds(run: _Run) -> Table:
    evaluations = run.evaluations
    rows = [
        [label, f"{own.threshold:.3f}"]
        + [
            f"{value:.3f}"
            for evaluation in evaluations.values()
            for value in (evaluation.thresholds[label].f1, evaluation.thresholds[label].own_f1)
        ]
        for label, own in run.result.dev.thresholds.items()
    ]
    head = ["label", "its threshold"]
    head += [f"{column}, {part}" for part in evaluations for column in ("F1 as it is", "F1 at its own")]
    note = (
        "Each threshold has the best F1 of its label on dev, which flatters it there; only test says whether it helps."
        " `bertsmith predict --class-thresholds` uses them."
    )
    return Table("Thresholds of single labels", head, rows, note)


def _classes(run: _Run) -> Table:
    evaluations = run.evaluations
    rows = []
    # 以各文件标签的并集为行：实体类型可能只在其中一个文件里出现
    for label in dict.fromkeys(label for evaluation in evaluations.values() for label in evaluation.classes):
        row = [label]
        for evaluation in evaluations.values():
            s = evaluation.classes.get(label)
            shares = ["–"] * 3 if s is None else [f"{share:.3f}" for share in (s.precision, s.recall, s.f1)]
            row += [*shares, "0" if s is None else f"{s.support:,}"]
        rows.append(row)
    columns = ("precision", "recall", "F1", "examples")
    return Table("By label", ["label", *(f"{column}, {part}" for part in evaluations for column in columns)], rows)


def _mistakes(run: _Run) -> Table:
    mistakes = run.result.dev.mistakes
    # 预测的是数时没有“把握”可言，表里列的是偏差
    is_number = task_named(run.task).spec.predicts_number
    digits, unsure = (".3g", "error") if is_number else (".2f", "confidence")
    rows = [[_cut(m.text), m.expected, m.predicted, f"{m.confidence:{digits}}"] for m in mistakes]
    known = "Farthest off" if is_number else "Wrong and sure of it"
    note = f"{known}: some of these may be errors of the labels." if mistakes else "None."
    head = ["text", "true", "predicted", unsure]
    return Table("Worst mistakes on dev", head, rows, note, styles=("text", "text", "text", "figure"))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
