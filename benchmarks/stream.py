"""The stream alone against the training step it feeds, both on one core.

The promise: drawing a batch takes at most a twentieth of the step that eats it. There is no peer: the stream is set
against that step. It is the house's: mini (L4 H256), bf16 where the machine multiplies it, 32 sequences of 128 of the
English corpus, or of the bundled world where there is none. A round is many batches, so that the making of blocks is in
the figure.

Also measured: opening the stream at step 1,000,000 against opening it at its beginning.

    python benchmarks/stream.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.text import Document
from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.data.stream.stream import PreTrainingStream, StreamPosition, StreamSettings
from bertsmith.kernels.layers import best_compute_dtype
from bertsmith.model import BertConfig
from bertsmith.objectives import Objective, objective_named
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from measured import add_options, results_of
from real_data import DATA
from side_by_side import EXPERT, OURS, rounds_of
from tables import print_table

BATCHES = 200
"""Batches of a round: about three blocks."""

STEPS = 4
KINDS = {
    "mlm+nsp_token": ("mlm+nsp", StreamSettings()),
    "mlm_whole-word": ("mlm", StreamSettings(masking=MaskingSettings(kind="whole-word"))),
    "mlm_span": ("mlm", StreamSettings(masking=MaskingSettings(kind="span"))),
    "mlm_full_token": ("mlm", StreamSettings(packing="full")),
}


def main() -> None:
    """Times the stream for each kind of batch, then a step, then the opening."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    torch.set_num_threads(options.threads)
    results, rows = results_of("stream", options), []
    with tempfile.TemporaryDirectory() as folder:
        corpus, tokenizer, name = load_corpus(Path(folder), options.quick)
        for kind, (objective, settings) in list(KINDS.items())[: 1 if options.quick else None]:
            measure = partial(against_step, objective_named(objective), settings, corpus, tokenizer, rounds)
            rows.append(results.get({"name": f"a batch of {kind}, of a step", "text": name}, measure))
        what = {"name": "first batch at step 1,000,000, at step 0", "text": name}
        rows.append(results.get(what, partial(opening, corpus, tokenizer, rounds)))
    print_table(rows)


def load_corpus(folder: Path, quick: bool) -> tuple[TokenCorpus, WordPieceTokenizer, str]:
    """Builds the shards of real text, or of 3,000 stories."""
    if DATA.is_dir() and not quick:
        tokenizer = WordPieceTokenizer.load(DATA / "vocab-uncased-30522.txt")
        documents = [
            Document(path.name, tuple(lines[start : start + 128]))
            for path in sorted((DATA / "corpus").rglob("*.txt"))
            for lines in [[line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]]
            for start in range(0, len(lines), 128)
        ]
        name = "real text"
    else:
        documents = [
            Document("t", tuple(render(s) for s in story.sentences))
            for story in draw_stories(0, 300 if quick else 3000)
        ]
        tokenizer = WordPieceTokenizer.train((s for d in documents for s in d.sentences), vocab_size=1500)
        name = "bundled world"
    return build_from_documents(documents, tokenizer, folder / "corpus"), tokenizer, name


def against_step(
    objective: Objective,
    settings: StreamSettings,
    corpus: TokenCorpus,
    tokenizer: WordPieceTokenizer,
    rounds: int,
) -> dict[str, Any]:
    """Times batches and steps in turn; both are given per batch."""
    objective = objective.for_masking(settings.masking.kind)
    torch.manual_seed(0)
    config = BertConfig.named("mini", vocab_size=tokenizer.vocab_size)
    model = objective.build_model(config)
    dtype = best_compute_dtype()
    for part in objective.models(model).values():
        part.set_compute_dtype(dtype)
    trainer = BertTrainer(model, objective, TrainerSettings(total_steps=10**6, learning_rate=1e-4))
    stream = PreTrainingStream(corpus, tokenizer, settings, objective.needs)
    batches = [next(stream) for _ in range(STEPS)]
    ours, step = [], []
    for _ in range(rounds):
        ours.append(seconds(lambda: [next(stream) for _ in range(BATCHES)]) / BATCHES)
        step.append(seconds(lambda: [trainer.train_batch(batch) for batch in batches]) / STEPS)
    precision = "bf16" if dtype == torch.bfloat16 else "float32"
    return rounds_of({OURS: ours, EXPERT: step}, peers={EXPERT: f"a training step, mini 4/256, 32 x 128, {precision}"})


def opening(corpus: TokenCorpus, tokenizer: WordPieceTokenizer, rounds: int) -> dict[str, Any]:
    """Times the first batch of a fresh stream at step 1,000,000 and at step 0."""
    per_epoch = corpus.counts["train"].tokens / (32 * 120)

    def first_batch(position: StreamPosition) -> None:
        stream = PreTrainingStream(corpus, tokenizer, StreamSettings())
        stream.position = position
        next(stream)

    blocks = PreTrainingStream(corpus, tokenizer, StreamSettings()).blocks_per_epoch
    far = StreamPosition(epoch=int(10**6 / per_epoch), block=blocks // 2)
    ours, start = [], []
    for _ in range(rounds):
        ours.append(seconds(lambda: first_batch(far)))
        start.append(seconds(lambda: first_batch(StreamPosition())))
    return rounds_of({OURS: ours, EXPERT: start}, peers={EXPERT: "first batch at step 0"})


def seconds(work: Callable[[], object]) -> float:
    """Returns how long a piece of work took."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
