"""What each objective learns in the same time: `mlm+nsp`, `mlm`, whole-word and span masking, ten minutes each.

Every run is `bertsmith pretrain` as it comes, from random weights, on the English corpus with a vocabulary of 8,192
learned from it, for `--minutes`. Its own held-out loss is over its own kind of mask; since masks of whole words and
spans are harder to fill than single pieces, all four finished models are also measured on one set of single-piece
masks. Stopped, the script resumes where it was.

    python benchmarks/objectives.py --size tiny --minutes 10 --threads 2 --out runs/objectives
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.data.corpus.build import build_shards
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.lines import read_lines
from bertsmith.data.reading.sources import find_text_files
from bertsmith.kernels.layers import native_precision
from bertsmith.objectives import average_of
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.choosing import recipe_for
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import pretrain
from bertsmith.train.report import write_run_report
from bertsmith.train.start import heldout_set
from measured import Row, add_options, results_of
from real_data import DATA

VOCAB_SIZE = 8192
RUNS: dict[str, dict[str, Any]] = {
    "mlm+nsp": {"objective": "mlm+nsp"},
    "mlm": {"objective": "mlm"},
    "mlm whole-word": {"objective": "mlm", "masking": "whole-word"},
    "mlm span": {"objective": "mlm", "masking": "span"},
}
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Parts of the run at which the table shows its loss."""


def main() -> None:
    """Trains what is not trained yet, and draws the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=2)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path("runs/objectives"))
    options = parser.parse_args()
    if options.quick:
        options.minutes, options.out = 0.05, Path("runs/bench-quick/objectives")
    torch.set_num_threads(options.threads)
    corpus, tokenizer = prepare(options.out, quick=options.quick)
    results = results_of("objectives", options)
    for name in list(RUNS)[: 1 if options.quick else None]:
        what = {"name": name, "size": options.size, "minutes": options.minutes, "precision": native_precision("cpu")}
        print(results.get(what, partial(learned, name, corpus, tokenizer, options)))
    if not options.quick:
        report = write_run_report([options.out / name.replace(" ", "-") for name in RUNS], options.out / "report.html")
        print(f"curves in {report}")


def learned(name: str, corpus: TokenCorpus, tokenizer: WordPieceTokenizer, options: argparse.Namespace) -> Row:
    """Pre-trains with one objective; returns its losses on the way, and on the masks of plain `mlm`."""
    recipe = recipe_for(options.size, minutes=options.minutes, precision=native_precision("cpu"), **RUNS[name])
    folder = options.out / name.replace(" ", "-")
    result = pretrain(folder, corpus, tokenizer, recipe, console=Console(), listeners=())
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["kind"] == "heldout"]
    steps = result.recipe.trainer.total_steps
    # 每个时刻取不晚于它的最后一次评估
    at = {share: max((row for row in rows if row["step"] <= share * steps), key=_step) for share in SHARES}
    figures: Row = {"steps": steps, "tokens": result.tokens_seen, "unigram_entropy": corpus.unigram_entropy}
    figures |= {f"loss at {share:.0%}": row["mlm_loss"] for share, row in at.items()}
    figures["loss on single pieces"] = figures_on_pieces(folder / "model", corpus, tokenizer)["mlm_loss"]
    if "nsp_accuracy" in result.heldout:
        figures["next sentence"] = result.heldout["nsp_accuracy"]
    return figures


def prepare(
    out: Path, *, quick: bool = False, folders: Sequence[str] = ("corpus",), vocab_size: int = VOCAB_SIZE
) -> tuple[TokenCorpus, WordPieceTokenizer]:
    """Learns the vocabulary and tokenizes the text, once; `quick` reads a twelfth of its files."""
    files = find_text_files([str(DATA / folder) for folder in folders])[:: 12 if quick else 1]
    if not (out / "tokenizer" / "tokenizer.json").exists():
        lines = (line for file in files for line in read_lines(file))
        WordPieceTokenizer.train(lines, vocab_size=vocab_size).save(out / "tokenizer")
    tokenizer = WordPieceTokenizer.load(out / "tokenizer")
    return build_shards(files, tokenizer, out / "shards", CorpusOptions(keep_duplicates=True)), tokenizer


def figures_on_pieces(model: Path, corpus: TokenCorpus, tokenizer: WordPieceTokenizer) -> dict[str, float]:
    """Measures a finished model, its masked-LM head alone, on the held-out masks of plain `mlm`."""
    recipe = recipe_for("tiny", objective="mlm", steps=1)
    objective = recipe.build_objective()
    loaded = objective.load_model(model).eval()
    with torch.inference_mode():
        return average_of(objective(loaded, batch) for batch in heldout_set(recipe, corpus, tokenizer))


def _step(row: dict[str, Any]) -> int:
    return int(row["step"])


if __name__ == "__main__":
    main()
