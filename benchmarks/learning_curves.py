"""Held-out loss over time, from nothing: ours beside `transformers`, each the whole time with its own schedule.

All sides learn from 10 MB of English with the same 8,192 pieces; `learners.py` says who they are. The clock runs while
a model is built and batches are drawn and learned, and stands still while it is measured.

    python benchmarks/learning_curves.py --minutes 10 --seeds 3 --picture docs/images/learning-curves.svg
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure

from bertsmith.kernels.layers import native_precision
from learners import Setting, begun_within, ours, setting_of, theirs
from measured import Row, add_options, results_of
from side_by_side import EXPERT, OURS, PEOPLE

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Parts of the run after which the model is measured."""


@dataclass(frozen=True)
class Contender:
    """One curve."""

    side: str
    family: str

    @property
    def title(self) -> str:
        """What the picture calls it."""
        library = "bertsmith" if self.side == OURS else f"transformers ({self.side})"
        return f"{library}, {self.family}"


CONTENDERS = (
    Contender(OURS, "modernbert"),
    Contender(EXPERT, "modernbert"),
    Contender(OURS, "bert"),
    Contender(PEOPLE, "bert"),
)
COLOURS = ("#0b6e4f", "#c8553d", "#5fb49c", "#9a9a9a")


def main() -> None:
    """Runs what is not in the results yet, and draws the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", choices=("float32", "bf16"), default=native_precision("cpu"))
    parser.add_argument("--out", type=Path, default=Path("runs/families"), help="vocabulary and shards")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.size, options.minutes, options.seeds = "tiny", 0.02, 1
        options.out = Path("runs/bench-quick/learning_curves")
    torch.set_num_threads(options.threads)
    setting = setting_of(options.size, options.precision, options.out, quick=options.quick)
    results = results_of("learning_curves", options)
    rows: list[Row] = []
    for seed in range(options.seeds):
        for each in CONTENDERS:
            what = {"name": f"{each.side}: {each.family}", "size": options.size, "minutes": options.minutes}
            what |= {"precision": options.precision, "seed": seed}
            rows.append(results.get(what, partial(curve_of, setting, each, options.minutes, seed)))
            print(each.title, seed, rows[-1]["curve"][-1])
            if options.picture:
                draw(rows, setting.corpus.unigram_entropy, options.picture)


def curve_of(setting: Setting, contender: Contender, minutes: float, seed: int) -> Row:
    """Builds and trains in the time that is given, and measures on the way."""
    own = contender.side == OURS
    begin = partial(ours, setting, contender.family, seed) if own else partial(theirs, setting, contender.side, seed)
    steps, learner, seconds = begun_within(60 * minutes, begin)
    marks = {max(1, round(share * steps)) for share in SHARES}
    curve: list[tuple[float, int, float, float]] = []
    tokens = 0
    for step in range(1, steps + 1):
        begun = time.perf_counter()
        tokens += learner.step()
        seconds += time.perf_counter() - begun
        if step in marks:
            curve.append((round(seconds, 1), tokens, *learner.measure()))
    return {"steps": steps, "curve": curve, "mlm_loss": curve[-1][2], "mlm_accuracy": curve[-1][3], "tokens": tokens}


def draw(rows: Sequence[Row], entropy: float, out: Path) -> None:
    """Draws the curves that are there; of several seeds, the mean."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for each, colour in zip(CONTENDERS, COLOURS, strict=True):
        curves = [row["curve"] for row in rows if row["name"] == f"{each.side}: {each.family}"]
        if not curves:
            continue
        points = [
            [sum(values) / len(values) for values in zip(*marks, strict=True)] for marks in zip(*curves, strict=True)
        ]
        minutes, losses = [point[0] / 60 for point in points], [point[2] for point in points]
        axes.plot(minutes, losses, color=colour, linewidth=2, label=f"{each.title}: {losses[-1]:.2f}")
    axes.axhline(entropy, color="#555555", linestyle=":", label=f"how frequent pieces are, no more: {entropy:.2f}")
    axes.set_xlabel("minutes of training on two cores")
    axes.set_ylabel("held-out loss, nats")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out)


if __name__ == "__main__":
    main()
