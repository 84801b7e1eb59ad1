"""Held-out loss over time, from nothing: ours beside `transformers`, each the whole time with its own schedule.

All sides read the same 10 MB of English with the same 8,192 pieces, in sequences of 128 filled to the last piece, and
are measured on the same held-out masks (15 %). The clock runs while batches are drawn and learned, and stands still
while models are built and measured.

- ours: `bertsmith pretrain --family modernbert`, and `--family bert`, with the recipes they come with
- expert: `ModernBertForMaskedLM` of the same shape, 30 % masked, logits at the masked places alone, the output bias at
  the pieces' log frequencies, fused AdamW
- people: `BertForMaskedLM` as the library initialises it, 15 % masked, logits for every position, `torch.optim.AdamW`

    python benchmarks/learning_curves.py --minutes 10 --seeds 3 --picture docs/images/learning-curves.svg
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from matplotlib.figure import Figure
from torch import nn

from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.kernels.layers import native_precision
from bertsmith.train.recipe import recipe_for
from bertsmith.train.start import heldout_set, make_trainer, open_stream
from measured import Row, add_options, results_of
from objectives import prepare
from side_by_side import EXPERT, OURS, PEOPLE
from time_to_loss import Setting, log_frequencies, padded, peer_config, steps_within

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Parts of the run after which the model is measured."""
PEER_BATCH, WARMUP_SHARE = 16, 0.1
RATES = {EXPERT: 2e-3, PEOPLE: 1e-3}
MASKS = {EXPERT: 0.3, PEOPLE: 0.15}


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


@dataclass(frozen=True)
class Learner:
    """What is timed: a step, which returns its tokens, and the mean loss and accuracy on held-out batches."""

    step: Callable[[], int]
    measure: Callable[[], tuple[float, float]]


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
        options.size, options.minutes, options.seeds, options.out = "tiny", 0.02, 1, Path("runs/bench-quick/families")
    torch.set_num_threads(options.threads)
    corpus, tokenizer = prepare(options.out)
    recipe = recipe_for(options.size, family="modernbert", steps=1)
    setting = Setting(options.size, corpus, tokenizer, heldout_set(recipe, corpus, tokenizer))
    results = results_of("learning_curves", options)
    rows: list[Row] = []
    for seed in range(options.seeds):
        for each in CONTENDERS:
            what = {"name": f"{each.side}: {each.family}", "size": options.size, "minutes": options.minutes}
            what |= {"precision": options.precision, "seed": seed}
            rows.append(results.get(what, partial(curve_of, setting, each, options, seed)))
            print(each.title, seed, rows[-1]["curve"][-1])
            if options.picture:
                draw(rows, setting.corpus.unigram_entropy, options.picture)


def curve_of(setting: Setting, contender: Contender, options: argparse.Namespace, seed: int) -> Row:
    """Trains for the time that is given, and measures on the way."""
    begin = partial(ours if contender.side == OURS else theirs, setting, contender, options.precision, seed)
    steps = steps_within(60 * options.minutes, begin(10**6).step)
    learner = begin(steps)
    marks = {max(1, round(share * steps)) for share in SHARES}
    curve: list[tuple[float, int, float, float]] = []
    seconds, tokens = 0.0, 0
    for step in range(1, steps + 1):
        begun = time.perf_counter()
        tokens += learner.step()
        seconds += time.perf_counter() - begun
        if step in marks:
            curve.append((round(seconds, 1), tokens, *learner.measure()))
    return {"steps": steps, "curve": curve, "mlm_loss": curve[-1][2], "mlm_accuracy": curve[-1][3], "tokens": tokens}


def ours(setting: Setting, contender: Contender, precision: str, seed: int, steps: int) -> Learner:
    """The project's trainer under the recipe of the family."""
    recipe = recipe_for(
        setting.size, family=contender.family, objective="mlm", precision=precision, steps=steps, seed=seed
    )
    trainer = make_trainer(recipe, setting.corpus, setting.tokenizer)
    stream = open_stream(recipe, setting.corpus, setting.tokenizer)

    def step() -> int:
        batch = next(stream)
        trainer.train_batch(batch)
        return batch.tokens.num_tokens

    def measure() -> tuple[float, float]:
        figures = trainer.evaluate(setting.heldout)
        return figures["mlm_loss"], figures["mlm_accuracy"]

    return Learner(step, measure)


def theirs(setting: Setting, contender: Contender, precision: str, seed: int, steps: int) -> Learner:
    """A loop over the library's model."""
    torch.manual_seed(seed)
    expert = contender.side == EXPERT
    model: Any = modern_peer(setting) if expert else transformers.BertForMaskedLM(peer_config(setting))
    if expert:
        with torch.no_grad():
            model.decoder.bias.copy_(log_frequencies(setting))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATES[contender.side], weight_decay=0.01, fused=expert)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(WARMUP_SHARE * steps), steps)
    recipe = recipe_for(setting.size, family="modernbert", steps=1, seed=seed, batch_size=PEER_BATCH)
    recipe = recipe.changed(mask_rate=MASKS[contender.side])
    stream = open_stream(recipe, setting.corpus, setting.tokenizer)

    def step() -> int:
        model.train()
        batch = next(stream)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if expert:
                logits = masked_logits(model, batch)
                loss = nn.functional.cross_entropy(logits.float(), batch.masked_labels)
            else:
                loss = model(**padded(batch)).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return batch.tokens.num_tokens

    @torch.no_grad()
    def measure() -> tuple[float, float]:
        model.eval()
        loss = hits = count = 0.0
        for batch in setting.heldout:
            logits = masked_logits(model, batch).float()
            loss += float(nn.functional.cross_entropy(logits, batch.masked_labels, reduction="sum"))
            hits += int((logits.argmax(-1) == batch.masked_labels).sum())
            count += len(batch.masked_labels)
        return loss / count, hits / count

    return Learner(step, measure)


def modern_peer(setting: Setting) -> transformers.ModernBertForMaskedLM:
    """The library's ModernBERT in the shape of ours."""
    config = recipe_for(setting.size, family="modernbert", steps=1).model_config(setting.tokenizer)
    with TemporaryDirectory() as folder:
        config.save(Path(folder) / "config.json", architecture="ModernBertForMaskedLM")
        return transformers.ModernBertForMaskedLM(transformers.ModernBertConfig.from_pretrained(folder))


def masked_logits(model: Any, batch: PreTrainingBatch) -> torch.Tensor:
    """Scores the pieces at the masked places alone; without a mask where nothing is padded."""
    tokens = batch.tokens
    mask = None if tokens.has_equal_lengths else tokens.padding_mask.long()
    states = model.base_model(input_ids=tokens.pad(tokens.input_ids), attention_mask=mask).last_hidden_state
    # 补齐后的矩形里，真词元的行号与不补齐时的次序一一对应
    real = tokens.padding_mask.flatten().nonzero().flatten()
    chosen = states.flatten(0, 1)[real[batch.masked_positions]]
    logits: torch.Tensor = model.cls(chosen) if hasattr(model, "cls") else model.decoder(model.head(chosen))
    return logits


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
        axes.plot([0, *minutes], [entropy, *losses], color=colour, linewidth=2, label=f"{each.title}: {losses[-1]:.2f}")
    axes.set_xlabel("minutes of training on two cores")
    axes.set_ylabel("held-out loss, nats")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out)


if __name__ == "__main__":
    main()
