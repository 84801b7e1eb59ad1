"""Held-out loss over time, from nothing: ours beside `transformers`, each the whole time with its own schedule.

All sides learn from 10 MB of English with the same 8,192 pieces; `learners.py` says who they are. The clock runs while
a model is built and batches are drawn and learned, and stands still while it is measured. On a machine that is shared,
`--clock processor` with one thread counts seconds of the processor. `docs/site/pictures.py` draws the lines.

    python benchmarks/learning_curves.py --sizes mini --minutes 10 --seeds 3
    python benchmarks/learning_curves.py --sizes tiny small 4/768 --threads 1 --clock processor
    python benchmarks/learning_curves.py --sizes base --minutes 1 --device cuda --batch-size 128
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from bertsmith.kernels.layers import native_precision
from learners import Setting, begun_within, ours, setting_of, theirs
from measured import CLOCKS, Row, add_options, results_of
from side_by_side import EXPERT, OURS, PEOPLE

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Parts of the run after which the model is measured."""


@dataclass(frozen=True)
class Contender:
    """One curve."""

    side: str
    family: str

    @property
    def name(self) -> str:
        """What the results call it."""
        return f"{self.side}: {self.family}"


CONTENDERS = {
    each.name: each
    for each in (
        Contender(OURS, "modernbert"),
        Contender(EXPERT, "modernbert"),
        Contender(OURS, "bert"),
        Contender(PEOPLE, "bert"),
    )
}


def main() -> None:
    """Runs what is not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=2, clocks=True)
    parser.add_argument("--sizes", nargs="+", default=["mini"])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", choices=("float32", "bf16"), help="default: what the device multiplies fast")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch-size", type=int, help="sequences of a batch; default: the recipe's, 16 for peers")
    parser.add_argument("--compile", action="store_true", help="ours fuse the kernels of their blocks, on a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/families"), help="vocabulary and shards")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.minutes, options.seeds = ["tiny"], 0.02, 1
        options.out = Path("runs/bench-quick/learning_curves")
    torch.set_num_threads(options.threads)
    on_gpu = options.device == "cuda"
    card = f"{torch.cuda.get_device_name()} x 1" if on_gpu else ""
    results = results_of("learning_curves_gpu" if on_gpu else "learning_curves", options, device=card)
    kin = {
        "minutes": options.minutes,
        "precision": options.precision or native_precision(options.device),
        "batch_size": options.batch_size,
        "compile": options.compile,
    }
    for size in options.sizes:
        setting = setting_of(
            size,
            kin["precision"],
            options.out,
            quick=options.quick,
            device=options.device,
            batch_size=options.batch_size,
            compiled=options.compile,
        )
        for seed, name in itertools.product(range(options.seeds), options.contenders):
            measure = partial(curve_of, setting, CONTENDERS[name], options, seed)
            row = results.get({"name": name, "size": size, **kin, "seed": seed}, measure)
            print(name, size, seed, row["curve"][-1], flush=True)


def curve_of(setting: Setting, contender: Contender, options: argparse.Namespace, seed: int) -> Row:
    """Builds and trains in the time that is given, and measures on the way."""
    clock = CLOCKS[options.clock]
    own = contender.side == OURS
    begin = partial(ours, setting, contender.family, seed) if own else partial(theirs, setting, contender.side, seed)
    steps, learner, seconds = begun_within(60 * options.minutes, begin, clock)
    marks = {max(1, round(share * steps)) for share in SHARES}
    curve: list[tuple[float, int, float, float]] = []
    tokens = 0
    for step in range(1, steps + 1):
        begun = clock()
        tokens += learner.step()
        if step in marks:
            # GPU 上一步返回时还没算完：停表之前要等它
            learner.wait()
        seconds += clock() - begun
        if step in marks:
            curve.append((round(seconds, 1), tokens, *learner.measure()))
    learner.close()
    return {"steps": steps, "curve": curve, "mlm_loss": curve[-1][2], "mlm_accuracy": curve[-1][3], "tokens": tokens}


if __name__ == "__main__":
    main()
