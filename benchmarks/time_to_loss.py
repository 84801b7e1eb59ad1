"""How long until as good a model? Ours against a `transformers` loop, from random weights, on real text.

All sides train a masked LM of the same size on the same sequences of 128 pieces and are measured on the same held-out
masks; every clock runs while batches are drawn and learned, and stands still while models are built and measured.

- people: `BertForMaskedLM` as the library initialises it, logits for every position, `torch.optim.AdamW`
- expert: logits at masked positions alone, the output bias at the pieces' log frequencies as ours has it, fused AdamW

Both have linear warm-up and decay over the time they are given, bf16 autocast where ours is bf16. Batch size and rate
are searched for: from a batch of 16 and 1e-3, halving and doubling either until the best has a worse neighbour on each
side. With the best, every peer is run with `--seeds`; its median loss is the loss to reach. Ours is `bertsmith
pretrain`'s own recipe for the size, given ever more minutes until the median of as many seeds is as low. A row says how
many seconds of the peer's best time ours needed.

Each run takes its minutes, a search an hour or more.

    python benchmarks/time_to_loss.py --minutes 10 --precision bf16
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.build import build_corpus
from bertsmith.data.corpus.options import CorpusOptions
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.finding import find_text_files
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.stream import PreTrainingStream
from bertsmith.kernels.layers import native_precision
from bertsmith.model import BertConfig
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.recipe import PreTrainingRecipe, recipe_for
from bertsmith.train.start import heldout_set, make_trainer, open_stream
from measured import Results, Row, add_options, results_of
from real_data import DATA
from side_by_side import EXPERT, OURS, PEOPLE, rounds_of
from tables import print_table

WARMUP_SHARE = 0.1
FIRST = (16, 1e-3)
BATCHES, RATES = (2, 256), (1.25e-4, 1.6e-2)
"""Limits of the search."""
OUR_SHARES = (0.03, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
"""Parts of the peer's time that ours is given, one after the other."""
MEASURED_STEPS = 5


@dataclass(frozen=True)
class Setting:
    """What both sides train on."""

    size: str
    corpus: TokenCorpus
    tokenizer: WordPieceTokenizer
    heldout: list[PreTrainingBatch]


def main() -> None:
    """Runs what is not in the results yet, then prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--minutes", type=float, default=10.0, help="what a peer is given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", choices=("float32", "bf16"), default=native_precision("cpu"))
    parser.add_argument("--sides", choices=(PEOPLE, EXPERT), nargs="+", default=[EXPERT, PEOPLE])
    parser.add_argument("--shards", type=Path, default=Path("runs/time_to_loss/shards"))
    options = parser.parse_args()
    if options.quick:
        options.size, options.minutes, options.seeds, options.sides = "tiny", 0.02, 1, [EXPERT]
    torch.set_num_threads(options.threads)
    setting = prepare(options.size, options.shards)
    runs, results = results_of("time_to_loss_runs", options), results_of("time_to_loss", options)
    rows = []
    for side in options.sides:
        name = f"{options.size}, {options.precision}, {options.minutes:g} minutes of the {side}"
        compare = partial(time_to_loss, setting, side, runs, options)
        rows.append(results.get({"name": name, "seeds": options.seeds}, compare))
    print_table(rows)


def time_to_loss(setting: Setting, side: str, runs: Results, options: argparse.Namespace) -> dict[str, Any]:
    """Searches for the peer's best, and for the time in which ours is as good."""
    common = {"size": options.size, "precision": options.precision}

    def peer(batch: int, rate: float, seed: int) -> Row:
        what = {**common, "side": side, "batch": batch, "rate": rate, "minutes": options.minutes, "seed": seed}
        seconds = options.minutes * 60
        return runs.get(what, partial(peer_run, setting, side, options.precision, batch, rate, seconds, seed))

    batch, rate = FIRST if options.quick else best_recipe(lambda batch, rate: peer(batch, rate, 0)["loss"])
    best = [peer(batch, rate, seed) for seed in range(options.seeds)]
    target = statistics.median(row["loss"] for row in best)
    for share in OUR_SHARES:
        minutes = round(share * options.minutes, 3)
        what = {**common, "side": OURS, "minutes": minutes}
        ours = [
            runs.get({**what, "seed": seed}, partial(our_run, setting, options.precision, minutes * 60, seed))
            for seed in range(options.seeds)
        ]
        reached = statistics.median(row["loss"] for row in ours)
        if reached <= target or options.quick:
            break
    figures = {"loss": target, "loss_ours": reached, "batch": batch, "rate": rate, "reached": reached <= target}
    rounds = {OURS: [row["seconds"] for row in ours], side: [row["seconds"] for row in best]}
    return rounds_of(rounds, peers={side: f"transformers {transformers.__version__}"}, figures=figures)


def best_recipe(loss_of: Callable[[int, float], float]) -> tuple[int, float]:
    """Walks from neighbour to neighbour in batch size and rate until none is better.

    Args:
        loss_of: the held-out loss with a batch size and a rate.
    """
    place = FIRST
    while True:
        batch, rate = place
        around = [(batch // 2, rate), (batch * 2, rate), (batch, rate / 2), (batch, rate * 2)]
        within = [(b, r) for b, r in around if BATCHES[0] <= b <= BATCHES[1] and RATES[0] <= r <= RATES[1]]
        best = min([place, *within], key=lambda each: loss_of(*each))
        if best == place:
            return place
        place = best


def prepare(size: str, folder: Path) -> Setting:
    """Tokenizes the English corpus with the published vocabulary, once."""
    tokenizer = WordPieceTokenizer.load(DATA / "vocab-uncased-30522.txt")
    files = find_text_files([str(DATA / "corpus")])
    corpus = build_corpus(files, tokenizer, folder, CorpusOptions(keep_duplicates=True))
    return Setting(size, corpus, tokenizer, heldout_set(our_recipe(size, "float32", 1), corpus, tokenizer))


def our_recipe(size: str, precision: str, steps: int, seed: int = 0) -> PreTrainingRecipe:
    """The recipe that `bertsmith pretrain --size SIZE --objective mlm` resolves to."""
    return recipe_for(size, objective="mlm", precision=precision, steps=steps, seed=seed)


def our_run(setting: Setting, precision: str, seconds: float, seed: int) -> dict[str, float]:
    """Trains with our recipe for about so many seconds, and measures at the end."""

    def begin(steps: int) -> tuple[Any, PreTrainingStream]:
        recipe = our_recipe(setting.size, precision, steps, seed)
        trainer = make_trainer(recipe, setting.corpus, setting.tokenizer)
        return trainer, open_stream(recipe, setting.corpus, setting.tokenizer)

    trainer, stream = begin(10**6)
    steps = steps_within(seconds, lambda: trainer.train_batch(next(stream)))
    trainer, stream = begin(steps)
    begun = time.perf_counter()
    tokens = 0
    for _ in range(steps):
        batch = next(stream)
        tokens += batch.tokens.num_tokens
        trainer.train_batch(batch)
    taken = time.perf_counter() - begun
    return {"seconds": taken, "steps": steps, "tokens": tokens, "loss": trainer.evaluate(setting.heldout)["mlm_loss"]}


def peer_run(
    setting: Setting, side: str, precision: str, batch_size: int, rate: float, seconds: float, seed: int
) -> dict[str, float]:
    """Trains a peer's loop for about so many seconds, and measures at the end."""

    def begin(steps: int) -> tuple[Callable[[], int], transformers.BertForMaskedLM]:
        torch.manual_seed(seed)
        model = transformers.BertForMaskedLM(peer_config(setting))
        if side == EXPERT:
            with torch.no_grad():
                model.cls.predictions.bias.copy_(log_frequencies(setting))
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=side == EXPERT)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(WARMUP_SHARE * steps), steps)
        recipe = our_recipe(setting.size, "float32", 1, seed).changed(batch_size=batch_size)
        stream = open_stream(recipe, setting.corpus, setting.tokenizer)

        def step() -> int:
            batch = next(stream)
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = model(**padded(batch)).loss if side == PEOPLE else gathered_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            return batch.tokens.num_tokens

        return step, model

    steps = steps_within(seconds, begin(10**6)[0])
    step, model = begin(steps)
    begun = time.perf_counter()
    tokens = sum(step() for _ in range(steps))
    taken = time.perf_counter() - begun
    return {"seconds": taken, "steps": steps, "tokens": tokens, "loss": peer_loss(model, setting.heldout)}


def log_frequencies(setting: Setting) -> torch.Tensor:
    """Returns the log of how frequent each piece is, [V], as our models start their output bias."""
    counts = torch.ones(setting.tokenizer.vocab_size)
    counts[: len(setting.corpus.piece_counts)] += torch.from_numpy(setting.corpus.piece_counts)
    return (counts / counts.sum()).log()


def gathered_loss(model: transformers.BertForMaskedLM, batch: PreTrainingBatch) -> torch.Tensor:
    """Returns the masked-LM loss from the masked positions alone."""
    tokens = batch.tokens
    full = bool(tokens.padding_mask.all())
    states = model.bert(
        input_ids=tokens.pad(tokens.input_ids), attention_mask=None if full else tokens.padding_mask.long()
    ).last_hidden_state
    # 补齐后的矩形里，真词元的行号与不补齐时的次序一一对应
    real = tokens.padding_mask.flatten().nonzero().flatten()
    logits = model.cls(states.flatten(0, 1)[real[batch.masked_positions]])
    return torch.nn.functional.cross_entropy(logits.float(), batch.masked_labels)


def steps_within(seconds: float, step: Callable[[], object]) -> int:
    """Times a few steps, after two to warm up, and returns how many fit."""
    step()
    step()
    begun = time.perf_counter()
    for _ in range(MEASURED_STEPS):
        step()
    return max(1, round(seconds * MEASURED_STEPS / (time.perf_counter() - begun)))


def peer_config(setting: Setting) -> transformers.BertConfig:
    """The same shape."""
    config = BertConfig.named(setting.size, vocab_size=setting.tokenizer.vocab_size, max_position_embeddings=128)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return transformers.BertConfig(max_position_embeddings=128, **{name: getattr(config, name) for name in names})


def padded(batch: PreTrainingBatch) -> dict[str, torch.Tensor]:
    """Lays a batch out as `transformers` takes it."""
    tokens: RaggedBatch = batch.tokens
    labels = torch.full((tokens.num_tokens,), -100).index_copy(0, batch.masked_positions, batch.masked_labels)
    return {
        "input_ids": tokens.pad(tokens.input_ids),
        "attention_mask": tokens.padding_mask.long(),
        "token_type_ids": tokens.pad(tokens.token_type_ids),
        "labels": tokens.pad(labels, fill=-100),
    }


@torch.no_grad()
def peer_loss(model: transformers.BertForMaskedLM, heldout: list[PreTrainingBatch]) -> float:
    """The mean loss over all held-out masks, in float32."""
    model.eval()
    total = sum(float(model(**padded(batch)).loss) * len(batch.masked_labels) for batch in heldout)
    return total / sum(len(batch.masked_labels) for batch in heldout)


if __name__ == "__main__":
    main()
