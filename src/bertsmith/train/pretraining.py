"""A pre-training run from its folder: begin it, go on with it after a crash, finish it.

    run/recipe.toml     every setting, resolved
    run/metrics.jsonl   figures as they came
    run/tensorboard/    the same for TensorBoard, where it is installed
    run/state/          crash-safe training state; the last ones and the best
    run/best/           the model folder with the lowest held-out loss so far
    run/model/          the finished model folder

`pretrain` is called the same way every time, on one process or many. What it finds in the folder decides where it
starts.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from rich.console import Console

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import locked, make_folder
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.budget import steps_for
from bertsmith.train.distributed import Ranks
from bertsmith.train.recipe import PreTrainingRecipe, resolve_recipe
from bertsmith.train.run import SECONDS_BETWEEN_STATES, PreTrainingResult, PreTrainingRun, RunOptions
from bertsmith.train.start import fingerprint_start
from bertsmith.train.state import KEPT_STATES


def pretrain(
    run: str | Path,
    corpus: TokenCorpus,
    tokenizer: WordPieceTokenizer,
    recipe: PreTrainingRecipe,
    *,
    console: Console | None = None,
    device: torch.device | str = "cpu",
    save_every: float = SECONDS_BETWEEN_STATES,
    keep_states: int = KEPT_STATES,
    accumulate: int = 1,
    tensorboard: bool | None = None,
    workers: int = 0,
    ranks: Ranks | None = None,
) -> PreTrainingResult:
    """Trains BERT on a corpus, or goes on where the run in the folder stopped.

    SIGINT and SIGTERM are granted after the step in progress; a second one ends the process at once.

    Args:
        run: the run folder.
        corpus: token shards made by `tokenizer`.
        tokenizer: saved into the model folder.
        recipe: as asked for; `total_steps` is found from its budgets where it has some.
        console: shows progress; silent when None.
        device: where the model lives.
        save_every: seconds between states; changes nothing but what a crash costs.
        keep_states: so many of the newest states stay, besides the best.
        accumulate: parts that the batch of a step is cut into, to save memory; changes the result by rounding alone.
        tensorboard: write the figures for TensorBoard too; None does so where its writer is installed.
        workers: 1 draws batches ahead in a process of its own, 0 between the steps.
        ranks: the processes that train together; None is this one alone.

    Raises:
        RunFolderError: the folder holds a run with other settings, or cannot be written.
        ConfigError: a setting is impossible.
        CheckpointError: the model to start from does not fit the tokenizer.
        TrainingError: too many batches had a loss or gradient that was not finite.
        TrainingStopped: a signal asked for the end; the state is saved.
    """
    ranks, run = ranks or Ranks(), Path(run)
    options = RunOptions(save_every, keep_states, accumulate, tensorboard, workers)
    if not recipe.total_steps and not recipe.has_budget:
        raise ConfigError("a run needs an end: steps, minutes, tokens or flops")
    with ExitStack() as stack:
        # 只有 0 号进程碰运行目录：上锁、读配方、写状态
        ranks.on_first(lambda: stack.enter_context(locked(make_folder(run))))
        recipe = fingerprint_start(recipe.replace(corpus=corpus.fingerprint), tokenizer)
        begun = ranks.on_first(lambda: _recipe_found(run, recipe))
        if begun is None:
            steps = recipe.total_steps
            if recipe.has_budget:
                steps = steps_for(recipe, corpus, tokenizer, device, ranks=ranks, accumulate=accumulate)
            begun = recipe.replace(total_steps=steps)
            ranks.on_first(lambda: begun.save(run))
        shown = console if console and ranks.is_first else Console(quiet=True)
        return PreTrainingRun(run, corpus, tokenizer, begun, options, shown, device, ranks).finish()


def _recipe_found(run: Path, recipe: PreTrainingRecipe) -> PreTrainingRecipe | None:
    """Returns the recipe of a run begun before, or None for a folder that is free.

    Raises:
        RunFolderError: the folder holds something else.
    """
    begun = resolve_recipe(run, recipe)
    if begun is None:
        foreign = [name for name in ("model", "metrics.jsonl", "finetune.json") if (run / name).exists()]
        if foreign:
            raise RunFolderError(f"{run}: holds {foreign[0]} of something else; choose another --out")
    return begun
