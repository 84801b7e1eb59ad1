"""`bertsmith pretrain`: masked LM + next sentence on token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pretrain(
    corpus: Annotated[Path, typer.Option(help="Folder of shards made by `bertsmith corpus`.")],
    tokenizer: Annotated[Path, typer.Option(help="The tokenizer that made them.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command goes on where it stopped.")],
    size: Annotated[str, typer.Option(help="tiny, mini, small, medium, base, large or L/H such as 6/384.")] = "mini",
    minutes: Annotated[float | None, typer.Option(min=0.05, help="Time to train.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to train, instead of minutes.")] = None,
    sequence_length: Annotated[int | None, typer.Option(min=5, help="Most pieces in a sequence.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Sequences in a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    dropout: Annotated[float | None, typer.Option(min=0.0, max=0.9, help="Dropout probability.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 or float32; default: bf16 where native.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    save_every: Annotated[float, typer.Option(min=0.0, help="Seconds between crash-safe states.")] = 20.0,
) -> None:
    """Pre-train a BERT on token shards; interrupted, the same command goes on."""
    import torch
    from rich.console import Console

    from bertsmith.data.shards import TokenCorpus
    from bertsmith.errors import ConfigError
    from bertsmith.model.layers import best_compute_dtype, best_device
    from bertsmith.tokenizer import WordPieceTokenizer
    from bertsmith.train.pretraining import pretrain as run_pretraining
    from bertsmith.train.recipe import recipe_for

    if (minutes is None) == (steps is None):
        raise ConfigError("give either --minutes or --steps")
    device = best_device()
    native = "bf16" if best_compute_dtype(device) == torch.bfloat16 else "float32"
    recipe = recipe_for(
        size,
        minutes=minutes,
        total_steps=steps,
        sequence_length=sequence_length,
        batch_size=batch_size,
        learning_rate=learning_rate,
        dropout=dropout,
        precision=precision or native,
        seed=seed,
    )
    loaded = WordPieceTokenizer.load(tokenizer)
    result = run_pretraining(
        out,
        TokenCorpus(corpus, loaded),
        loaded,
        recipe,
        console=Console(),
        device=device,
        save_every=save_every,
    )
    figures = ", ".join(f"{name} {value:.3f}" for name, value in result.heldout.items())
    print(f"held out: {figures}; unigram entropy {result.unigram_entropy:.3f} nats; model in {out / 'model'}")
