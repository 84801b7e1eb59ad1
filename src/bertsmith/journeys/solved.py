"""What `solve` came to: a row for each method, the answer, and their page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.finetune.metrics import Interval, in_words
from bertsmith.finetune.reading import FilesRead
from bertsmith.finetune.report import cut, draw_confusion, draw_reliability, what_was_read
from bertsmith.finetune.tasks.task import Evaluation, Task
from bertsmith.journeys.more_labels import Curve, draw_curve, in_a_sentence
from bertsmith.reporting.page import FigureRow, Part, Picture, Table, figures_table, render_report


@dataclass(frozen=True)
class Try:
    """What one method came to.

    Attributes:
        name: of the method, with the encoder that it used.
        score: by the task's metric on dev, or on folds that were held out; None where it did not run.
        size: bytes of its folder.
        milliseconds: for a text, of the texts of dev.
        note: what was chosen, or why it did not run.
    """

    name: str
    score: float | None = None
    interval: Interval | None = None
    seconds: float = 0.0
    size: int = 0
    milliseconds: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Solved:
    """The answer.

    Attributes:
        answer: the name of what is kept.
        mix: by what the outputs of encoder and words are multiplied, and what is added; 0 for a part that is left out.
            Of vectors: their weight in a search, and that of words.
        dev: how it does on the rows that chose it: of dev, or of folds, each by a model that had not learned from it.
        test: on the rows that chose nothing; None where there are none.
        tries: all that was tried, the answer last.
        curve: rows → score of words that learned from so many; empty where they are few, or no time was left.
    """

    task: str
    answer: str
    mix: tuple[float, float, float]
    dev: Evaluation
    test: Evaluation | None
    tries: tuple[Try, ...]
    curve: Curve = ()


def solved_page(
    solved: Solved,
    source: str,
    read: FilesRead,
    folder: Path,
    task: Task[Any, Any],
    sizes: Mapping[str, int],
    folds: int,
    apart: Sequence[tuple[str, ...]],
) -> str:
    """Returns the page.

    Args:
        source: what the labelled rows are called.
        read: what was understood of the files.
        sizes: rows for training, of what was held out, and of `test`, in this order.
        folds: in how many parts the rows were held out; 0 where there are rows for dev.
        apart: texts of which the parts differ most: text, what is true, what words say, what the encoder says.
    """
    metric, held = task.metric, list(sizes)[1]
    files = {held: solved.dev, **({} if solved.test is None else {"test": solved.test})}
    figures = [
        FigureRow(f"{name} on {part}", in_words(value, found.intervals.get(name)), f"{sizes[part]:,} rows")
        for part, found in files.items()
        for name, value in found.metrics.items()
    ]
    lead = f"{sizes['train']:,} labelled rows of {source}; the answer: {solved.answer}."
    lead += "".join(f" On {part}: {remark}." for part, found in files.items() for remark in found.remarks)
    chose = f"Each of {folds} parts was held out in turn; they chose" if folds else "Dev chose"
    note = (
        f"In the order in which they were tried. {chose} strengths, epochs and weights, so these scores are a"
        " little too good; test is scored once, with the final model. Intervals are of 95 %, by the bootstrap."
    )
    head = ("method", f"{metric} on {held}", "seconds", "size", "a text", "")
    rows = [cells_of(one, "") for one in solved.tries]
    parts: list[Part] = [
        what_was_read(read.lines),
        Table(
            "What was tried",
            head,
            rows,
            note,
            styles=("text", "figure", "figure", "figure", "figure", "note"),
            marked=len(rows) - 1,
        ),
        figures_table(figures),
    ]
    if solved.curve:
        said = f"{in_a_sentence(solved.curve, metric)} (dashed), if the last doublings are a guide."
        parts.append(Picture("More labels", said, draw_curve(solved.curve, metric)))
    if apart:
        note = "Where the two parts differ most. What only one of them knows is why together they do better."
        shown = [[cut(text), *said] for text, *said in apart]
        columns = ("text", "true", "words", "encoder")
        parts.append(Table(f"Where the parts differ, on {held}", columns, shown, note, ("text",)))
    for part, found in files.items():
        if found.confusion is not None:
            figure, below = draw_confusion(list(found.classes), found.confusion)
            said = "Rows are true labels; whatever lies off the diagonal was mistaken for the column's label."
            parts.append(Picture(f"Confusion on {part}", said, figure, below))
    reliable = {part: found.calibration for part, found in files.items() if found.calibration is not None}
    if reliable:
        said = "How often predictions of a confidence are right: on the dashed line the two agree."
        parts.append(Picture("Reliability", said, draw_reliability(reliable)))
    wrong = [[cut(one.text), one.expected, one.predicted, f"{one.confidence:.3g}"] for one in solved.dev.mistakes]
    columns = ("text", "true", "predicted", "error" if task.spec.predicts_number else "confidence")
    parts.append(
        Table(
            f"Worst mistakes on {held}",
            columns,
            wrong,
            "Some of these may be errors of the labels.",
            ("text",),
        )
    )
    first, last = solved.tries[0], solved.tries[-1]
    verdict = f"The best answer: {solved.answer}, with {metric} {last.score:.3f} on {held}"
    verdict += f", where {first.name} gives {first.score:.3f}." if first.score is not None else "."
    commands = [next_command(solved, folder), f"bertsmith serve --model {shlex.quote(str(folder / 'model'))}"]
    return render_report(f"Solved: {solved.task}, {source}", lead, parts, verdict=verdict, commands=commands)


def next_command(solved: Solved, folder: Path) -> str:
    """Returns the command that uses the answer in a folder."""
    model = shlex.quote(str(folder / "model"))
    # 向量没有“预测”：用它建索引
    if solved.task == "embed":
        return f"bertsmith index YOUR_FOLDER --model {model} --out folder.index"
    return f"bertsmith predict --model {model} --file YOUR_FILE.txt"


def cells_of(found: Try, metric: str) -> list[str]:
    """Returns what is said of a method: its name, score, cost and note."""
    if found.score is None:
        return [found.name, "", "", "", "", found.note]
    return [
        found.name,
        f"{metric} {in_words(found.score, found.interval)}".strip(),
        f"{found.seconds:,.0f} s" if found.seconds >= 10 else f"{found.seconds:.1f} s",
        f"{found.size / 1e6:.1f} MB" if found.size else "",
        f"{found.milliseconds:.2f} ms a text" if found.milliseconds else "",
        found.note,
    ]
