"""How long until as good a model? Ours against a `transformers` loop, from random weights, on real text.

`learners.py` says who learns and how; every clock runs while a model is built and batches are drawn and learned, and
stands still while it is measured. The peer's batch size and rate are searched for: from a batch of 16 and its usual
rate, halving and doubling either until the best has a worse neighbour on each side. With the best, every peer is run
with `--seeds`; its median loss is the loss to reach. Ours is `bertsmith pretrain --family modernbert` with its own
recipe, given twice the minutes until the median of as many seeds is as low; then the gap to the time that was too short
is halved three times. A row says how many seconds of the peer's best time ours needed, at most a sixteenth too many.

Each run takes its minutes, a search an hour or more.

    python benchmarks/time_to_loss.py --minutes 10
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from bertsmith.kernels.layers import native_precision
from learners import PEER_BATCH, RATES, Learner, Setting, begun_within, ours, setting_of, theirs
from measured import Results, Row, add_options, results_of
from side_by_side import EXPERT, OURS, PEOPLE, rounds_of
from tables import print_table

BATCHES, RATE_LIMITS = (2, 256), (1.25e-4, 1.6e-2)
"""Limits of the search."""
OUR_FAMILY = "modernbert"
FIRST_SHARE, HALVINGS = 1 / 32, 3
"""Part of the peer's time that ours is given first, and how often the last doubling of it is halved."""


def main() -> None:
    """Runs what is not in the results yet, then prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--minutes", type=float, default=10.0, help="what a peer is given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", choices=("float32", "bf16"), default=native_precision("cpu"))
    parser.add_argument("--sides", choices=(PEOPLE, EXPERT), nargs="+", default=[EXPERT, PEOPLE])
    parser.add_argument("--out", type=Path, default=Path("runs/families"), help="vocabulary and shards")
    options = parser.parse_args()
    if options.quick:
        options.size, options.minutes, options.seeds, options.sides = "tiny", 0.02, 1, [EXPERT]
        options.out = Path("runs/bench-quick/time_to_loss")
    torch.set_num_threads(options.threads)
    setting = setting_of(options.size, options.precision, options.out, quick=options.quick)
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
        begin = partial(theirs, setting, side, seed, batch_size=batch, rate=rate)
        return runs.get(what, partial(run_of, begin, options.minutes * 60))

    first = (PEER_BATCH, RATES[side])
    batch, rate = first if options.quick else best_recipe(first, lambda batch, rate: peer(batch, rate, 0)["loss"])
    best = [peer(batch, rate, seed) for seed in range(options.seeds)]
    target = _median(best)

    def our_runs(share: float) -> list[Row]:
        minutes = round(share * options.minutes, 4)
        what = {**common, "side": OURS, "minutes": minutes}
        begin = partial(ours, setting, OUR_FAMILY)
        return [
            runs.get({**what, "seed": seed}, partial(run_of, partial(begin, seed), minutes * 60))
            for seed in range(options.seeds)
        ]

    def reached(share: float) -> bool:
        return options.quick or _median(our_runs(share)) <= target

    rows = our_runs(least_share(reached))
    figures = {"loss": target, "loss_ours": _median(rows), "batch": batch, "rate": rate}
    figures["reached"] = figures["loss_ours"] <= target
    rounds = {OURS: [row["seconds"] for row in rows], side: [row["seconds"] for row in best]}
    return rounds_of(rounds, peers={side: f"transformers {transformers.__version__}"}, figures=figures)


def least_share(reached: Callable[[float], bool]) -> float:
    """Returns the least part of the peer's time, of those tried, that is enough; 1 where less is not.

    Args:
        reached: whether a part is enough.
    """
    enough = FIRST_SHARE
    while enough < 1 and not reached(enough):
        enough *= 2
    too_little = enough / 2
    for _ in range(HALVINGS if enough > FIRST_SHARE else 0):
        middle = (too_little + enough) / 2
        if reached(middle):
            enough = middle
        else:
            too_little = middle
    return enough


def _median(rows: Sequence[Row]) -> float:
    return float(statistics.median(row["loss"] for row in rows))


def best_recipe(first: tuple[int, float], loss_of: Callable[[int, float], float]) -> tuple[int, float]:
    """Walks from neighbour to neighbour in batch size and rate until none is better.

    Args:
        first: where the walk begins.
        loss_of: the held-out loss with a batch size and a rate.
    """
    place = first
    while True:
        batch, rate = place
        around = [(batch // 2, rate), (batch * 2, rate), (batch, rate / 2), (batch, rate * 2)]
        within = [(b, r) for b, r in around if BATCHES[0] <= b <= BATCHES[1] and RATE_LIMITS[0] <= r <= RATE_LIMITS[1]]
        best = min([place, *within], key=lambda each: loss_of(*each))
        if best == place:
            return place
        place = best


def run_of(begin: Callable[[int], Learner], seconds: float) -> dict[str, float]:
    """Builds and trains for about so many seconds, and measures at the end.

    Args:
        begin: makes the learner for a schedule of so many steps.
        seconds: time to build and to train.
    """
    steps, learner, built = begun_within(seconds, begin)
    begun = time.perf_counter()
    tokens = sum(learner.step() for _ in range(steps))
    taken = built + time.perf_counter() - begun
    return {"seconds": taken, "steps": steps, "tokens": tokens, "loss": learner.measure()[0]}


if __name__ == "__main__":
    main()
