"""The bundled village: what `bertsmith quickstart` reaches, beside a reader who knows the rules.

Both fill the same masks of the same held-out sequences (15 %, some of them random words), and say of the same pairs
whether the second segment follows the first. `village_reader.py` says who the reader is; the mean entropy of his odds
beside his loss shows how exact he is. Seconds are those of the whole command, and of the pre-training in it.

    python benchmarks/village.py --seeds 3 --sequences 200
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.model import BertForPreTraining
from bertsmith.tokenizer import Tokenizer, load_tokenizer
from bertsmith.train.monitor import read_metrics
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import heldout_set
from measured import Row, add_options, results_of
from village_reader import UNSEEN, Reader, village_words


def main() -> None:
    """Runs what is not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=200, help="that the reader reads")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.sequences = 1, 2
    torch.set_num_threads(options.threads)
    results = results_of("village", options)
    for seed in range(options.seeds):
        measure = partial(lived, seed, options.sequences, 2.0 if options.quick else None)
        print(results.get({"name": "the bundled village", "seed": seed, "sequences": options.sequences}, measure))


def lived(seed: int, sequences: int, minutes: float | None) -> Row:
    """Runs the command, then lets the reader read what it was measured on."""
    with tempfile.TemporaryDirectory() as name:
        out, begun = Path(name), time.perf_counter()
        command = [sys.executable, "-m", "bertsmith", "quickstart", "--seed", str(seed), "--out", str(out)]
        short = ["--size", "1/64", "--minutes", str(minutes)] if minutes else []
        subprocess.run([*command, *short], check=True)
        seconds = time.perf_counter() - begun
        rows = read_metrics(out / "metrics.jsonl")
        last = [row for row in rows if row["kind"] == "heldout"][-1]
        sentiment = {
            start: json.loads((out / "sentiment" / start / "result.json").read_text(encoding="utf-8"))
            for start in ("pretrained", "random")
        }
        tokenizer = load_tokenizer(out / "model")
        batches = heldout_set(PreTrainingRecipe.load(out), TokenCorpus(out / "corpus", tokenizer), tokenizer)
        return {
            "seconds": seconds,
            "pretraining_seconds": sum(
                (row["tokens"] - before["tokens"]) / row["tokens_per_second"]
                for before, row in itertools.pairwise([{"tokens": 0}, *(row for row in rows if row["kind"] == "train")])
            ),
            **{f"sentiment_{start}": each["test"]["metrics"]["accuracy"] for start, each in sentiment.items()},
            **{key: last[key] for key in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")},
            **read(batches, tokenizer, out / "model", sequences),
        }


@torch.no_grad()
def read(batches: list[PreTrainingBatch], tokenizer: Tokenizer, model: Path, sequences: int) -> Row:
    """Returns the losses of reader and model over the same sequences, the first so many."""
    ids = {word: int(tokenizer.encode(word)[0]) for word in village_words()}
    assert len(set(ids.values())) == len(ids), "a word of several pieces"
    reader, trained = Reader(ids, tokenizer.vocab_size), BertForPreTraining.from_pretrained(model).eval()
    losses: list[float] = []
    entropies: list[float] = []
    theirs: list[float] = []
    pairs: list[bool] = []
    for batch in batches:
        logits = trained(batch.tokens, batch.masked_positions).mlm_logits
        every = torch.nn.functional.cross_entropy(logits, batch.masked_labels, reduction="none")
        for number, (begin, end) in enumerate(itertools.pairwise(batch.tokens.cu_seqlens.tolist())):
            if sequences == 0:
                break
            sequences -= 1
            here = (batch.masked_positions >= begin) & (batch.masked_positions < end)
            follows, odds = read_sequence(reader, batch, begin, end, tokenizer.mask_token_id)
            labels = batch.masked_labels[here].numpy()
            losses += (-np.log(odds[np.arange(len(labels)), labels])).tolist()
            entropies += (-(odds * np.log(np.maximum(odds, 1e-300))).sum(axis=1)).tolist()
            theirs += every[here].tolist()
            label = int(batch.next_sentence_labels[number])
            pairs += [(follows > 0.5) == (label == 0)] if label >= 0 else []
    further = np.subtract(theirs, losses)
    return {
        "masks": len(losses),
        "reader_loss": float(np.mean(losses)),
        "reader_entropy": float(np.mean(entropies)),
        "reader_nsp": float(np.mean(pairs)),
        "model_loss": float(np.mean(theirs)),
        "apart": float(np.mean(further)),
        "apart_error": float(np.std(further) / len(further) ** 0.5),
    }


def read_sequence(
    reader: Reader, batch: PreTrainingBatch, begin: int, end: int, mask: int
) -> tuple[float, np.ndarray[Any, np.dtype[np.float64]]]:
    """Returns P(the second segment follows the first), and the odds of the masked places, [M, V]."""
    seen = [UNSEEN if piece == mask else piece for piece in batch.tokens.input_ids[begin:end].tolist()]
    # [CLS] 第一段 [SEP] 第二段 [SEP]：没有第二段时，第一段到句末的 [SEP] 为止
    second = batch.tokens.token_type_ids[begin:end].tolist()
    border = second.index(1) if 1 in second else len(second)
    first, rest = seen[1 : border - 1], seen[border:-1]
    places = [place - begin for place in batch.masked_positions.tolist() if begin <= place < end]
    return reader.read_pair(first, rest, [place - (1 if place < border else 2) for place in places])


if __name__ == "__main__":
    main()
