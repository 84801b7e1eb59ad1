"""One pre-training step against `transformers`: forward, backward, clipping, AdamW.

BERT's mini (4/256) and small (4/512) with 32 sequences of 128, base (12/768) with 8, masked LM and next sentence;
RoBERTa and ModernBERT in mini with 16, masked LM alone. Every sequence is full and has 19 masked pieces of a vocabulary
of 30,522. All sides start from the same weights, read the same batch and have dropout on; their losses are compared
first, with dropout off. In bf16, peers run under bf16 autocast.

- people: the class's own loss, which computes logits at every position; attention mask; `torch.optim.AdamW`
- experts: masked positions gathered before the decoder, no mask where nothing is padded, no pooler that nobody reads,
  fused AdamW; attention by SDPA, or on a CPU, whose fused kernel is slow in bf16 and with dropout, by plain matmuls
  (`eager`); each as it is, and under `torch.compile` where there is a C++ compiler

Model FLOPs utilisation: the operations of a step in closed form, as `bertsmith plan` counts them, over the step's
time and over the rate of the feed-forward layer's matmul, measured right before.

    python benchmarks/pretrain_step.py [--rounds 7] [--only bert-mini] [--precision bf16]
"""

from __future__ import annotations

import argparse
import copy
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.cli import ENVIRONMENT
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.kernels.matmul import measure_matmul_flops
from bertsmith.model import ModelForPreTraining, family_named
from bertsmith.model.sizes import BatchCosts
from bertsmith.objectives import objective_named
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from measured import CLOCKS, add_options, precisions, results_of
from side_by_side import EXPERT, OURS, PEOPLE, in_turn, rounds_of
from tables import print_table

LENGTH, MASKED, PIECES = 128, 19, 30522
MODELS = {
    "bert-mini": 32,
    "bert-small": 32,
    "bert-base": 8,
    "roberta-mini": 16,
    "modernbert-mini": 16,
}
"""Family and size, and the sequences of a step."""
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
LARGEST_LOSS_DIFFERENCE = {"float32": 1e-4, "bf16": 2e-2}
COMPILED = ", compiled"
MUON = "with Muon"
"""Ours with the optimizer that pre-training takes by itself: a figure, since the peers step with AdamW."""
PEER_HEADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "bert": lambda peer, states: peer.cls.predictions(states),
    "roberta": lambda peer, states: peer.lm_head(states),
    "modernbert": lambda peer, states: peer.decoder(peer.head(states)),
}
"""Each peer's masked-LM head over states that were gathered first."""


@dataclass(frozen=True)
class Setting:
    """What a step is of; `compiled` fuses the kernels of our blocks, as `pretrain --compile` does."""

    family: str
    size: str
    sequences: int
    precision: str
    length: int = LENGTH
    device: str = "cpu"
    compiled: bool = False

    @property
    def has_pairs(self) -> bool:
        """Whether next sentences are learned too."""
        return self.family == "bert"

    def autocast(self) -> torch.autocast:
        """The peers' precision."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16")


def main() -> None:
    """Times what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, clocks=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--precision", choices=PRECISIONS, help="one instead of all that the processor multiplies")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: compiling takes minutes")
    options = parser.parse_args()
    # 各方都在命令行所设的环境里：比的是一步，不是分配器的设置
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.quick:
        options.only, options.rounds = ["bert-mini"], 2
    compiled = not (options.quick or options.no_compile) and shutil.which("g++") is not None
    results, rows = results_of("pretrain_step", options), []
    for name in options.only:
        for precision in precisions(options):
            family, size = name.split("-")
            setting = Setting(family, size, 2 if options.quick else MODELS[name], precision)
            what = {"name": f"{name} {precision}", "batch": f"{setting.sequences} x {LENGTH}", "masked": MASKED}
            rows.append(results.get(what, partial(measure, setting, options.rounds, compiled, options.clock)))
    print_table(rows)


def measure(setting: Setting, rounds: int, compile_peer: bool, clock: str) -> dict[str, Any]:
    """Builds all sides from one set of weights and times them in turn."""
    torch.manual_seed(0)
    config = family_named(setting.family).config.named(setting.size, vocab_size=PIECES, pad_token_id=1)
    if setting.device != "cpu":
        # GPU 上预训练默认不丢注意力权重（见 `train.start.build_model`）：各方都这样
        config = config.changed(attention_probs_dropout_prob=0.0)
    ours = ModelForPreTraining(config, pair_head=setting.has_pairs)
    dtype = PRECISIONS[setting.precision]
    whole = transformers.BertForPreTraining if setting.has_pairs else transformers.AutoModelForMaskedLM
    attentions = ("sdpa", "eager") if setting.device == "cpu" else ("sdpa",)
    experts = [f"{EXPERT}: {how}{end}" for end in ("", COMPILED)[: 1 + compile_peer] for how in attentions]
    names = [PEOPLE, *experts]
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        # 各练各的一份：两个对手轮流更新同一个模型，动量会互相覆盖
        peers = {
            name: whole.from_pretrained(folder, attn_implementation="eager" if "eager" in name else "sdpa")
            for name in names
        }
    for peer in peers.values():
        peer.to(setting.device)
    ours.set_compute_dtype(dtype)
    on_host = random_batch(setting)
    batch = on_host.to(setting.device)
    objective = objective_named("mlm+nsp" if setting.has_pairs else "mlm")
    losses: dict[str, Callable[[], Tensor]] = {
        name: partial(people_loss, peer, padded_batch(setting, batch))
        if name == PEOPLE
        else partial(expert_loss, setting, peer, batch)
        for name, peer in peers.items()
    }
    figures: dict[str, Any] = {
        "losses": compared_losses(setting, objective(ours.to(setting.device).eval(), batch).loss, peers, losses)
    }
    losses |= {name: torch.compile(loss) for name, loss in losses.items() if name.endswith(COMPILED)}
    if setting.compiled:
        ours.compile_blocks()
    settings = TrainerSettings(total_steps=10**6, learning_rate=1e-4)
    trainers = {OURS: BertTrainer(ours, objective, settings, device=setting.device)}
    # GPU 上的 Muon 由 gpu.py 单独测
    if setting.device == "cpu":
        trainers[MUON] = BertTrainer(copy.deepcopy(ours), objective, replace(settings, optimizer="muon"))
    work: dict[str, Callable[[], object]] = {
        name: partial(trainer.train_batch, on_host) for name, trainer in trainers.items()
    }
    work |= {name: peer_step(setting, peers[name], losses[name], fused=name != PEOPLE) for name in names}
    work = {name: finished(each, setting.device) for name, each in work.items()}
    times = in_turn(work, rounds=rounds, warmup=2, clock=CLOCKS[clock])
    if MUON in times:
        figures[MUON] = round(statistics.median(times.pop(MUON)) / statistics.median(times[OURS]), 3)
    cost = BatchCosts(config, setting.sequences, setting.length)
    peak = measure_matmul_flops(config.hidden_size, cost.num_tokens, dtype, setting.device)
    if clock == "wall":
        figures["utilisation"] = round(cost.training_flops / statistics.median(times[OURS]) / peak, 3)
        figures["matmul_gflops"] = round(peak / 1e9, 1)
    library = f"transformers {transformers.__version__}{', bf16 autocast' * (setting.precision == 'bf16')}"
    written = dict.fromkeys(experts, f"{library}, masked positions gathered, fused AdamW")
    return rounds_of(times, peers={PEOPLE: library, **written}, figures=figures)


def finished(work: Callable[[], object], device: str) -> Callable[[], object]:
    """Returns work that waits for its device at the end: on a GPU calls come back before they are done."""
    if device == "cpu":
        return work

    def run() -> object:
        result = work()
        torch.cuda.synchronize()
        return result

    return run


def random_batch(setting: Setting) -> PreTrainingBatch:
    """Returns one batch of random ids, all sequences full, 19 positions chosen in each."""
    rng, sequences = np.random.default_rng(0), setting.sequences
    masked = round(MASKED / LENGTH * setting.length)
    ids = rng.integers(1000, PIECES, size=sequences * setting.length)
    chosen = [np.sort(rng.choice(np.arange(1, setting.length - 1), masked, replace=False)) for _ in range(sequences)]
    positions = np.concatenate([places + number * setting.length for number, places in enumerate(chosen)])
    labels = ids[positions].copy()
    ids[positions] = 103
    types = np.tile(np.repeat([0, 1], setting.length // 2), sequences) * setting.has_pairs
    return PreTrainingBatch(
        tokens=RaggedBatch.from_flat(ids, np.full(sequences, setting.length), types),
        masked_positions=torch.from_numpy(positions),
        masked_labels=torch.from_numpy(labels),
        next_sentence_labels=torch.from_numpy(rng.integers(0, 2, size=sequences * setting.has_pairs)),
    )


def padded_batch(setting: Setting, batch: PreTrainingBatch) -> dict[str, Tensor]:
    """Lays the same batch out as the class wants it: labels of -100 wherever nothing is masked."""
    labels = torch.full((setting.sequences * setting.length,), -100, device=setting.device)
    labels[batch.masked_positions] = batch.masked_labels
    shape = (setting.sequences, setting.length)
    inputs = {
        "input_ids": batch.tokens.input_ids.view(shape),
        "attention_mask": torch.ones(shape, dtype=torch.long, device=setting.device),
        "labels": labels.view(shape),
    }
    if setting.has_pairs:
        inputs["token_type_ids"] = batch.tokens.token_type_ids.view(shape)
        inputs["next_sentence_label"] = batch.next_sentence_labels
    return inputs


def compared_losses(
    setting: Setting, ours: Tensor, peers: dict[str, Any], losses: dict[str, Callable[[], Tensor]]
) -> dict[str, float]:
    """Makes sure that all sides compute the same thing before they are timed."""
    found = {OURS: ours.item()}
    for name, peer in peers.items():
        peer.eval()
        with torch.no_grad(), setting.autocast():
            found[name] = losses[name]().item()
        peer.train()
    if max(found.values()) - min(found.values()) > LARGEST_LOSS_DIFFERENCE[setting.precision]:
        raise SystemExit(f"the losses differ, so this is not the same work: {found}")
    return {name: round(value, 6) for name, value in found.items()}


def people_loss(peer: Any, batch: dict[str, Tensor]) -> Tensor:
    """Returns the loss as the peer's class computes it."""
    loss: Tensor = peer(**batch).loss
    return loss


def expert_loss(setting: Setting, peer: Any, batch: PreTrainingBatch) -> Tensor:
    """Returns the same loss from the masked positions alone, and without a mask for padding that is not there."""
    shape = (setting.sequences, setting.length)
    inputs = {"input_ids": batch.tokens.input_ids.view(shape)}
    if setting.has_pairs:
        inputs["token_type_ids"] = batch.tokens.token_type_ids.view(shape)
    encoded = peer.base_model(**inputs)
    states = encoded.last_hidden_state.flatten(0, 1).index_select(0, batch.masked_positions)
    pieces = PEER_HEADS[setting.family](peer, states)
    loss = torch.nn.functional.cross_entropy(pieces.float(), batch.masked_labels)
    if setting.has_pairs:
        pairs = peer.cls.seq_relationship(encoded.pooler_output)
        loss = loss + torch.nn.functional.cross_entropy(pairs.float(), batch.next_sentence_labels)
    return loss


def peer_step(setting: Setting, peer: Any, loss_of: Callable[[], Tensor], *, fused: bool) -> Callable[[], None]:
    """Returns a peer's step: its loss, clipping and AdamW."""
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-4, weight_decay=0.01, fused=fused)

    def step() -> None:
        with setting.autocast():
            loss = loss_of()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
