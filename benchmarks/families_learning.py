"""What the families learn from the same time and the same text, and what it is worth on a task.

Every family is pre-trained as `bertsmith pretrain --family F` does it, with its own default recipe and objective, from
random weights, on the English corpus with one WordPiece vocabulary of 8,192 pieces learned from it. All have the same
processor time on one thread; the number of steps is worked out beforehand from the processor time of a few of them, so
that other work on the machine takes nothing away from one side. The finished models fill one set of single-piece masks
(for ELECTRA the generator does), and are fine-tuned on SST-2 as `bertsmith finetune classify` does it.

What was measured is kept in `--results`, so the script resumes where it was stopped.

    python benchmarks/families_learning.py --size mini --minutes 10 --seeds 3
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.finetune.job import usual_rate
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import task_named
from bertsmith.kernels.layers import native_precision
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.choosing import recipe_for
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import pretrain
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import make_trainer, open_stream
from finetune import SETTINGS, Setting, Split
from measured import add_options, results_of
from objectives import figures_on_pieces, prepare

FAMILIES = ("bert", "roberta", "distilbert", "albert", "electra", "modernbert")
TIMED, WARMED = 12, 4
QUARTERS = (0.25, 0.5, 0.75)


def main() -> None:
    """Trains what is not trained yet, and prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES))
    parser.add_argument("--size", default="mini")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=1, help="of fine-tuning; 0 leaves it out")
    parser.add_argument("--epochs", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--precision", choices=("float32", "bf16"), default=native_precision("cpu"))
    parser.add_argument("--out", type=Path, default=Path("runs/families"))
    options = parser.parse_args()
    if options.quick:
        options.families, options.size, options.minutes, options.seeds = ["bert"], "tiny", 0.05, 0
        options.out = Path("runs/bench-quick/families_learning")
    torch.set_num_threads(options.threads)
    corpus, tokenizer = prepare(options.out, quick=options.quick)
    results = results_of("families_learning", options)
    (split,) = SETTINGS["sst2"].splits()
    for family in options.families:
        what = {"family": family, "size": options.size, "minutes": options.minutes, "precision": options.precision}
        run = options.out / f"{family}-{options.size}-{options.minutes:g}-{options.precision}"
        recipe = recipe_for(options.size, family=family, precision=options.precision)
        pretraining = partial(pretrained, run, recipe, corpus, tokenizer, options.minutes)
        print(results.get({"what": "pre-training", **what}, pretraining))
        for seed in range(options.seeds):
            asked = {"what": "sst2", **what, "seed": seed, "epochs": options.epochs}
            print(results.get(asked, partial(fine_tuned, run / "model", SETTINGS["sst2"], split, seed, options.epochs)))


def pretrained(
    run: Path, recipe: PreTrainingRecipe, corpus: TokenCorpus, tokenizer: WordPieceTokenizer, minutes: float
) -> dict[str, float]:
    """Pre-trains for so many minutes of processor time and measures what came out."""
    if not (run / "recipe.toml").exists():
        recipe = recipe.changed(steps=steps_within(60 * minutes, recipe, corpus, tokenizer))
    else:
        recipe = PreTrainingRecipe.load(run)
    result = pretrain(run, corpus, tokenizer, recipe, console=Console(), listeners=())
    part = run / "model" / recipe.build_objective().folders[-1]
    curve = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "heldout"]
    steps = result.recipe.trainer.total_steps
    at = {f"loss_at_{share:.0%}": _loss_at(curve, share * steps) for share in QUARTERS}
    return {
        "unigram_entropy": corpus.unigram_entropy,
        "steps": steps,
        "tokens": result.tokens_seen,
        **figures_on_pieces(part, corpus, tokenizer),
        **at,
    }


def _loss_at(curve: list[dict[str, float]], step: float) -> float:
    return max((row for row in curve if row["step"] <= step), key=lambda row: row["step"])["mlm_loss"]


def steps_within(seconds: float, recipe: PreTrainingRecipe, corpus: TokenCorpus, tokenizer: WordPieceTokenizer) -> int:
    """Returns the steps that fit into some processor time."""
    trainer = make_trainer(recipe.changed(steps=TIMED), corpus, tokenizer)
    stream = open_stream(recipe, corpus, tokenizer)
    times = []
    for _ in range(TIMED):
        begun = time.process_time()
        trainer.train_batch(next(stream))
        times.append(time.process_time() - begun)
    return int(seconds / statistics.median(times[WARMED:]))


def fine_tuned(model: Path, setting: Setting, split: Split, seed: int, epochs: int) -> dict[str, float]:
    """Fine-tunes with everything as it comes; returns the figures on test of the epoch that dev chose."""
    rate = usual_rate(setting.task, model, None)
    settings = FineTuningSettings(epochs=epochs, learning_rate=rate, seed=seed)
    with tempfile.TemporaryDirectory() as out:
        result = fine_tune(
            task_named(setting.task).of(split.train), model, split.train, split.dev, out, settings, test=split.test
        )
    assert result.test is not None
    return {**result.test.metrics, "epoch": result.epoch, "rate": rate}


if __name__ == "__main__":
    main()
