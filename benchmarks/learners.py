"""Models that learn from nothing beside each other: ours, and two loops over `transformers`.

All read the same sequences of 128 pieces, filled to the last piece, and are measured on the same held-out masks.

- ours: the recipe of `bertsmith pretrain` for a family and size, masked LM alone
- expert: `ModernBertForMaskedLM` of the same shape, 30 % masked, logits at the masked places alone, the output bias at
  the pieces' log frequencies, fused AdamW
- people: `BertForMaskedLM` as the library initialises it, 15 % masked, logits for every position, `torch.optim.AdamW`

The peers warm up over a tenth of their steps and fall linearly to zero; they compute in bf16 by autocast where ours
does. On a GPU a process of its own draws everybody's batches ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import nn

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.prefetch import PrefetchedStream, prefetched
from bertsmith.data.stream.stream import PreTrainingStream
from bertsmith.model import BertConfig
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.choosing import MEASURED_WIDTH, recipe_for
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import heldout_set, make_trainer, open_stream
from objectives import prepare
from side_by_side import EXPERT, PEOPLE

RATES = {EXPERT: 2e-3, PEOPLE: 1e-3}
MASKS = {EXPERT: 0.3, PEOPLE: 0.15}
PEER_BATCH, WARMUP_SHARE, MEASURED_STEPS = 16, 0.1, 5


@dataclass(frozen=True)
class Setting:
    """What all learn from, and how.

    Attributes:
        size: a name such as `mini`.
        precision: `bf16` or `float32`.
        heldout: what is measured.
        device: where all learn.
        batch_size: sequences of a batch, for everybody; None takes the recipe's, and `PEER_BATCH` for the peers.
        compiled: whether ours fuse the kernels of their blocks.
    """

    size: str
    precision: str
    corpus: TokenCorpus
    tokenizer: WordPieceTokenizer
    heldout: list[PreTrainingBatch]
    device: str = "cpu"
    batch_size: int | None = None
    compiled: bool = False

    def stream(self, recipe: PreTrainingRecipe) -> PreTrainingStream | PrefetchedStream:
        """Opens the batches of a recipe; drawn ahead where the host would otherwise make a GPU wait."""
        return prefetched(open_stream(recipe, self.corpus, self.tokenizer), int(self.device != "cpu"))

    def wait(self) -> None:
        """Waits until the device has done what it was told."""
        if self.device != "cpu":
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Learner:
    """What is timed: a step, which returns its tokens, and the mean loss and accuracy on held-out batches.

    A GPU may still be at work when `step` returns; `wait` ends when it is not. `close` ends what draws the batches.
    """

    step: Callable[[], int]
    measure: Callable[[], tuple[float, float]]
    wait: Callable[[], None]
    close: Callable[[], object]


def setting_of(
    size: str,
    precision: str,
    folder: Path,
    *,
    quick: bool = False,
    device: str = "cpu",
    batch_size: int | None = None,
    compiled: bool = False,
) -> Setting:
    """Learns the vocabulary and tokenizes the English corpus, once; both stay in the folder; see `Setting`."""
    corpus, tokenizer = prepare(folder, quick=quick)
    recipe = recipe_for(size, family="modernbert", steps=1)
    heldout = heldout_set(recipe, corpus, tokenizer)
    return Setting(size, precision, corpus, tokenizer, heldout, device, batch_size, compiled)


def ours(setting: Setting, family: str, seed: int, steps: int) -> Learner:
    """The project's trainer under the recipe of the family."""
    how: dict[str, Any] = {"objective": "mlm", "precision": setting.precision, "steps": steps, "seed": seed}
    recipe = recipe_for(setting.size, device=setting.device, family=family, batch_size=setting.batch_size, **how)
    trainer = make_trainer(recipe, setting.corpus, setting.tokenizer, setting.device, compiled=setting.compiled)
    stream = setting.stream(recipe)

    def step() -> int:
        batch = next(stream)
        trainer.train_batch(batch)
        return batch.tokens.num_tokens

    def measure() -> tuple[float, float]:
        figures = trainer.evaluate(setting.heldout)
        return figures["mlm_loss"], figures["mlm_accuracy"]

    return Learner(step, measure, setting.wait, stream.close)


def theirs(
    setting: Setting, side: str, seed: int, steps: int, *, batch_size: int | None = None, rate: float | None = None
) -> Learner:
    """A loop over the library's model; without a rate, that of `RATES`, less for wide models as ours."""
    torch.manual_seed(seed)
    expert = side == EXPERT
    model: Any = modern_peer(setting) if expert else transformers.BertForMaskedLM(peer_config(setting))
    if expert:
        with torch.no_grad():
            model.decoder.bias.copy_(log_frequencies(setting))
    model.to(setting.device)
    rate = rate or RATES[side] * min(1.0, MEASURED_WIDTH / model.config.hidden_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=expert)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(WARMUP_SHARE * steps), steps)
    size = batch_size or setting.batch_size or PEER_BATCH
    recipe = recipe_for(setting.size, family="modernbert", steps=1, seed=seed, batch_size=size)
    stream = setting.stream(recipe.changed(mask_rate=MASKS[side]))

    def step() -> int:
        model.train()
        batch = next(stream).to(setting.device)
        with torch.autocast(setting.device, torch.bfloat16, enabled=setting.precision == "bf16"):
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
        for batch in (each.to(setting.device) for each in setting.heldout):
            logits = masked_logits(model, batch).float()
            loss += float(nn.functional.cross_entropy(logits, batch.masked_labels, reduction="sum"))
            hits += int((logits.argmax(-1) == batch.masked_labels).sum())
            count += len(batch.masked_labels)
        return loss / count, hits / count

    return Learner(step, measure, setting.wait, stream.close)


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
    # 填充后的矩形里，真词元的行号与不填充时的次序一一对应
    real = tokens.padding_mask.flatten().nonzero().flatten()
    chosen = states.flatten(0, 1)[real[batch.masked_positions]]
    logits: torch.Tensor = model.cls(chosen) if hasattr(model, "cls") else model.decoder(model.head(chosen))
    return logits


def log_frequencies(setting: Setting) -> torch.Tensor:
    """Returns the log of how frequent each piece is, [V], as our models start their output bias."""
    counts = torch.ones(setting.tokenizer.vocab_size)
    counts[: len(setting.corpus.piece_counts)] += torch.from_numpy(setting.corpus.piece_counts)
    return (counts / counts.sum()).log()


def peer_config(setting: Setting) -> transformers.BertConfig:
    """The same shape."""
    config = BertConfig.named(setting.size, vocab_size=setting.tokenizer.vocab_size, max_position_embeddings=128)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return transformers.BertConfig(max_position_embeddings=128, **{name: getattr(config, name) for name in names})


def padded(batch: PreTrainingBatch) -> dict[str, torch.Tensor]:
    """Lays a batch out as `transformers` takes it."""
    tokens = batch.tokens
    nothing = batch.masked_labels.new_full((tokens.num_tokens,), -100)
    labels = nothing.index_copy(0, batch.masked_positions, batch.masked_labels)
    return {
        "input_ids": tokens.pad(tokens.input_ids),
        "attention_mask": tokens.padding_mask.long(),
        "token_type_ids": tokens.pad(tokens.token_type_ids),
        "labels": tokens.pad(labels, fill=-100),
    }


def begun_within(
    seconds: float, begin: Callable[[int], Learner], clock: Callable[[], float] = time.perf_counter
) -> tuple[int, Learner, float]:
    """Returns the steps that fit, a learner with a schedule of that length, and the seconds that it took to build.

    A first learner is built and thrown away: it tells how long building and a step take.

    Args:
        seconds: time to build and to train.
        begin: makes the learner for a schedule of so many steps.
        clock: counts the seconds.
    """
    begun = clock()
    first = begin(10**6)
    seconds -= clock() - begun
    begun = clock()
    first.step()
    first.step()
    first.wait()
    settling, begun = clock() - begun, clock()
    for _ in range(MEASURED_STEPS):
        first.step()
    first.wait()
    per_step = (clock() - begun) / MEASURED_STEPS
    # 头两步还要编译和安排内核：多出来的也算在时间里，第二个学习者不用再付
    steps = max(1, round((seconds - max(0.0, settling - 2 * per_step)) / per_step))
    first.close()
    begun = clock()
    learner = begin(steps)
    return steps, learner, clock() - begun
