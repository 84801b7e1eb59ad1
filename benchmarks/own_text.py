"""What a new user's first command reaches: `bertsmith quickstart TEXT`, nothing else said, on the English corpus.

Seconds are those of the whole command: vocabulary, shards, ten minutes of pre-training, the report.

    python benchmarks/own_text.py --seeds 1
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.tokenizer import load_tokenizer
from bertsmith.train.monitor import read_metrics
from bertsmith.train.recipe import PreTrainingRecipe
from measured import Row, add_options, results_of
from real_data import DATA


def main() -> None:
    """Runs what is not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=2)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    results = results_of("own_text", options)
    for seed in range(1 if options.quick else options.seeds):
        measure = partial(learned, seed, ["--minutes", "0.05", "--size", "1/64"] if options.quick else [])
        print(results.get({"name": "quickstart on 10 MB of English", "seed": seed}, measure))


def learned(seed: int, words: list[str]) -> Row:
    """Runs the command; returns its seconds and what the model of its folder has learned."""
    with tempfile.TemporaryDirectory() as name:
        out, begun = Path(name) / "run", time.perf_counter()
        command = [sys.executable, "-m", "bertsmith", "quickstart", str(DATA / "corpus"), "--seed", str(seed)]
        subprocess.run([*command, "--out", str(out), *words], check=True)
        seconds = time.perf_counter() - begun
        last = [row for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "heldout"][-1]
        recipe = PreTrainingRecipe.load(out)
        return {
            "seconds": seconds,
            "family": recipe.model.family,
            "size": recipe.model.size,
            "precision": recipe.model.precision,
            "unigram_entropy": TokenCorpus(out / "corpus", load_tokenizer(out / "model")).unigram_entropy,
            "steps": last["step"],
            **{key: last[key] for key in ("tokens", "mlm_loss", "mlm_accuracy")},
        }


if __name__ == "__main__":
    main()
