"""How the held-out loss falls with the size of a model and the tokens that it reads: what `bertsmith plan` foretells.

Every run is `bertsmith pretrain --family F --objective mlm --size S --tokens D` as it comes, from random weights, on
the English corpus with a vocabulary of 8,192 learned from it. The law of `bertsmith.train.forecast` is then fitted to
all of them, and its constants are printed with what they miss by. Tokens are counted, not seconds, so other work on the
machine changes nothing. Stopped, the script resumes where it was.

    python benchmarks/scaling.py --family modernbert
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from scipy.optimize import least_squares

from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.kernels.layers import native_precision
from bertsmith.model.sizes import ParameterCounts
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.choosing import recipe_for
from bertsmith.train.forecast import MILLION, LossLaw
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import pretrain
from measured import add_options, results_of
from objectives import prepare

FloatArray: TypeAlias = npt.NDArray[np.float64]
RUNS = {
    "tiny": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0),
    "mini": (0.25, 0.5, 1.0, 2.0, 4.0),
    "small": (0.25, 0.5, 1.0),
}
"""Size → millions of tokens."""


def main() -> None:
    """Trains what is not trained yet, cheapest first, then fits the law."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1)
    parser.add_argument("--family", default="modernbert")
    parser.add_argument("--sizes", nargs="+", default=tuple(RUNS))
    parser.add_argument("--most", type=float, default=16.0, help="millions of tokens of the longest run")
    parser.add_argument("--out", type=Path, default=Path("runs/scaling"))
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.most, options.out = ("tiny",), 0.02, Path("runs/bench-quick/scaling")
    torch.set_num_threads(options.threads)
    corpus, tokenizer = prepare(options.out, quick=options.quick)
    results, rows = results_of("scaling", options), []
    asked = [(size, millions) for size in options.sizes for millions in RUNS[size] if millions <= options.most]
    asked += [("tiny", options.most)] * options.quick
    for size, millions in sorted(asked, key=lambda each: each[1]):
        what = {"what": "scaling", "family": options.family, "size": size, "asked_tokens": round(millions * MILLION)}
        row = results.get(what, partial(measured, options.out, corpus, tokenizer, what))
        rows.append(row)
    if options.quick:
        return
    law = fit(rows, corpus.counts[TRAIN].tokens)
    table = [
        (
            row["size"],
            row["tokens"],
            row["mlm_loss"],
            law.loss(row["parameters"], row["tokens"], row["unigram_entropy"], text_tokens=law.text_tokens),
        )
        for row in rows
    ]
    for size, tokens, found, foretold in table:
        print(f"{size:6} {tokens:>10,} tokens: {found:.3f} nats, by the law {foretold:.3f}")
    print(json.dumps({"name": "scaling", "family": options.family, **asdict(law)}))


def measured(out: Path, corpus: TokenCorpus, tokenizer: WordPieceTokenizer, what: dict[str, Any]) -> dict[str, Any]:
    """Pre-trains one model; returns its size, what it read, its last held-out figures and the curve to them."""
    recipe = recipe_for(
        what["size"],
        family=what["family"],
        objective="mlm",
        tokens=what["asked_tokens"],
        precision=native_precision("cpu"),
    )
    run = out / f"{what['family']}-{what['size']}-{what['asked_tokens']}"
    result = pretrain(run, corpus, tokenizer, recipe, console=Console(), listeners=())
    curve = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "heldout"]
    steps = result.recipe.trainer.total_steps
    return {
        "precision": native_precision("cpu"),
        "parameters": ParameterCounts.of(result.recipe.model_config(tokenizer)).encoder,
        "steps": steps,
        "tokens": result.tokens_seen,
        "unigram_entropy": corpus.unigram_entropy,
        "mlm_loss": result.heldout["mlm_loss"],
        "mlm_accuracy": result.heldout["mlm_accuracy"],
        "curve": [(round(row["step"] / steps, 4), row["mlm_loss"]) for row in curve],
    }


def fit(rows: list[dict[str, Any]], text_tokens: int) -> LossLaw:
    """Fits the law to the last losses by least squares, and finds the way to them from the curves.

    Args:
        rows: the runs.
        text_tokens: of the text that all of them read.
    """
    loss: FloatArray = np.array([row["mlm_loss"] for row in rows])
    tokens = [float(row["tokens"]) for row in rows]

    def law_of(constants: FloatArray) -> LossLaw:
        start, start_power, share, token_power, size_power = constants.tolist()
        return LossLaw(start, start_power, share, token_power, size_power, 0.0, (0.0, 0.0), text_tokens, 0.0, 0.0, {})

    def missed(constants: FloatArray) -> FloatArray:
        law = law_of(constants)
        foretold = [
            law.loss(row["parameters"], row["tokens"], row["unigram_entropy"], text_tokens=text_tokens) for row in rows
        ]
        return np.array(foretold) - loss

    found = least_squares(missed, [0.3, 3.0, 0.6, 0.1, 0.3], bounds=(1e-3, np.inf))
    shares = np.linspace(0, 1, 13)
    ways: defaultdict[int, list[FloatArray]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["asked_tokens"]):
        at, losses = np.array(row["curve"]).T
        way = (row["unigram_entropy"] - losses) / (row["unigram_entropy"] - row["mlm_loss"])
        ways[row["asked_tokens"]].append(np.interp(shares, at, np.maximum(way, 0.0)))
    return replace(
        law_of(found.x.round(4)),
        largest_miss=math.ceil(1000 * np.abs(missed(found.x.round(4))).max()) / 1000,
        tokens=(min(tokens), max(tokens)),
        largest=max(row["parameters"] for row in rows),
        tokens_per_parameter=round(max(row["tokens"] / row["parameters"] for row in rows) + 0.05, 1),
        progress={tokens: tuple(np.mean(each, 0).round(3).tolist()) for tokens, each in ways.items()},
    )


if __name__ == "__main__":
    main()
