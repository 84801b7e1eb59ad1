"""The whole job behind `bertsmith finetune`: files in; model, scores, baselines, card and report out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.errors import ConfigError
from bertsmith.files import write_text
from bertsmith.finetune.baselines.scoring import add_baselines, add_tagging_baseline, check_baselines
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.datasets.reading import read_examples
from bertsmith.finetune.report.card import DataFile, model_card
from bertsmith.finetune.report.run_report import write_report
from bertsmith.finetune.run import FineTuningResult, fine_tune
from bertsmith.finetune.search import paper_grid, search
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.registry import load_task, make_task
from bertsmith.finetune.trials import RUNS, SearchResult

GRIDS = {"paper": paper_grid}
"""What makes a grid around a learning rate, by the word on the command line."""


@dataclass(frozen=True)
class Job:
    """What is asked for.

    Attributes:
        task: a name of `tasks.TASKS`.
        model: the folder to start from.
        train: the training file.
        dev: the file that chooses.
        test: the file that is scored once; None for none.
        out: the run folder.
        settings: the recipe.
        reading: how the files are read.
        options: of the task, as `make_task` takes them.
        grid: a name of `GRIDS`; None for the settings alone.
        seeds: how many.
        baselines: whether simpler models are scored as well: all of `BASELINES` for `classify`, each word's most
            frequent tag for `tag`.
    """

    task: str
    model: Path
    train: Path
    dev: Path
    out: Path
    settings: FineTuningSettings
    test: Path | None = None
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: str | None = None
    seeds: int = 1
    baselines: bool = False


def run_job(job: Job, *, console: Console | None = None, device: torch.device | str = "cpu") -> FineTuningResult:
    """Does the job, or goes on with it, and returns the result of the best run.

    Raises:
        ConfigError: an option is impossible, or not for this task.
        InputError: a file is not usable; the message names file and line.
        RunFolderError: the run folder holds something else, or cannot be written.
        CheckpointError: the model folder is not usable.
        TrainingStopped: a signal came, and the state is saved.
    """
    if job.baselines and job.task not in ("classify", "tag"):
        raise ConfigError(f"baselines are for classify and tag, not for {job.task}; leave them out")
    if job.grid is not None and job.grid not in GRIDS:
        raise ConfigError(f"search {job.grid!r} is unknown; use {', '.join(GRIDS)}")
    files = {name: path for name, path in (("train", job.train), ("dev", job.dev), ("test", job.test)) if path}
    examples = {name: read_examples(job.task, path, job.reading) for name, path in files.items()}
    train, dev, test = examples["train"], examples["dev"], examples.get("test")
    task = make_task(job.task, train, **job.options)
    if job.baselines and job.task == "classify":
        check_baselines(train, dev, test)
    searched = None
    how: dict[str, Any] = {"test": test, "console": console, "device": device}
    if job.grid is not None or job.seeds > 1:
        grid = None if job.grid is None else GRIDS[job.grid](job.settings.learning_rate)
        searched = search(task, job.model, train, dev, job.out, job.settings, grid=grid, seeds=job.seeds, **how)
        result = FineTuningResult.load(job.out / RUNS / searched.best / "result.json")
        settings = replace(job.settings, **searched.best_row.settings)
    else:
        result = fine_tune(task, job.model, train, dev, job.out, job.settings, **how)
        settings = job.settings
    # 卡片和报告先写好：基线要算很久，中途停下也不能让训练的结果没有报告
    named = {name: DataFile(path.name, len(examples[name])) for name, path in files.items()}
    _write_cards(job, result, settings, named, searched)
    write_report(job.out)
    if job.baselines:
        if job.task == "tag":
            add_tagging_baseline(job.out, task, train, dev, test)
        else:
            how = {
                "metric": task.metric,
                "balanced": bool(job.options.get("balanced")),
                "console": console,
                "device": device,
            }
            add_baselines(job.out, train, dev, test, job.model, seed=job.settings.seed, **how)
        write_report(job.out)
    return result


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
