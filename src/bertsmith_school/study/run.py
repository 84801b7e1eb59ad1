"""A study from beginning to end: text, budgets, runs, and the page that compares them. The same command resumes.

OUT/study.json    what was asked for              OUT/text/       vocabularies and shards
OUT/steps.json    steps of every start, measured  OUT/runs/       a folder for each start and seed
OUT/results.json  all rows                        OUT/report.html, OUT/study.png, OUT/means.json
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from bertsmith.data.reading.text import DocumentRule
from bertsmith.errors import ConfigError, InputError, RunFolderError
from bertsmith.files import claim_folder, read_json, write_json
from bertsmith.hub import commit_of
from bertsmith.journeys.source import own_text
from bertsmith.journeys.village import bundled_world
from bertsmith.model import ModelConfig, family_named
from bertsmith.model.folder import fingerprint_weights
from bertsmith.parallel import Engine, parallel_map
from bertsmith.reporting.page import FigureRow, Table
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import load_tokenizer
from bertsmith_school.looking.pairs import load_judge, read_blimp
from bertsmith_school.study.report import write_report
from bertsmith_school.study.study import Base, Row, Start, study_named
from bertsmith_school.study.tasks import StudyTask, read_tasks, village_tasks
from bertsmith_school.study.work import RunPlan, StudyText, StudyWork

VILLAGE_SEQUENCE, SEQUENCE = 64, 128


@dataclass(frozen=True)
class StudyOptions(Checked):
    """What the command line was asked for."""

    minutes: float = option(10.0, min=0.05, help="Minutes of pre-training for each seed, over all arms.")
    seeds: int = option(3, min=1, help="Runs of each arm; you can add more later in the same folder.")
    size: str = option("tiny", help="Size: tiny, mini, small or L/H such as 4/256.")
    family: str = option("bert", help="Architecture: bert, roberta, modernbert and others.")
    vocab_size: int = option(0, min=0, shown_default="by the amount of text", help="Vocabulary size.")
    jobs: int = option(1, min=1, help="Runs at a time; they share the cores.")
    engine: Engine = option("local", help="Where runs execute: local, or ray for a cluster.")
    documents: DocumentRule = option(
        "auto", help="Document: a file, a block between blank lines, or a line; auto: file if several."
    )
    encoding: str = option("auto", help="Encoding: auto, or a codec such as iso-8859-1.")

    def _check_together(self) -> None:
        family_named(self.family)


def run_study(
    name: str, text: Sequence[str], tasks: Sequence[StudyTask], out: Path, options: StudyOptions, console: Console
) -> list[Row]:
    """Makes all runs of a study that are not made yet, writes its page, and returns all rows, failed ones too.

    Without `text` they read the bundled village with its two tasks; `tasks` are what the models are scored on.
    """
    study, found = study_named(name), list(tasks)
    if not study.pretrains:
        raise ConfigError(f"study {name} scores finished models; call score_models")
    if text:
        source = own_text(text, documents=options.documents, encoding=options.encoding, leave_out=out)
    else:
        source = bundled_world(out / "text", seed=0)
        found = found or read_tasks(village_tasks(out / "text", seed=0))
    if study.needs_tags and all(task.kind != "tag" for task in found):
        raise ConfigError(f"study {name} compares features of words; give --tasks with a tagging task")
    shared = {key: getattr(options, key) for key in ("minutes", "size", "family", "vocab_size")}
    claim = {"study": name, **source.settings, **shared, "tasks": [task.describe() for task in found]}
    claim_folder(out, "study.json", claim, beside="text")
    source.tell(console)
    cut = StudyText(source, out / "text", options.vocab_size)
    length, has_tags = SEQUENCE if text else VILLAGE_SEQUENCE, any(task.kind == "tag" for task in found)
    base = Base(options.family, options.size, length, len(cut.tokenizer()), has_tags)
    arms = study.arms(base)
    starts = list(dict.fromkeys(arm.start for arm in arms))
    console.print(
        f"[bold]{study.title}[/bold]: {len(arms)} arms of {len(starts)} pre-training runs, seeds: {options.seeds}"
    )
    impossible = _impossible(cut, starts)
    starts = [start for start in starts if start not in impossible]
    work = StudyWork(study, base, cut, found, out / "runs", options.jobs)
    steps = _steps(work, starts, options, out)
    failed = [Row(arm.name, arm.group, 0, error=impossible[arm.start]) for arm in arms if arm.start in impossible]
    figures = [
        FigureRow("text", source.name, f"{base.vocab_size:,} pieces"),
        FigureRow("model", f"{base.family}, {base.size}", f"sequences of {base.sequence_length}"),
        FigureRow("minutes", f"{options.minutes:g}", "pre-training of all arms together, each seed"),
    ]
    return _finish(work, steps, failed, figures, options, out, console)


def score_models(
    models: Sequence[str],
    tasks: Sequence[StudyTask],
    out: Path,
    options: StudyOptions,
    console: Console,
    *,
    blimp: Path | None = None,
) -> list[Row]:
    """Fine-tunes finished models on every task, writes the page of the study `knowledge`, and returns all rows.

    Further models can be scored in the same folder: what is there already is not made again.

    Args:
        models: folders, or names on the Hub; the page compares the others with the first.
        blimp: a folder of BLiMP's files, to judge as well; None for none.
    """
    study = study_named("knowledge")
    if not models or not (tasks or blimp):
        raise ConfigError(
            f"study {study.name} needs model folders, and tasks: name them, and --data, --tasks or --blimp"
        )
    # 先都打开一遍：写错一个名字，不该在别的模型练了几小时之后才说
    tokenizers = {model: load_tokenizer(model) for model in dict.fromkeys(models)}
    starts = [Start((("weights", fingerprint_weights(model)[:12]),), model=model) for model in tokenizers]
    for model, tokenizer in tokenizers.items():
        ModelConfig.load(model)
        if blimp is not None:
            load_judge(model, "--blimp")
        foreign = [task.name for task in tasks if task.is_foreign(tokenizer)]
        if foreign:
            said = f"{model} is not scored on {', '.join(foreign)}: most pieces are unknown to its vocabulary"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
    if blimp is not None:
        read_blimp(blimp)
    claim = {"study": study.name, "tasks": [task.describe() for task in tasks], "blimp": blimp and str(blimp.resolve())}
    claim_folder(out, "study.json", claim)
    base = Base("", "", 0, 0, models=tuple(starts))
    console.print(f"[bold]{study.title}[/bold]: {len(starts)} models, {len(tasks)} tasks, seeds: {options.seeds}")
    commits = {model: commit_of(model) for model in tokenizers}
    work = StudyWork(study, base, None, tasks, out / "runs", options.jobs, blimp, commits)
    figures = [FigureRow(task.name, task.kind, " · ".join(task.files.values())) for task in tasks]
    return _finish(work, dict.fromkeys(starts, 0), [], figures, options, out, console)


def _finish(
    work: StudyWork,
    steps: Mapping[Start, int],
    rows: list[Row],
    figures: Sequence[FigureRow],
    options: StudyOptions,
    out: Path,
    console: Console,
) -> list[Row]:
    """Makes the runs that are not made yet, writes the page, and returns all rows, those that failed before too."""
    said: list[str] = []
    tables: list[Table] = []
    for made in _rows_by_seed(work, steps, options, console):
        # 每个种子之后都写一次：几小时的研究中途停下，也有一张完整的表可看
        rows += made
        write_json(out / "results.json", rows)
        said, tables = write_report(out, work.study, work.base, rows, figures)
    for table in tables:
        console.print(table.for_terminal())
    for sentence in said:
        console.print(f"    {escape(sentence)}", soft_wrap=True)
    failed = sum(bool(row.error) for row in rows)
    if failed:
        console.print(f"    {failed} of {len(rows)} rows failed; the same command tries them again")
    console.print(f"report: {escape(str(out / 'report.html'))}", soft_wrap=True)
    return rows


def _impossible(text: StudyText, starts: Sequence[Start]) -> dict[Start, str]:
    """Makes the shards of every start, and returns why some cannot be: too few pieces, or documents."""
    found = {}
    for start in starts:
        try:
            text.corpus(start)
        except (InputError, ConfigError) as error:
            found[start] = str(error)
    if len(found) == len(starts):
        raise InputError(found[starts[0]])
    return found


def _steps(work: StudyWork, starts: Sequence[Start], options: StudyOptions, out: Path) -> Mapping[Start, int]:
    """Returns how many steps each start takes; measured once, so that all seeds and all restarts agree."""
    path = out / "steps.json"
    known: dict[str, int] = read_json(path, dict, RunFolderError, "choose another --out") if path.exists() else {}
    missing = [start for start in starts if start.name not in known]
    if missing:
        measure = functools.partial(work.steps_within, minutes=options.minutes / len(starts))
        counts = parallel_map(measure, missing, workers=options.jobs, engine=options.engine, computes=True)
        found = dict(zip(missing, counts, strict=True))
        together = [start for start in missing if start.equal == "steps"]
        if together:
            # 同样的步数、合起来同样的时间：每步的时间与步数成反比，所以取调和平均
            equal = round(len(together) / sum(1 / found[start] for start in together))
            found |= dict.fromkeys(together, equal)
        known |= {start.name: count for start, count in found.items()}
        write_json(path, known)
    return {start: known[start.name] for start in starts}


def _rows_by_seed(
    work: StudyWork, steps: Mapping[Start, int], options: StudyOptions, console: Console
) -> Iterator[list[Row]]:
    for seed in range(options.seeds):
        plans = [RunPlan(start, seed, count) for start, count in steps.items()]
        made: list[Row] = []
        results = parallel_map(work, plans, workers=options.jobs, engine=options.engine, computes=True)
        for plan, found in zip(plans, results, strict=True):
            made += found
            figures = ", ".join(f"{name} {value:.3f}" for name, value in found[-1].figures.items())
            named, told = escape(plan.start.model or plan.start.name), found[-1].error or figures
            console.print(f"    seed {seed}: {named}: {told}", soft_wrap=True)
        yield made
