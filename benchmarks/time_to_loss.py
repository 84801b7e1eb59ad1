"""How long until as good a model? Ours against a plain `transformers` loop, from random weights, on real text.

Both sides train a masked LM of the same size on the same sequences of 128 pieces and are measured on the same
held-out masks; the clock runs while they train and stands still while they are measured. The peer is the loop people
write: `BertForMaskedLM` as the library initialises it, logits for every position, AdamW, linear warm-up and decay over
the time it is given. Its best of a small grid sets the loss to reach. Ours is `bertsmith pretrain`'s own recipe for the
size, given ever more minutes until its held-out loss is as low.

Everything that was measured is kept in `--results`, so the script goes on where it was stopped; each run takes its
minutes, the whole grid hours.

    python benchmarks/time_to_loss.py --minutes 10 --grid small --results runs/time_to_loss.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
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
from bertsmith.model import BertConfig
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.recipe import PreTrainingRecipe, recipe_for
from bertsmith.train.start import heldout_set, make_trainer, open_stream
from measured import Results
from real_data import DATA

THREADS = 2
WARMUP_SHARE = 0.1
GRIDS = {
    "one": [(32, 1e-3)],
    "smallest": [(8, 1e-3)],
    "batches": [(batch, 1e-3) for batch in (8, 16, 32)],
    "small": [(batch, rate) for batch in (8, 16, 32) for rate in (5e-4, 1e-3, 2e-3)],
}
OUR_SHARES = (0.03, 0.05, 0.075, 0.1, 0.11, 0.12, 0.135, 0.15, 0.2, 0.3)
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
    """Runs what is not in the results yet, then says what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--minutes", type=float, default=10.0, help="what the peer is given")
    parser.add_argument("--grid", choices=GRIDS, default="one", help="the peer's batch sizes and rates")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--shards", type=Path, default=Path("runs/time_to_loss/shards"))
    parser.add_argument("--results", type=Path, default=Path("runs/time_to_loss/results.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    setting = prepare(options.size, options.shards)
    done = Results(options.results)
    common = {"size": options.size, "precision": options.precision}
    peers = []
    for batch, rate in GRIDS[options.grid]:
        what = {**common, "side": "peer", "batch": batch, "rate": rate, "minutes": options.minutes}
        peers.append(done.get(what, partial(peer_run, setting, options.precision, batch, rate, options.minutes * 60)))
    best = min(peers, key=lambda row: row["loss"])
    target = best["loss"]
    print(f"the peer's best of {len(peers)}: {target:.3f} nats in {best['seconds']:.0f} s")
    for share in OUR_SHARES:
        minutes = round(share * options.minutes, 3)
        what = {**common, "side": "ours", "minutes": minutes}
        row = done.get(what, partial(our_run, setting, options.precision, minutes * 60))
        if row["loss"] <= target:
            ratio = best["seconds"] / row["seconds"]
            print(f"ours: {row['loss']:.3f} nats after {row['seconds']:.0f} s, {ratio:.1f} times as fast")
            name = f"time_to_loss_{options.size}_{options.precision}"
            print(json.dumps([summary(name, row["seconds"], best["seconds"], ratio, target)]))
            return
    print("ours did not reach it in the time it was given")


def summary(name: str, ours: float, peer: float, ratio: float, target: float) -> dict[str, Any]:
    """The object that tools track."""
    return {
        "name": name,
        "ours": round(ours, 1),
        "peer": round(peer, 1),
        "peer_name": f"transformers {transformers.__version__}",
        "ratio": round(ratio, 2),
        "unit": "s",
        "setting": f"held-out masked-LM loss of {target:.3f} nats, {THREADS} threads",
    }


def prepare(size: str, folder: Path) -> Setting:
    """Tokenizes the English corpus with the published vocabulary, once."""
    tokenizer = WordPieceTokenizer.load(DATA / "vocab-uncased-30522.txt")
    files = find_text_files([str(DATA / "corpus")])
    corpus = build_corpus(files, tokenizer, folder, CorpusOptions(keep_duplicates=True))
    return Setting(size, corpus, tokenizer, heldout_set(our_recipe(size, "float32", 1), corpus, tokenizer))


def our_recipe(size: str, precision: str, steps: int) -> PreTrainingRecipe:
    """The recipe that `bertsmith pretrain --size SIZE --objective mlm` resolves to."""
    return recipe_for(size, objective="mlm", precision=precision, steps=steps)


def our_run(setting: Setting, precision: str, seconds: float) -> dict[str, float]:
    """Trains with our recipe for about so many seconds, and measures at the end."""

    def begin(steps: int) -> tuple[Any, PreTrainingStream]:
        recipe = our_recipe(setting.size, precision, steps)
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


def peer_run(setting: Setting, precision: str, batch_size: int, rate: float, seconds: float) -> dict[str, float]:
    """Trains the plain loop for about so many seconds, and measures at the end."""

    def begin(steps: int) -> tuple[Callable[[], int], transformers.BertForMaskedLM]:
        torch.manual_seed(0)
        model = transformers.BertForMaskedLM(peer_config(setting))
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(WARMUP_SHARE * steps), steps)
        batches = peer_batches(setting, batch_size)

        def step() -> int:
            inputs, tokens = next(batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = model(**inputs).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            return tokens

        return step, model

    steps = steps_within(seconds, begin(10**6)[0])
    step, model = begin(steps)
    begun = time.perf_counter()
    tokens = sum(step() for _ in range(steps))
    taken = time.perf_counter() - begun
    return {"seconds": taken, "steps": steps, "tokens": tokens, "loss": peer_loss(model, setting.heldout)}


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


def peer_batches(setting: Setting, batch_size: int) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
    """The same sequences and masks, padded, with a label of -100 wherever nothing is asked."""
    recipe = our_recipe(setting.size, "float32", 1).changed(batch_size=batch_size)
    for batch in open_stream(recipe, setting.corpus, setting.tokenizer):
        yield padded(batch), batch.tokens.num_tokens


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
