"""`bertsmith pretrain`: BERT from token shards, on one process or many."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer


def pretrain(
    corpus: Annotated[Path, typer.Option(help="Folder of shards made by `bertsmith corpus`.")],
    tokenizer: Annotated[Path, typer.Option(help="The tokenizer that made them.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command goes on where it stopped.")],
    size: Annotated[
        str | None, typer.Option(help="tiny, mini, small, medium, base, large or L/H such as 6/384; default: mini.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="Go on training this model folder, instead of a fresh --size.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.05, help="End: time to train.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="End: steps.")] = None,
    tokens: Annotated[float | None, typer.Option(min=1, help="End: tokens to train on, such as 1e9.")] = None,
    flops: Annotated[float | None, typer.Option(min=1, help="End: operations to spend, such as 1e18.")] = None,
    sequence_length: Annotated[int | None, typer.Option(min=5, help="Most pieces in a sequence.")] = None,
    phases: Annotated[
        str | None, typer.Option(help="LENGTH:SHARE,... of the steps; 128:0.9,512:0.1 is the paper's.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Sequences in a step, over all processes.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=5, help="Tokens in a step, instead of sequences.")] = None,
    objective: Annotated[str | None, typer.Option(help="mlm+nsp (the paper), mlm, mlm+sop, ltr or ltr+nsp.")] = None,
    masking: Annotated[str | None, typer.Option(help="What is hidden: token, whole-word or span.")] = None,
    mask_rate: Annotated[float | None, typer.Option(help="Share of the pieces to predict; default 0.15.")] = None,
    mask_share: Annotated[float | None, typer.Option(help="Share of these that becomes [MASK]; default 0.8.")] = None,
    random_share: Annotated[
        float | None, typer.Option(help="Share of these that becomes a random piece; default 0.1.")
    ] = None,
    max_predictions_per_seq: Annotated[
        int | None, typer.Option(min=0, help="Most pieces to predict in a sequence; 0: as the rate says.")
    ] = None,
    static_masking: Annotated[
        int | None, typer.Option(min=0, help="Repeat the masks every so many epochs; 0: always new ones.")
    ] = None,
    packing: Annotated[
        str | None, typer.Option(help="Without pairs: sentences of one document, or full across documents.")
    ] = None,
    pairing: Annotated[str | None, typer.Option(help="Next-sentence pairs: balanced, or google as released.")] = None,
    accumulate: Annotated[int, typer.Option(min=1, help="Compute a step in so many parts, to save memory.")] = 1,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw, or lamb for batches of thousands.")] = None,
    schedule: Annotated[str | None, typer.Option(help="After the warm-up: linear, cosine or trapezoid.")] = None,
    dropout: Annotated[float | None, typer.Option(min=0.0, max=0.9, help="Dropout probability.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 or float32; default: bf16 where native.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    skips_in_a_row: Annotated[
        int | None, typer.Option(min=1, help="Give up after so many batches in a row without a finite loss.")
    ] = None,
    skipped_share: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Give up after this share of all steps was skipped.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, max=1, help="Processes that draw batches ahead; default: 1 with a GPU, else 0.")
    ] = None,
    save_every: Annotated[float, typer.Option(min=0.0, help="Seconds between crash-safe states.")] = 20.0,
    keep_states: Annotated[int, typer.Option(min=1, help="So many states stay, besides the best.")] = 2,
    tensorboard: Annotated[
        bool | None, typer.Option(help="Write curves for TensorBoard; default: where tensorboardX is installed.")
    ] = None,
) -> None:
    """Pre-train a BERT on token shards; interrupted, the same command goes on.

    The run ends with the first of --minutes, --steps, --tokens and --flops. Under torchrun the processes share it.
    """
    from rich.console import Console

    from bertsmith.data.corpus.shards import TokenCorpus
    from bertsmith.errors import ConfigError
    from bertsmith.kernels.layers import native_precision
    from bertsmith.tokenizer import WordPieceTokenizer
    from bertsmith.train.distributed import connected_ranks
    from bertsmith.train.pretraining import pretrain as run_pretraining
    from bertsmith.train.recipe import parse_phases, recipe_for, recipe_to_continue
    from bertsmith.train.stopping import TrainingStopped

    if all(end is None for end in (minutes, steps, tokens, flops)):
        raise ConfigError("give an end: --minutes, --steps, --tokens or --flops")
    # typer 认得 inf 和 nan 是浮点数：它们不是词元数
    if tokens is not None and not math.isfinite(tokens):
        raise ConfigError(f"--tokens {tokens} is no number of tokens; give one such as 1e9, or another end")
    if size is not None and start is not None:
        raise ConfigError("--from brings its own size; leave out --size")
    if batch_size is not None and batch_tokens is not None:
        raise ConfigError("--batch-size and --batch-tokens both say how much is in a batch; leave out one")
    choosing = {
        "--mask-rate": mask_rate,
        "--mask-share": mask_share,
        "--random-share": random_share,
        "--max-predictions-per-seq": max_predictions_per_seq,
        "--static-masking": static_masking,
    }
    given = [option for option, value in choosing.items() if value is not None]
    if given and objective is not None and objective.startswith("ltr"):
        raise ConfigError(f"{given[0]} is for masks, and --objective {objective} has none; leave it out")
    with connected_ranks() as (ranks, device):
        settings = {
            "minutes": minutes,
            "total_steps": steps,
            "tokens": None if tokens is None else int(tokens),
            "flops": flops,
            "sequence_length": sequence_length,
            "phases": None if phases is None else parse_phases(phases),
            "batch_size": batch_size,
            "batch_tokens": batch_tokens,
            "objective": objective,
            "masking": masking,
            "mask_rate": mask_rate,
            "mask_share": mask_share,
            "random_share": random_share,
            "max_predictions_per_seq": max_predictions_per_seq,
            "static_masking": static_masking,
            "packing": packing,
            "pairing": pairing,
            "learning_rate": learning_rate,
            "optimizer": optimizer,
            "schedule": schedule,
            "dropout": dropout,
            "precision": precision or native_precision(device),
            "seed": seed,
            "skips_in_a_row": skips_in_a_row,
            "skipped_share": skipped_share,
        }
        recipe = recipe_for(size or "mini", **settings) if start is None else recipe_to_continue(start, **settings)
        loaded = WordPieceTokenizer.load(tokenizer)
        try:
            result = run_pretraining(
                out,
                TokenCorpus(corpus, loaded),
                loaded,
                recipe,
                console=Console(),
                device=device,
                save_every=save_every,
                keep_states=keep_states,
                accumulate=accumulate,
                tensorboard=tensorboard,
                workers=int(device.type == "cuda") if workers is None else workers,
                ranks=ranks,
            )
        except TrainingStopped as stopped:
            if ranks.is_first:
                print(stopped)
            return
    if ranks.is_first:
        figures = ", ".join(f"{name} {value:.3f}" for name, value in result.heldout.items())
        print(f"held out: {figures}; unigram entropy {result.unigram_entropy:.3f} nats; model in {out / 'model'}")
