"""`bertsmith pretrain`: BERT from token shards, on one process or many.

Its options are the settings of `train.recipe.PreTrainingRecipe`, `train.pretraining.RunOptions` and
`train.tracking.TrackingOptions`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.train.pretraining import RunOptions
    from bertsmith.train.recipe import PreTrainingRecipe
    from bertsmith.train.tracking import TrackingOptions


@declares(
    recipe="bertsmith.train.recipe.PreTrainingRecipe",
    options="bertsmith.train.pretraining.RunOptions",
    tracking="bertsmith.train.tracking.TrackingOptions",
)
def pretrain(
    corpus: Annotated[Path, typer.Option(help="Folder of shards made by `bertsmith corpus`.")],
    tokenizer: Annotated[Path, typer.Option(help="The tokenizer that made them.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command goes on where it stopped.")],
    recipe_file: Annotated[
        Path | None,
        typer.Option("--recipe", help="TOML recipe to start from, as in a run folder; options override it."),
    ] = None,
    *,
    recipe: Given[PreTrainingRecipe],
    options: Given[RunOptions],
    tracking: Given[TrackingOptions],
) -> None:
    """Pre-train a BERT on token shards; interrupted, the same command goes on.

    The run ends with the first of --minutes, --steps, --tokens and --flops. Under torchrun the processes share it.
    """
    from rich.console import Console

    from bertsmith.train.calls import pretrain as run_pretraining
    from bertsmith.train.distributed import connected_ranks
    from bertsmith.train.stopping import TrainingStopped

    settings = {**recipe.values, **options.values, **tracking.values}
    with connected_ranks() as (ranks, device):
        try:
            run = run_pretraining(
                corpus, tokenizer, out, recipe=recipe_file, console=Console(), device=device, ranks=ranks, **settings
            )
        except TrainingStopped as stopped:
            if ranks.is_first:
                print(stopped)
            return
    if ranks.is_first:
        result = run.details
        figures = ", ".join(f"{name} {value:.3f}" for name, value in result.heldout.items())
        print(f"held out: {figures}; unigram entropy {result.unigram_entropy:.3f} nats; model in {run.model_folder}")
