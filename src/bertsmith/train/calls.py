"""`bertsmith.pretrain`: what `bertsmith pretrain` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.kernels.layers import native_precision, on_device
from bertsmith.settings import Result, built, divided
from bertsmith.tokenizer import load_tokenizer
from bertsmith.train.choosing import chosen_recipe
from bertsmith.train.distributed import connected_ranks
from bertsmith.train.pretraining import PreTrainingResult, RunOptions
from bertsmith.train.pretraining import pretrain as run_pretraining
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.report import write_run_report
from bertsmith.train.tracking import RunListener, TrackingOptions


def pretrain(
    corpus: str | Path,
    tokenizer: str | Path,
    out: str | Path,
    *,
    recipe: str | Path | None = None,
    start_from: str | Path | None = None,
    console: Console | None = None,
    device: torch.device | str | None = None,
    listeners: Sequence[RunListener] = (),
    **settings: Any,
) -> Result[PreTrainingResult]:
    """Pre-trains a model on token shards, or resumes where an earlier call was broken off.

    The run ends with the first of `minutes`, `steps`, `tokens` and `flops`. Under torchrun the processes share it.

    Examples:
        >>> import bertsmith
        >>> run = bertsmith.pretrain("corpus", "vocabulary", "run", size="1/64", steps=4)
        >>> sorted(run.metrics)[:2]
        ['mlm_accuracy', 'mlm_loss']

    Args:
        corpus: the folder of shards.
        tokenizer: the folder of the tokenizer that made them.
        out: the run folder.
        recipe: a TOML file to begin with; settings given here win over it.
        start_from: continue training this model: a folder, or `org/name` on the Hub; the option `--from`.
        console: shows progress; silent when None.
        device: None takes the GPU where there is one.
        listeners: are told how the run goes, besides those that `track` names.
        **settings: the options of `bertsmith pretrain`, with underscores, such as `steps`, `size` and `mask_rate`.

    Returns:
        `metrics`: those of the finished model on held-out documents, and `unigram_entropy`, the loss of a model that
        knows frequencies only; `report`: the curves; `details`: recipe, tokens and seconds.

    Raises:
        ConfigError: a setting is unknown or impossible.
        RunFolderError: the folder holds a run with other settings, or cannot be written.
        CheckpointError: the corpus is damaged, or the model to start from does not fit the tokenizer.
        TrainingError: too many batches had a loss or gradient that was not finite.
        TrainingStopped: a signal asked for the end; the state is saved.
    """
    given = {**settings, **({} if start_from is None else {"from": str(start_from)})}
    chosen, options, tracking = divided(given, PreTrainingRecipe, RunOptions, TrackingOptions, command="pretrain")
    folder, followers = Path(out), built(TrackingOptions, tracking).listeners()
    if listeners:
        followers = [*(followers or ()), *listeners]
    with on_device(device), connected_ranks() as (ranks, place):
        file, precision = None if recipe is None else Path(recipe), native_precision(place)
        resolved = chosen_recipe(chosen, file, device=place, precision=precision, run=folder)
        loaded = load_tokenizer(tokenizer)
        result = run_pretraining(
            folder,
            TokenCorpus(corpus, loaded),
            loaded,
            resolved,
            built(RunOptions, options),
            console=console,
            device=place,
            ranks=ranks,
            listeners=followers,
        )
        report = folder / "report.html"
        ranks.on_first(lambda: write_run_report([folder]))
    metrics = {**result.heldout, "unigram_entropy": result.unigram_entropy}
    return Result(folder, metrics, folder / "model", report, result)
