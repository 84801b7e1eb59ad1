"""`report.html` of one run or several, at any time: what is in `metrics.jsonl` by now, as tables and curves."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import write_text
from bertsmith.reporting.page import FigureRow, Part, Picture, Table, figures_table, render_report
from bertsmith.reporting.plots import Panel, draw_panels
from bertsmith.settings import values_of
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import verdict_on
from bertsmith.train.recipe import PreTrainingRecipe

COURSE = (
    Panel("learning_rate", "train", "Learning rate"),
    Panel("tokens_per_second", "train", "Tokens per second, since the last start"),
    Panel("mfu", "train", "Model FLOPs utilisation, since the last start"),
    Panel("skipped", "train", "Batches skipped"),
)


def write_run_report(runs: Sequence[str | Path], out: str | Path | None = None, *, first: Sequence[Part] = ()) -> Path:
    """Writes the report of runs that are finished or still going, and returns its file.

    Args:
        out: the HTML file; None is `report.html` in the folder of a single run, or here for several.
        first: stands before the figures.
    """
    folders = [Path(run) for run in runs]
    target = Path(out) if out is not None else (folders[0] if len(folders) == 1 else Path()) / "report.html"
    if (target.parent / "quickstart.json").exists() and target.name == "report.html":
        raise InputError(f"{target}: is the quickstart's own report; choose another file with --out")
    rows, recipes = {}, {}
    for name, folder in zip(_short_names(folders), folders, strict=True):
        rows[name] = _read(folder / "metrics.jsonl")
        if not rows[name]:
            raise InputError(f"{folder}: no metrics.jsonl with figures; name a run folder of `bertsmith pretrain`")
        recipes[name] = PreTrainingRecipe.load(folder)
    title = "Pre-training: " + (next(iter(rows)) if len(rows) == 1 else f"{len(rows)} runs")
    figures = [row for name in rows for row in _figures(name, rows[name], recipes[name])]
    quality = "Lower losses and higher accuracies are better; the held-out batches never change."
    course = "What the run did: its schedule, and how fast it went."
    pictures = [
        Picture(heading, explanation, draw_panels(rows, present))
        for heading, explanation, panels in (("Quality", quality, _quality(recipes)), ("Course", course, COURSE))
        if (present := _present(panels, rows))
    ]
    parts: list[Part] = [*first, figures_table(figures), *pictures, _recipes_table(recipes)]
    models = [shlex.quote(str(folder / "model")) for folder in folders if (folder / "model").is_dir()]
    commands = [f"bertsmith finetune classify --model {model} --train train.tsv --out runs/mine" for model in models]
    verdicts = {name: said for name in rows if (said := _verdict(rows[name], recipes[name]))}
    verdict = " ".join(said if len(rows) == 1 else f"{name}: {said}" for name, said in verdicts.items())
    lead = "From `metrics.jsonl`, as of now."
    write_text(target, render_report(title, lead, parts, verdict=verdict, commands=commands))
    return target


def _verdict(rows: Sequence[dict[str, Any]], recipe: PreTrainingRecipe) -> str:
    """Says in words what the last held-out loss means; nothing before the first step, or of a log without entropy."""
    heldout = [row for row in rows if row["kind"] == "heldout"]
    if not heldout or heldout[-1]["step"] == 0:
        return ""
    loss = recipe.build_objective().perplexity_of
    first, last = (row.get(loss, math.nan) for row in (heldout[0], heldout[-1]))
    if recipe.model.start_from and heldout[0]["step"] == 0 and not math.isnan(first):
        # 从已有模型开始的运行：要问的是它在这批文本上是否又学到了东西
        learned = "it has learned from this text" if last < first else "it has learned nothing from this text"
        return f"The model it began from has {first:.2f} nats on the held-out text, this one {last:.2f}: {learned}."
    return verdict_on(last, heldout[-1].get("unigram_entropy", math.nan))


def _read(path: Path) -> list[dict[str, Any]]:
    """Reads a log; one of something else counts as none."""
    rows = read_metrics(path)
    # 只要有一行不是预训练的数据，整份记录就不可信：宁可不画，也不画半条曲线
    whole = all({"kind", "step", "tokens"} <= row.keys() for row in rows)
    return rows if whole else []


def _short_names(folders: Sequence[Path]) -> list[str]:
    """Returns the folders' names without what they all begin with."""
    full = [folder.resolve() for folder in folders]
    if len(set(full)) < len(full):
        raise InputError("a run folder is named twice; name each once")
    if len(full) == 1:
        return [full[0].name]
    common = os.path.commonpath([str(path.parent) for path in full])
    return [str(path.relative_to(common)) for path in full]


def _quality(recipes: Mapping[str, PreTrainingRecipe]) -> list[Panel]:
    objectives = [recipe.build_objective() for recipe in recipes.values()]
    terms = {term.name: term.title[0].upper() + term.title[1:] for one in objectives for term in one.terms}
    # 句对与教师的损失也画出来：总损失下降时，看得见是哪一项在降
    losses = {f"{name}_loss": title for name, title in terms.items()}
    return [
        *(Panel(loss, "heldout", f"{title} loss, held out (nats)") for loss, title in losses.items()),
        *(
            Panel(loss, "heldout", f"{title} loss, held out, by tokens seen", over="tokens")
            for loss, title in losses.items()
        ),
        Panel("perplexity", "heldout", "Perplexity, held out"),
        *(Panel(f"{name}_accuracy", "heldout", f"{title} accuracy, held out") for name, title in terms.items()),
        *(Panel(loss, "train", f"{title} loss, training (nats)") for loss, title in losses.items()),
    ]


def _present(panels: Sequence[Panel], runs: Mapping[str, Sequence[dict[str, Any]]]) -> list[Panel]:
    every = [row for rows in runs.values() for row in rows]
    return [panel for panel in panels if any(r["kind"] == panel.kind and panel.figure_name in r for r in every)]


def _figures(name: str, rows: Sequence[dict[str, Any]], recipe: PreTrainingRecipe) -> list[FigureRow]:
    """Returns how far a run is, and its last and best held-out figures."""
    last = rows[-1]
    lengths = dict.fromkeys(phase.length for phase in recipe.length.parts) or [recipe.data.sequence_length]
    length = " then ".join(map(str, lengths))
    model = recipe.model
    setting = f"{recipe.objective}, {model.size}, sequences of {length}, {model.precision}, {last['tokens']:,} tokens"
    figures = [FigureRow(f"{name}: steps", f"{last['step']:,} of {recipe.trainer.total_steps:,}", setting)]
    # 第 0 步的成绩是训练前的：只要有别的，就不参加“最好”
    heldout = [row for row in rows if row["kind"] == "heldout" and row["step"] > 0] or [
        row for row in rows if row["kind"] == "heldout"
    ]
    objective = recipe.build_objective()
    loss, title = objective.perplexity_of, objective.language_model.loss.title
    measured = [row for row in heldout if loss in row]
    if measured:
        best = min(measured, key=lambda row: float(row[loss]))
        value, perplexity = measured[-1][loss], measured[-1]["perplexity"]
        note = f"best {best[loss]:.3f} at step {best['step']:,}; perplexity {perplexity:.1f}"
        figures.append(FigureRow(f"{name}: {title} loss", f"{value:.3f} nats", note))
    for term in objective.terms:
        accuracy = f"{term.name}_accuracy"
        if heldout and accuracy in heldout[-1]:
            figures.append(FigureRow(f"{name}: {term.title} accuracy", f"{heldout[-1][accuracy]:.1%}", "held out"))
    return figures


def _recipes_table(recipes: Mapping[str, PreTrainingRecipe]) -> Table:
    """Returns all settings of a single run, or those in which several differ."""
    settings = {name: values_of(recipe) for name, recipe in recipes.items()}
    names = list(next(iter(settings.values())))
    shown = [n for n in names if len(settings) == 1 or len({str(values[n]) for values in settings.values()}) > 1]
    heading = "Recipe" if len(settings) == 1 else "Where the recipes differ"
    rows = [[name, *(str(values[name]) for values in settings.values())] for name in shown]
    return Table(heading, ("setting", *settings), rows, styles=("text", "code"))
