"""The families against `transformers`: a forward pass, a pre-training step, and texts of 4,096 tokens.

Each is measured against two peers with the same weights. *As people write it*: `attention_mask`, batches padded as
they come, logits at every position, `torch.optim.AdamW`. *As an expert writes it*: batches sorted by length and no mask
where nothing is padded, masked positions gathered before the head, fused AdamW. Both attend with SDPA and, where ours
computes in bf16, run under bf16 autocast. Outputs and losses are compared first, with dropout off.

- forward: 6/384, 32 texts of 128 tokens, and 128 texts of 4 to 128
- step: mini (4/256), 16 x 128, 19 masked pieces each; masked LM alone, for all three families
- long: ModernBERT of width 768 on texts of 4,096 tokens, time and peak memory, each side in a process of its own

On a machine that others use, `--threads 1 --clock processor` takes the time of the processor: who waits for a core is
then not slower.

    python benchmarks/families.py [--precision float32] [--quick] [--layers 22] [--only long]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import transformers
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.inference.engine import packs_by_length
from bertsmith.kernels.layers import best_compute_dtype
from bertsmith.model import Backbone, ModelForPreTraining, family_named
from bertsmith.objectives import objective_named
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from side_by_side import Comparison, in_turn, report

FAMILIES = ("bert", "roberta", "modernbert")
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
PIECES, LENGTH, SEQUENCES, MASKED = 30522, 128, 16, 19
FORWARD_BATCH, TOKEN_BUDGET = 32, 4096
LONG_TEXTS, LONG_LENGTH = 2, 4096
LARGEST_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Of the losses; and a hundredth of it of 1 minus the mean cosine similarity of states."""
PEERS = {"people": "as people write it", "expert": "as an expert writes it"}
PEER_HEADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "bert": lambda peer, states: peer.cls(states),
    "roberta": lambda peer, states: peer.lm_head(states),
    "modernbert": lambda peer, states: peer.decoder(peer.head(states)),
}
"""Each peer's masked-LM head over states that were gathered first."""


def main() -> None:
    """Compares outputs, then times, of what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=PRECISIONS, help="one instead of all that the processor multiplies")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--layers", type=int, default=3, help="of the model that reads long texts; 22 is the whole")
    parser.add_argument("--only", choices=("forward", "step", "long"))
    parser.add_argument("--quick", action="store_true", help="three rounds, and two layers for long texts")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.layers = min(options.rounds, 3), min(options.layers, 2)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    native = ["float32", *(["bf16"] if best_compute_dtype() == torch.bfloat16 else [])]
    precisions = [options.precision] if options.precision else native
    if options.child:
        read_long_texts(options.child[0], options.child[1], PRECISIONS[precisions[0]], options)
        return
    rows: list[Comparison] = []
    for precision in precisions:
        for family in FAMILIES:
            if options.only in (None, "forward"):
                rows += forward(family, precision, options)
            if options.only in (None, "step"):
                rows += step(family, precision, options)
        if options.only in (None, "long"):
            rows += long_texts(precision, options)
    report(rows)


def timed(work: dict[str, Callable[[], Any]], options: argparse.Namespace) -> dict[str, list[float]]:
    """Times contenders in turn, as the options ask for."""
    return in_turn(work, rounds=options.rounds, warmup=1, clock=CLOCKS[options.clock])


def with_threads(options: argparse.Namespace) -> str:
    """Says what the times are of."""
    return f"{options.threads} thread{'s' * (options.threads > 1)}, {options.clock} time"


@dataclass
class Sides:
    """One masked-LM model of random weights, here and there."""

    family: str
    ours: ModelForPreTraining
    peer: Any
    dtype: torch.dtype

    @classmethod
    def of(cls, family: str, size: str, dtype: torch.dtype) -> Sides:
        """Draws the weights, and hands them over through a model folder."""
        torch.manual_seed(0)
        config = family_named(family).config.named(size, vocab_size=PIECES, pad_token_id=1)
        ours = ModelForPreTraining(config, pair_head=False)
        with tempfile.TemporaryDirectory() as folder:
            ours.save_pretrained(folder)
            peer = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="sdpa")
        ours.set_compute_dtype(dtype)
        return cls(family, ours.eval(), peer.eval(), dtype)

    def autocast(self) -> torch.autocast:
        """The peer's precision."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def rows(self, name: str, setting: str, times: dict[str, list[float]], precision: str) -> list[Comparison]:
        """Ours against each peer."""
        version = f"transformers {transformers.__version__} {precision}"
        ours = times["ours"]
        return [
            Comparison(f"{name}_{self.family}_{precision}", setting, f"{version}, {PEERS[who]}", ours, times[who])
            for who in PEERS
        ]


def forward(family: str, precision: str, options: argparse.Namespace) -> list[Comparison]:
    """Times the states of equal texts and of ragged ones."""
    sides = Sides.of(family, "6/384", PRECISIONS[precision])
    rng = np.random.default_rng(0)
    texts = {
        "forward": [LENGTH] * FORWARD_BATCH,
        "forward_ragged": [int(length) for length in rng.integers(4, LENGTH + 1, size=4 * FORWARD_BATCH)],
    }
    rows = []
    for name, lengths in texts.items():
        sequences = [rng.integers(1000, PIECES, size=length).tolist() for length in lengths]
        work: dict[str, Callable[[], list[Tensor]]] = {
            "ours": lambda sequences=sequences: our_states(sides.ours.backbone, sequences),  # type: ignore[misc]
            **{
                who: lambda sequences=sequences, who=who: peer_states(sides, sequences, who)  # type: ignore[misc]
                for who in PEERS
            },
        }
        found, wanted = torch.cat(work["ours"]()).float(), torch.cat(work["people"]()).float()
        check_states(f"{name} {family} {precision}", found, wanted, sides.dtype)
        setting = f"6/384, {len(lengths)} texts of {min(lengths)} to {max(lengths)} tokens, {with_threads(options)}"
        rows += sides.rows(name, setting, timed(work, options), precision)
    return rows


@torch.inference_mode()
def our_states(model: Backbone, sequences: list[list[int]]) -> list[Tensor]:
    """Returns the last layer's states of each sequence, read in packs of a token budget."""
    states: list[Tensor] = [torch.empty(0)] * len(sequences)
    for pack in packs_by_length([len(ids) for ids in sequences], TOKEN_BUDGET):
        batch = RaggedBatch.from_sequences([sequences[index] for index in pack])
        for index, part in zip(pack, model(batch).hidden_states.split(batch.lengths), strict=True):
            states[index] = part
    return states


@torch.inference_mode()
def peer_states(sides: Sides, sequences: list[list[int]], who: str) -> list[Tensor]:
    """The same by the peer; the expert sorts by length, and gives no mask to a batch without padding."""
    states: list[Tensor] = [torch.empty(0)] * len(sequences)
    order = list(range(len(sequences)))
    if who == "expert":
        order.sort(key=lambda index: len(sequences[index]))
    for start in range(0, len(order), FORWARD_BATCH):
        pack = order[start : start + FORWARD_BATCH]
        longest = max(len(sequences[index]) for index in pack)
        ids = torch.full((len(pack), longest), 1)
        mask = torch.zeros(len(pack), longest, dtype=torch.long)
        for row, index in enumerate(pack):
            ids[row, : len(sequences[index])] = torch.tensor(sequences[index])
            mask[row, : len(sequences[index])] = 1
        full = who == "expert" and bool(mask.all())
        with sides.autocast():
            output = sides.peer.base_model(input_ids=ids, attention_mask=None if full else mask).last_hidden_state
        for row, index in enumerate(pack):
            states[index] = output[row, : len(sequences[index])]
    return states


def check_states(what: str, found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Makes sure that both sides compute the same states before they are timed."""
    cosine = torch.cosine_similarity(found, wanted, dim=-1)
    print(f"{what}: cosine similarity of states: mean {cosine.mean():.6f}, lowest {cosine.min():.6f}")
    if 1 - float(cosine.mean()) > LARGEST_DIFFERENCE[dtype] / 100:
        raise SystemExit("the outputs differ; a comparison of speed would mean nothing")


def step(family: str, precision: str, options: argparse.Namespace) -> list[Comparison]:
    """Times a step of masked LM: forward, backward, clipping, AdamW."""
    sides = Sides.of(family, "mini", PRECISIONS[precision])
    batch = random_batch()
    objective = objective_named("mlm")
    with torch.no_grad():
        losses = {"ours": float(objective(sides.ours, batch).loss)}
        losses |= {who: float(peer_loss(sides, batch, who)) for who in PEERS}
    print(f"step {family} {precision}: losses {', '.join(f'{who} {loss:.5f}' for who, loss in losses.items())}")
    if max(losses.values()) - min(losses.values()) > LARGEST_DIFFERENCE[sides.dtype]:
        raise SystemExit("the losses differ: not the same work")
    trainer = BertTrainer(sides.ours, objective, TrainerSettings(total_steps=10**6, learning_rate=1e-4))
    # 各练各的一份：两个对手轮流更新同一个模型，动量会互相覆盖
    others = {who: Sides.of(family, "mini", sides.dtype) for who in PEERS}
    work: dict[str, Callable[[], object]] = {"ours": lambda: trainer.train_batch(batch)}
    work |= {who: peer_step(others[who], batch, who) for who in PEERS}
    setting = f"mini, {PIECES} pieces, {SEQUENCES} x {LENGTH}, {MASKED} masked, {with_threads(options)}"
    return sides.rows("step", setting, timed(work, options), precision)


def random_batch() -> PreTrainingBatch:
    """Returns one batch of random ids, all sequences full, 19 positions masked in each."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, PIECES, size=SEQUENCES * LENGTH)
    chosen = [np.sort(rng.choice(np.arange(1, LENGTH - 1), MASKED, replace=False)) for _ in range(SEQUENCES)]
    positions = np.concatenate([places + number * LENGTH for number, places in enumerate(chosen)])
    labels = ids[positions].copy()
    ids[positions] = 103
    return PreTrainingBatch(
        tokens=RaggedBatch.from_flat(ids, np.full(SEQUENCES, LENGTH)),
        masked_positions=torch.from_numpy(positions),
        masked_labels=torch.from_numpy(labels),
        next_sentence_labels=torch.zeros(0, dtype=torch.long),
    )


def peer_loss(sides: Sides, batch: PreTrainingBatch, who: str) -> Tensor:
    """Returns the loss as the peer's class computes it, or over the masked positions alone."""
    ids = batch.tokens.input_ids.view(SEQUENCES, LENGTH)
    with sides.autocast():
        if who == "people":
            labels = torch.full((SEQUENCES * LENGTH,), -100)
            labels[batch.masked_positions] = batch.masked_labels
            mask = torch.ones_like(ids)
            loss: Tensor = sides.peer(input_ids=ids, attention_mask=mask, labels=labels.view_as(ids)).loss
            return loss
        states = sides.peer.base_model(input_ids=ids).last_hidden_state.flatten(0, 1)
        logits = PEER_HEADS[sides.family](sides.peer, states[batch.masked_positions])
    return torch.nn.functional.cross_entropy(logits.float(), batch.masked_labels)


def peer_step(sides: Sides, batch: PreTrainingBatch, who: str) -> Callable[[], None]:
    """Returns the peer's step."""
    peer = sides.peer.train()
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-4, weight_decay=0.01, fused=who == "expert")

    def take_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        peer_loss(sides, batch, who).backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()

    return take_step


def long_texts(precision: str, options: argparse.Namespace) -> list[Comparison]:
    """Times ModernBERT on long texts in processes of their own, in turn, and reads their peaks of memory."""
    results: dict[str, list[dict[str, Any]]] = {"ours": [], "expert": []}
    with tempfile.TemporaryDirectory() as name:
        run_child("make", name, precision, options)
        for _ in range(1 if options.quick else 2):
            for who, found in results.items():
                found.append(run_child(who, name, precision, options))
        found, wanted = (torch.load(Path(name) / f"{who}.pt", weights_only=True) for who in results)
        check_states(f"long {precision}", found.float(), wanted.float(), PRECISIONS[precision])
    for who, each in results.items():
        before = statistics.median(one["before"] for one in each)
        print(f"long {precision}, {who}: {before:.0f} MiB before the first pass (libraries and weights)")
    setting = f"{options.layers}/768, {LONG_TEXTS} x {LONG_LENGTH}, {with_threads(options)}"
    peer = f"transformers {transformers.__version__} {precision}, {PEERS['expert']}"
    measured = (
        ("seconds", "", setting, "ms"),
        ("peak", "_peak", f"{setting}, whole process", "MiB"),
        ("grown", "_activations", f"{setting}, peak less what was there before", "MiB"),
    )
    rows = []
    for what, suffix, where, unit in measured:
        ours, theirs = ([value for one in each for value in one[what]] for each in results.values())
        name = f"long_modernbert_{precision}{suffix}"
        rows.append(Comparison(name, where, peer, ours, theirs, unit=cast("Literal['ms', 'MiB']", unit)))
    return rows


def run_child(who: str, folder: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs this script as a process of its own, and reads its last line."""
    command = [sys.executable, __file__, "--child", who, folder, "--precision", precision]
    for name in ("rounds", "threads", "layers", "clock"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def read_long_texts(who: str, folder: str, dtype: torch.dtype, options: argparse.Namespace) -> None:
    """Makes the model, or reads the texts with it: keeps the states, and prints seconds and MiB."""
    if who == "make":
        torch.manual_seed(0)
        family = family_named("modernbert")
        config = family.config.named("base", num_hidden_layers=options.layers, vocab_size=PIECES, pad_token_id=1)
        family.backbone(config).save_pretrained(folder)
        print("{}")
        return
    ids = torch.randint(1000, PIECES, (LONG_TEXTS, LONG_LENGTH), generator=torch.Generator().manual_seed(0))
    run = our_reader(folder, ids, dtype) if who == "ours" else peer_reader(folder, ids, dtype)
    # 从这里起重新记峰值：载入时的高点不算
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    seconds, clock = [], CLOCKS[options.clock]
    with torch.inference_mode():
        for _ in range(options.rounds + 1):
            begun = clock()
            states = run()
            seconds.append(clock() - begun)
    most = peak()
    torch.save(states, Path(folder) / f"{who}.pt")
    print(json.dumps({"seconds": seconds[1:], "peak": [most], "grown": [most - before], "before": before}))


def our_reader(folder: str, ids: Tensor, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Returns what computes the states [T, H] of the texts with our model."""
    model = family_named("modernbert").backbone.from_pretrained(folder).eval()
    model.set_compute_dtype(dtype)
    return lambda: model(RaggedBatch.from_padded(ids)).hidden_states


def peer_reader(folder: str, ids: Tensor, dtype: torch.dtype) -> Callable[[], Tensor]:
    """The same with `transformers`."""
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

    def run() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            states: Tensor = model(input_ids=ids).last_hidden_state
        return states.flatten(0, 1)

    return run


def peak() -> float:
    """Returns the most memory this process has had since it was last reset, in MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


if __name__ == "__main__":
    main()
