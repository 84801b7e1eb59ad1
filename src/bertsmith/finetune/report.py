"""`report.html` of a fine-tuning run or of a search, at any time: from the files of its folder and nothing else.

Mistakes are shown of the dev file only: whoever reads those of the test file and changes the recipe has no test file
any more. Figures are made through matplotlib's object interface, so nothing global is touched and no screen is needed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import read_json, write_text, written_by_another
from bertsmith.finetune.baselines import BASELINES_FILE, BaselineScores, read_baselines
from bertsmith.finetune.datasets import shown_path
from bertsmith.finetune.metrics import in_words
from bertsmith.finetune.metrics.calibration import Calibration
from bertsmith.finetune.reading import FilesRead
from bertsmith.finetune.run import FORMAT, FineTuningResult
from bertsmith.finetune.tasks import task_named
from bertsmith.finetune.trials import RUNS, SearchResult, Spread
from bertsmith.reporting.drawing import drawable
from bertsmith.reporting.page import FigureRow, Part, Picture, Table, figures_table, render_report
from bertsmith.reporting.plots import HELDOUT_COLOUR, REFERENCE_COLOUR, TRAIN_COLOUR
from bertsmith.train.monitor import read_metrics

REPORT = "report.html"
_LONGEST_TEXT = 600
"""Longer texts of mistakes are cut in the table."""


@dataclass(frozen=True)
class _Run:
    """What a report is made from."""

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
        rows = read_metrics(folder / "metrics.jsonl")
        return cls(folder, task, settings, examples, FineTuningResult.load(result), rows)

    @property
    def metric(self) -> str:
        """The metric that chose the epoch."""
        return next(iter(self.result.dev.metrics))

    @property
    def epochs(self) -> int:
        return sum(row["kind"] == "dev" for row in self.rows)


def write_report(run: str | Path) -> Path:
    """Writes `report.html` of a finished run or search into its folder, and returns where."""
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
    for part, evaluation in found.result.evaluations.items():
        lead += "".join(f" On {part}: {remark}." for remark in evaluation.remarks)
    baselines, target = read_baselines(folder), folder / REPORT
    read = FilesRead.of_run(folder)
    parts = [*([what_was_read(read.lines)] if read and read.lines else []), *_parts(found, baselines, searched)]
    told: dict[str, Any] = {"verdict": _verdict(found, baselines)}
    if (folder / "model").is_dir():
        # 向量没有“预测”：用它建索引
        use = "index YOUR_FOLDER --out folder.index" if found.task == "embed" else "predict --file YOUR_FILE.txt"
        told["commands"] = [f"bertsmith {use} --model {shlex.quote(shown_path(folder / 'model'))}"]
    title = f"Fine-tuning: {found.task}, {shown_path(folder.resolve().name)}"
    write_text(target, render_report(title, lead, parts, **told))
    return target


def what_was_read(lines: Iterable[tuple[str, str]]) -> Table:
    """Returns the table of what was understood of texts and files, line by line, each with its part."""
    # 结果再好，读错了列也没有意义：先看读了什么
    return Table("What was read", ("", "what was found"), [list(map(cut, line)) for line in lines], styles=("text",))


def _verdict(run: _Run, baselines: BaselineScores | None) -> str:
    part, ours = list(run.result.evaluations.items())[-1]
    interval = ours.intervals.get(run.metric)
    said = f"{run.metric} {in_words(ours.metrics[run.metric], interval)} on {part}"
    others = {} if baselines is None or baselines.on != part else baselines.evaluations
    scores = {name: each.metrics[run.metric] for name, each in others.items() if run.metric in each.metrics}
    if not scores:
        return f"{said}."
    best = max(scores, key=lambda name: scores[name])
    gained = ours.metrics[run.metric] > scores[best]
    clear = gained and (interval is None or interval.low > scores[best])
    judged = "clearly better" if clear else "better, but within the interval" if gained else "no better"
    return f"{said}: {judged} than {best}, which needs no encoder ({scores[best]:.3f})."


def _parts(run: _Run, baselines: BaselineScores | None, searched: SearchResult | None) -> Iterator[Part]:
    evaluations = run.result.evaluations
    yield figures_table(_scores(run, searched))
    if baselines is not None:
        yield _baselines(run, baselines)
    if searched is not None:
        yield from _spreads(searched)
        yield _runs(searched)
    explanation = "Left: how well the training file is fitted. Right: what decides which epoch is kept."
    yield Picture("Course", explanation, draw_course(run.rows, run.metric, run.result.epoch))
    for part, evaluation in evaluations.items():
        if evaluation.confusion is not None:
            figure, note = draw_confusion(list(evaluation.classes), evaluation.confusion)
            explanation = "Rows are true labels; whatever lies off the diagonal was mistaken for the column's label."
            yield Picture(f"Confusion on {part}", explanation, figure, note)
    if run.result.dev.calibration is not None:
        yield _calibration(run)
        reliable = {part: one.calibration for part, one in evaluations.items() if one.calibration is not None}
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
    rows = []
    for part, evaluation in run.result.evaluations.items():
        for name, value in evaluation.metrics.items():
            interval = evaluation.intervals.get(name)
            setting = f"{run.examples[part]:,} examples" + ("; 95 % bootstrap interval" if interval else "")
            rows.append(FigureRow(f"{name} on {part}", in_words(value, interval), setting))
    rows.append(FigureRow("best epoch", str(run.result.epoch), f"of {run.epochs}, by {run.metric} on dev"))
    seconds = [run.result.seconds] if searched is None else [row.seconds for row in searched.rows]
    cost = f"{_counted(len(seconds), 'run')}, without evaluations"
    return [*rows, FigureRow("training time", f"{sum(seconds):,.0f} s", cost)]


def _baselines(run: _Run, baselines: BaselineScores) -> Table:
    if baselines.on not in run.result.evaluations:
        raise RunFolderError(
            f"{run.folder}: {BASELINES_FILE} is of the {baselines.on} file, which the run has none of; remove it"
        )
    ours = run.result.evaluations[baselines.on]
    systems = {f"BERT, {run.task}": ours, **baselines.evaluations}
    names = [name for name in ours.metrics if all(name in scores.metrics for scores in systems.values())]
    rows = [
        [system, *(in_words(scores.metrics[name], scores.intervals.get(name)) for name in names)]
        for system, scores in systems.items()
    ]
    note = "What the same files give without a pre-trained encoder; settings and epochs of all are chosen on dev."
    return Table(f"Baselines, on {baselines.on}", ["system", *names], rows, note)


def _spreads(searched: SearchResult) -> Iterator[Table]:
    """Yields a table over the parts of a cross-validation, and one over seeds, where there were any."""

    def table(title: str, note: str, counted: str, by_file: Mapping[str, Mapping[str, Spread]]) -> Table:
        rows = [
            [name + on, *(f"{value:.4f}" for value in (s.mean, s.deviation, s.low, s.high)), str(s.seeds)]
            for on, spread in by_file.items()
            for name, s in sorted(spread.items(), key=lambda item: item[0] != searched.metric)
        ]
        return Table(title, ["figure", "mean", "standard deviation", "smallest", "largest", counted], rows, note)

    if searched.fold_spread:
        note = (
            "Each part of the training file scored once, by a model that learned from the other parts and chose its"
            " epoch without it. This is what the recipe is worth on new text."
        )
        yield table("Cross-validation", note, "folds", {"": searched.fold_spread})
    if searched.dev_spread:
        note = "The same settings from several seeds: a difference smaller than this spread says nothing."
        if len(searched.rows) > max(s.seeds for s in searched.dev_spread.values()):
            # 网格里在 dev 上最好的一次也算在内：它是被挑出来的
            note += " The first of them is the best of the grid on dev, so the mean on dev is a little too good."
        spread = {" on dev": searched.dev_spread, " on test": searched.test_spread}
        yield table("Spread over seeds", note, "seeds", spread)


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
    for part, evaluation in run.result.evaluations.items():
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
    evaluations = run.result.evaluations
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
    evaluations = run.result.evaluations
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
    rows = [[cut(m.text), m.expected, m.predicted, f"{m.confidence:{digits}}"] for m in mistakes]
    known = "Farthest off" if is_number else "Wrong and sure of it"
    note = f"{known}: some of these may be errors of the labels." if mistakes else "None."
    head = ["text", "true", "predicted", unsure]
    return Table("Worst mistakes on dev", head, rows, note, styles=("text", "text", "text", "figure"))


def cut(text: str, most: int = _LONGEST_TEXT) -> str:
    """Returns a text as a table shows it."""
    return text if len(text) <= most else text[: most - 1] + "…"


MAX_COUNTED = 24
"""With more labels the cells are too small for numbers; the colours remain."""

MAX_NAMED = 120
"""With more labels their names would be too small to read."""

_LONGEST_LABEL = 28


def draw_course(rows: Sequence[dict[str, Any]], metric: str, best_epoch: int) -> Figure:
    """Draws the training loss and the dev metric over the epochs."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    loss, score = figure.subplots(1, 2)
    _draw_epochs(loss, rows, "train", "loss", TRAIN_COLOUR)
    loss.set_title("Training loss, mean of the epoch", fontsize=11)
    loss.set_ylim(0, 1.06 * loss.get_ylim()[1])
    _draw_epochs(score, rows, "dev", metric, HELDOUT_COLOUR)
    score.axvline(best_epoch, color=REFERENCE_COLOUR, linestyle="--", linewidth=1, label="kept")
    score.set_title(f"{_plain(metric)} on dev", fontsize=11)
    score.legend(frameon=False, fontsize=9)
    return figure


def draw_confusion(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> tuple[Figure, str]:
    """Draws a confusion matrix: the color is the share of the true label, the number the count.

    The note that is returned with it tells where labels had to be numbers; it is empty otherwise.
    """
    table = np.asarray(counts, dtype=np.int64)
    names, family, note = drawable([_plain(cut(label, _LONGEST_LABEL)) for label in labels])
    size = float(np.clip(2.2 + 0.42 * len(names), 3.6, 14))
    figure = Figure(figsize=(size + 1.4, size), layout="constrained")
    axes = figure.add_subplot()
    # 按真实标签归一：样本少的类也看得出错在哪里；没有样本的行全为 0
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    # 标签多时格子变窄：字号随格宽缩小，相邻的名字才不会叠在一起
    points = min(9.0, 600 / len(names))
    turned = len(names) * max(map(len, names)) > 40
    if len(names) <= MAX_NAMED:
        axes.set_xticks(range(len(names)), names, rotation=90 if turned else 0, fontsize=points, family=family)
        axes.set_yticks(range(len(names)), names, fontsize=points, family=family)
    else:
        # 上千个名字画出来也读不了，却要画半分钟：只留编号
        note = f"With more than {MAX_NAMED} labels the axes count them, from 0, in the order of the table."
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    if len(names) <= MAX_COUNTED:
        for row, column in np.argwhere(table).tolist():
            colour = "white" if shares[row, column] > 0.55 else "#1d2733"
            axes.text(column, row, f"{table[row, column]}", ha="center", va="center", fontsize=8, color=colour)
    figure.colorbar(image, ax=axes, shrink=0.75, label="share of the true label")
    return figure, note


def draw_reliability(files: Mapping[str, Calibration]) -> Figure:
    """Draws how often predictions are right by how sure they are, as they are and at the temperature of dev."""
    figure = Figure(figsize=(5 * len(files), 4.2), layout="constrained")
    for axes, (name, found) in zip(figure.subplots(1, len(files), squeeze=False)[0], files.items(), strict=True):
        axes.plot([0, 1], [0, 1], color=REFERENCE_COLOUR, linestyle="--", linewidth=1)
        shown = (
            (f"as it is, error {found.before.error:.3f}", found.before, TRAIN_COLOUR),
            (f"temperature {found.temperature:g}, error {found.after.error:.3f}", found.after, HELDOUT_COLOUR),
        )
        for label, one, colour in shown:
            sure, right = [part.confidence for part in one.bins], [part.accuracy for part in one.bins]
            # 面积正比于个数：一格里只有两三个预测时，它偏离对角线说明不了什么
            most = max(part.count for part in one.bins)
            axes.plot(sure, right, color=colour, linewidth=1, label=label)
            axes.scatter(sure, right, s=[12 + 90 * part.count / most for part in one.bins], color=colour, alpha=0.7)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share that is right")
        axes.set_title(f"On {name}", fontsize=11)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def _draw_epochs(axes: Axes, rows: Sequence[dict[str, Any]], kind: str, name: str, colour: str) -> None:
    points = [(row["epoch"], row[name]) for row in rows if row["kind"] == kind and name in row]
    axes.plot([epoch for epoch, _ in points], [value for _, value in points], color=colour, linewidth=2, marker="o")
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _plain(text: str) -> str:
    # matplotlib 把一对 $ 之间的文字当公式：标签 $$ 会让整份报告画不出来
    return text.replace("$", r"\$")
