"""Held-out loss over time, from nothing: ours beside `transformers`, each the whole time with its own schedule.

All sides learn from 10 MB of English with the same 8,192 pieces; `learners.py` says who they are. The clock runs while
a model is built and batches are drawn and learned, and stands still while it is measured. On a machine that is shared,
`--clock processor` with one thread counts seconds of the processor. The picture shows every size that was measured with
the same code, processor, precision and minutes.

    python benchmarks/learning_curves.py --sizes mini --minutes 10 --seeds 3 --picture docs/images/learning-curves.svg
    python benchmarks/learning_curves.py --sizes tiny small 4/768 --threads 1 --clock processor
    python benchmarks/learning_curves.py --sizes base --minutes 1 --device cuda --batch-size 128
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bertsmith.kernels.layers import native_precision
from bertsmith.model import BertConfig
from learners import Setting, begun_within, ours, setting_of, theirs
from measured import CLOCKS, Row, add_options, results_of
from side_by_side import EXPERT, OURS, PEOPLE

TOO_NEAR = 0.15
"""Nats between last losses whose figures would overlap in the picture."""

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

    @property
    def title(self) -> str:
        """What the picture calls it."""
        library = "bertsmith" if self.side == OURS else f"transformers ({self.side})"
        return f"{library}, {self.family}"


CONTENDERS = {
    each.name: each
    for each in (
        Contender(OURS, "modernbert"),
        Contender(EXPERT, "modernbert"),
        Contender(OURS, "bert"),
        Contender(PEOPLE, "bert"),
    )
}
COLOURS = dict(zip(CONTENDERS, ("#0b6e4f", "#c8553d", "#5fb49c", "#9a9a9a"), strict=True))


def main() -> None:
    """Runs what is not in the results yet, and draws the curves."""
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
    parser.add_argument("--picture", type=Path)
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
    if options.picture:
        kin |= {key: results.key.get(key) for key in ("commit", "processor", "device")}
        rows = [row for row in results.rows if all(row.get(key) == value for key, value in kin.items())]
        draw(rows, setting.corpus.unigram_entropy, options.picture)


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


def draw(rows: Sequence[Row], entropy: float, out: Path) -> None:
    """Draws a panel for each size, the narrowest first; of several seeds, the mean."""
    sizes = sorted({row["size"] for row in rows}, key=lambda size: BertConfig.named(size).hidden_size)
    columns = min(2, len(sizes))
    lines = -(-len(sizes) // columns)
    figure = Figure(figsize=(7.2, 1.3 + 2.9 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for size, panel in zip(sizes, panels, strict=False):
        draw_size(panel, [row for row in rows if row["size"] == size])
        label = f"how frequent pieces are, no more: {entropy:.2f}"
        panel.axhline(entropy, color="#555555", linestyle=":", label=label)
    for panel in panels[len(sizes) :]:
        panel.remove()
    # 最初几步的损失在词频之上：画出来只会把后面压扁
    panels[0].set_ylim(top=entropy + 0.2)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.supylabel("held-out loss, nats")
    figure.savefig(out)


def draw_size(panel: Axes, rows: Sequence[Row]) -> None:
    """Draws the curves of one size, with the last loss of each at its end."""
    cores = rows[0]["threads"]
    panel.set_title(f"{rows[0]['size']}, {cores} {'core' if cores == 1 else 'cores'}")
    ends: dict[str, tuple[float, float]] = {}
    for each in CONTENDERS.values():
        curves = [row["curve"] for row in rows if row["name"] == each.name]
        if not curves:
            continue
        points = [
            [statistics.mean(values) for values in zip(*marks, strict=True)] for marks in zip(*curves, strict=True)
        ]
        minutes, losses = [point[0] / 60 for point in points], [point[2] for point in points]
        panel.plot(minutes, losses, color=COLOURS[each.name], linewidth=2, label=each.title)
        ends[each.name] = minutes[-1], losses[-1]
    for name, end in ends.items():
        apart = [end[1] - other[1] for other in ends.values()]
        # 两个数差不多高时上下错开，免得叠在一起
        shift = 5 * (any(0 < each < TOO_NEAR for each in apart) - any(0 > each > -TOO_NEAR for each in apart))
        panel.annotate(f"{end[1]:.2f}", end, (4, shift), textcoords="offset points", va="center", color=COLOURS[name])
    panel.set_xlabel("minutes of training")
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
