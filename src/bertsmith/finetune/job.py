"""The whole job behind `bertsmith finetune`: files in; model, scores, baselines, card and report out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from rich.console import Console

from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import write_text
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.datasets.rows import DataSource, name_of
from bertsmith.finetune.folds import DEV_PARTS, cross_validate
from bertsmith.finetune.further import FurtherOptions, pretrain_further
from bertsmith.finetune.report.card import DataFile, model_card
from bertsmith.finetune.report.run_report import write_report
from bertsmith.finetune.run import FineTuningResult, fine_tune
from bertsmith.finetune.search import paper_grid, search
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.registry import all_tasks, load_task, task_named
from bertsmith.finetune.teaching import TeachingOptions, labelled_by_teacher
from bertsmith.finetune.trials import RUNS, SearchResult
from bertsmith.finetune.tuning import usual_space
from bertsmith.json_files import from_json, read_json
from bertsmith.model import ModelConfig
from bertsmith.options import option
from bertsmith.train.tracking import RunListener

PAPER, OPTUNA = "paper", "optuna"
"""The words of `--search`."""

TRIALS = 30
"""Settings that Optuna tries unless a number is given."""


@dataclass(frozen=True)
class ComparisonOptions:
    """What else is trained, to choose from or to compare with.

    Attributes:
        search: `paper` for the grid of appendix A.3, `optuna` for what Optuna suggests; None for the settings alone.
        trials: how many settings Optuna tries.
        seeds: how many.
        folds: parts of a cross-validation over the training file; 0 for none.
        baselines: whether simpler models are scored as well, see `Task.add_baselines`.
    """

    panel: ClassVar[str] = "Search and comparison"

    search: Literal["paper", "optuna"] | None = option(
        None,
        help="paper: the 18 runs of its grid; optuna: --trials runs. Keeps the best.",
    )
    trials: int = option(
        0, min=2, shown_default="30 with --search optuna", help="Number of settings that Optuna tries."
    )
    seeds: int = option(1, min=1, help="Number of seeds: reports mean and deviation, keeps the best run.")
    folds: int = option(0, min=2, help="Cross-validate in this many parts of the training file, then train on all.")
    baselines: bool = option(False, help="classify and tag: score simpler models as well, for the report.")

    def __post_init__(self) -> None:
        """Checks that the choices fit together."""
        if self.search not in (None, PAPER, OPTUNA):
            raise ConfigError(f"search {self.search!r} is unknown; use {PAPER}, {OPTUNA}")
        if self.trials and self.search != OPTUNA:
            raise ConfigError("--trials: say --search optuna, which makes them")
        if self.folds and (self.search is not None or self.seeds > 1):
            raise ConfigError("--folds scores one recipe: leave --search and --seeds out, or search first")


@dataclass(frozen=True)
class Job:
    """What is asked for.

    Attributes:
        task: its name.
        model: the folder to start from, or its name on the Hub.
        train: the training file, its URL, or rows in memory; None where text without labels is learned from.
        dev: the file or rows that choose; None where that text provides them, too, or with folds.
        test: the file or rows that are scored once; None for none.
        unlabelled: a folder or rows of text to learn from instead of a training file; for tasks that can.
        out: the run folder.
        settings: the recipe.
        fixed: names of settings that a search leaves as they are.
        reading: how the files are read.
        options: of the task, the fields of its `spec.options` that were chosen.
        comparison: other runs, to compare with.
        further: pre-training on the task's texts before its labels are learned.
        teaching: who teaches besides the labels.
        listeners: who is told how the runs go.
    """

    task: str
    model: Path
    train: DataSource | None
    dev: DataSource | None
    out: Path
    settings: FineTuningSettings
    test: DataSource | None = None
    unlabelled: DataSource | None = None
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    options: Mapping[str, Any] = field(default_factory=dict)
    comparison: ComparisonOptions = field(default_factory=ComparisonOptions)
    further: FurtherOptions = field(default_factory=FurtherOptions)
    teaching: TeachingOptions = field(default_factory=TeachingOptions)
    listeners: Sequence[RunListener] = ()
    fixed: tuple[str, ...] = ()


def usual_rate(task: str, model: str | Path, adapter: str | None) -> float:
    """Returns a peak learning rate to begin with: small models and fresh weights bear more.

    Args:
        task: its name.
        model: a model folder, or a name on the Hub.
        adapter: its kind; None for none.
    """
    config = ModelConfig.load(model)
    return task_named(task).spec.usual_rate(adapter, hidden_size=config.hidden_size, family=config.family.model_type)


def run_job(job: Job, *, console: Console | None = None, device: torch.device | str = "cpu") -> FineTuningResult:
    """Does the job, or goes on with it, and returns the result of the best run.

    Raises:
        ConfigError: an option is impossible, or not for this task.
        InputError: a file is not usable; the message names file and line.
        RunFolderError: the run folder holds something else, or cannot be written.
        CheckpointError: the model folder is not usable.
        TrainingStopped: a signal came, and the state is saved.
    """
    kind, compared = task_named(job.task), job.comparison
    if compared.baselines and not kind.spec.has_baselines:
        known = [name for name, task in all_tasks().items() if task.spec.has_baselines]
        raise ConfigError(f"baselines are for {' and '.join(known)}, not for {job.task}; leave them out")
    if compared.folds and (not kind.has_folds or job.unlabelled is not None):
        raise ConfigError(f"--folds needs a training file whose parts can be test files; {job.task} has none here")
    if compared.folds and job.teaching.teacher_text:
        raise ConfigError("--folds would take the teacher's labels for the truth; leave --teacher-text out")
    given = {"train": job.train, "dev": job.dev, "test": job.test}
    files = {name: source for name, source in given.items() if source is not None}
    without_dev = job.dev is None and not compared.folds
    if (job.unlabelled is None) == (job.train is None) or (job.unlabelled is None and without_dev):
        raise ConfigError("give --train and --dev, or --train and --folds, or --unlabelled, which needs neither")
    reader = kind.spec.reader
    examples = {name: reader.read(source, job.reading, task=job.task, name=name) for name, source in files.items()}
    options, teacher = dict(job.options), job.teaching.teacher
    if teacher is not None and any(one.name == "teacher" for one in fields(kind.spec.options)):
        # 句向量从老师的向量里学，不从标签的分布里学：由任务自己处理
        options["teacher"], teacher = teacher, None
    if job.unlabelled is not None:
        encoding, seed = job.reading.encoding, job.settings.seed
        pairs = kind.from_documents(job.unlabelled, options, encoding=encoding, seed=seed)
        # 自己给了 dev 的，就用自己的；文件夹里留出的那份只在没有时才用
        examples = dict(zip(("train", "dev"), pairs, strict=True)) | examples
        files = {"train": job.unlabelled, "dev": job.unlabelled} | files
    train, dev, test = examples["train"], examples.get("dev"), examples.get("test")
    task = kind.of(train, **options)
    if job.teaching.teacher_text:
        train = [*train, *labelled_by_teacher(task, job.teaching, job.reading.encoding)]
    if compared.baselines:
        task.check_baselines(train, *_dev_and_test(dev, test))
    start = job.model
    if job.further.adapt:
        start = pretrain_further(
            job.model, train, job.out, job.further, seed=job.settings.seed, console=console, device=device
        )
    searched, settings = None, job.settings
    how: dict[str, Any] = {"test": test, "teacher": teacher, "console": console, "device": device}
    how["listeners"] = job.listeners
    if compared.folds:
        searched = cross_validate(task, start, train, dev, job.out, settings, folds=compared.folds, **how)
    elif compared.search is not None or compared.seeds > 1:
        assert dev is not None
        if compared.search == PAPER:
            how["grid"] = paper_grid(settings.learning_rate)
        elif compared.search == OPTUNA:
            space = usual_space(settings.learning_rate, fixed=job.fixed)
            # 适配器冻结了编码器：逐层的学习率无从谈起
            how["space"] = {n: c for n, c in space.items() if n != "layer_decay"} if settings.adapter else space
            how["trials"] = compared.trials or TRIALS
        searched = search(task, start, train, dev, job.out, settings, seeds=compared.seeds, **how)
    else:
        assert dev is not None
        result = fine_tune(task, start, train, dev, job.out, settings, **how)
    if searched is not None:
        place = job.out / RUNS / searched.best
        result = FineTuningResult.load(place / "result.json")
        asked = read_json(place / "finetune.json", dict[str, Any], RunFolderError, "choose another --out")
        settings = from_json(FineTuningSettings, asked["settings"])
    # 卡片和报告先写好：基线要算很久，中途停下也不能让训练的结果没有报告
    named = {name: DataFile(name_of(source), len(examples[name])) for name, source in files.items()}
    if dev is None:
        # 没有 dev 文件：训练文件自己的十分之一挑轮次
        held = len(train) // DEV_PARTS
        named |= {"train": DataFile(named["train"].name, len(train) - held)}
        named |= {"dev": DataFile(f"a tenth of {named['train'].name}", held)}
    _write_cards(job, result, settings, named, searched)
    write_report(job.out)
    if compared.baselines:
        task.add_baselines(
            job.out,
            train,
            *_dev_and_test(dev, test),
            model_folder=start,
            seed=job.settings.seed,
            console=console,
            device=device,
        )
        write_report(job.out)
    return result


def _dev_and_test(dev: Sequence[Any] | None, test: Sequence[Any] | None) -> tuple[Sequence[Any], Sequence[Any] | None]:
    """Returns the files that baselines are chosen and scored by.

    Raises:
        ConfigError: there is no dev file.
    """
    if dev is None:
        raise ConfigError("--baselines are chosen on the dev file; give --dev")
    return dev, test


def _write_cards(
    job: Job,
    result: FineTuningResult,
    settings: FineTuningSettings,
    files: Mapping[str, DataFile],
    searched: SearchResult | None,
) -> None:
    """Writes the README of the model, and of the adapter, where there is none yet."""
    # 适配器没有自己的词表和结构：它的卡片按主干来写
    whose: dict[Path, dict[str, Any]] = {
        job.out / "model": {"model_folder": job.out / "model"},
        job.out / "adapter": {"model_folder": job.model, "adapter": job.out / "adapter"},
    }
    for folder, described in whose.items():
        # 同样的文件夹只会得到同样的卡片：已有的可能是用户改过的，不覆盖
        if folder.is_dir() and not (folder / "README.md").exists():
            task, _ = load_task(folder)
            base = str(job.model)
            card = model_card(result, task, settings, base=base, files=files, searched=searched, **described)
            write_text(folder / "README.md", card)
