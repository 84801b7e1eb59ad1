"""One pre-training step against `transformers`: forward, backward, AdamW.

The settings: mini (L4 H256) and small (L4 H512) with 32 sequences of 128, base (L12 H768) with 8, each sequence with
19 masked pieces of a vocabulary of 30,522, on two threads. Both sides start from the same weights, read the same
batch, have the paper's dropout on, and their losses are compared first, with dropout off. The peer computes logits
for every position, as its class does.

Model FLOPs utilisation: the operations of a step in closed form, as `bertsmith sizes` counts them, over the step's
time and over the rate of the feed-forward layer's matmul, measured right before.

    python benchmarks/pretrain_step.py [--rounds 7] [--only mini] [--precision float32]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable

import numpy as np
import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.kernels.speed import measure_matmul_flops
from bertsmith.model import BertConfig, BertForPreTraining
from bertsmith.model.sizes import BatchCosts
from bertsmith.objectives import objective_named
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from side_by_side import Comparison, compare, report

LENGTH, MASKED, PIECES = 128, 19, 30522
THREADS = 2
SETTINGS = {
    "mini": (32, (torch.float32, torch.bfloat16)),
    "small": (32, (torch.float32, torch.bfloat16)),
    "base": (8, (torch.float32, torch.bfloat16)),
}
"""Sequences in a step, and the dtypes measured."""
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
LARGEST_LOSS_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def main() -> None:
    """Compares the losses, then the times, in float32 and in bf16."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=SETTINGS, help="one size instead of all")
    parser.add_argument("--precision", choices=PRECISIONS, help="one of the two instead of both")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    transformers.logging.set_verbosity_error()
    sizes = [options.only] if options.only else list(SETTINGS)
    dtypes = [PRECISIONS[options.precision]] if options.precision else list(PRECISIONS.values())
    report([measure(size, dtype, options.rounds) for size in sizes for dtype in SETTINGS[size][1] if dtype in dtypes])


def measure(size: str, dtype: torch.dtype, rounds: int) -> Comparison:
    """Builds both sides from one set of weights and times them in one dtype."""
    torch.manual_seed(0)
    sequences = SETTINGS[size][0]
    ours = BertForPreTraining(BertConfig.named(size, vocab_size=PIECES))
    ours.set_compute_dtype(dtype)
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        peer = transformers.BertForPreTraining.from_pretrained(folder)
    batch = random_batch(sequences)
    peer_batch = padded_batch(batch)
    check_losses(ours, peer, batch, peer_batch, dtype)
    trainer = BertTrainer(ours, objective_named("mlm+nsp"), TrainerSettings(total_steps=10**6, learning_rate=1e-4))
    name = "bf16" if dtype == torch.bfloat16 else "float32"
    comparison = compare(
        f"pretrain_step_{size}_{name}",
        lambda: trainer.train_batch(batch),
        peer_step(peer, peer_batch, dtype),
        peer_name=f"transformers {transformers.__version__} {name}{' autocast' if name == 'bf16' else ''}",
        setting=f"{size}, {PIECES} pieces, {sequences} x {LENGTH}, {MASKED} masked, {THREADS} threads",
        rounds=rounds,
    )
    cost = BatchCosts(ours.config, sequences, LENGTH)
    peak = measure_matmul_flops(ours.config.hidden_size, cost.num_tokens, dtype)
    utilisation = cost.training_flops / statistics.median(comparison.ours) / peak
    print(f"{size} {name}: {100 * utilisation:.0f} % of the {peak / 1e9:.0f} GFLOP/s of its matmul")
    return comparison


def random_batch(sequences: int) -> PreTrainingBatch:
    """Returns one batch of random ids, all sequences full, 19 positions chosen in each."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, PIECES, size=sequences * LENGTH)
    positions = np.concatenate(
        [np.sort(rng.choice(np.arange(1, LENGTH - 1), MASKED, replace=False)) + n * LENGTH for n in range(sequences)]
    )
    labels = ids[positions].copy()
    ids[positions] = 103
    types = np.tile(np.repeat([0, 1], LENGTH // 2), sequences)
    return PreTrainingBatch(
        tokens=RaggedBatch.from_flat(ids, np.full(sequences, LENGTH), types),
        masked_positions=torch.from_numpy(positions),
        masked_labels=torch.from_numpy(labels),
        next_sentence_labels=torch.from_numpy(rng.integers(0, 2, size=sequences)),
    )


def padded_batch(batch: PreTrainingBatch) -> dict[str, torch.Tensor]:
    """Lays the same batch out as the peer wants it: labels of -100 wherever nothing is masked."""
    sequences = batch.tokens.num_sequences
    labels = torch.full((sequences * LENGTH,), -100)
    labels[batch.masked_positions] = batch.masked_labels
    return {
        "input_ids": batch.tokens.input_ids.view(sequences, LENGTH),
        "token_type_ids": batch.tokens.token_type_ids.view(sequences, LENGTH),
        "attention_mask": torch.ones(sequences, LENGTH, dtype=torch.long),
        "labels": labels.view(sequences, LENGTH),
        "next_sentence_label": batch.next_sentence_labels,
    }


def check_losses(
    ours: BertForPreTraining,
    peer: transformers.BertForPreTraining,
    batch: PreTrainingBatch,
    peer_batch: dict[str, torch.Tensor],
    dtype: torch.dtype,
) -> None:
    """Makes sure that both sides compute the same thing before they are timed."""
    ours.eval()
    peer.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        peer_loss = peer(**peer_batch).loss.item()
    with torch.no_grad():
        our_loss = objective_named("mlm+nsp")(ours, batch).loss.item()
    difference = abs(our_loss - peer_loss)
    print(f"{dtype}: loss ours {our_loss:.5f}, peer {peer_loss:.5f}, difference {difference:.1e}")
    if difference > LARGEST_LOSS_DIFFERENCE[dtype]:
        raise SystemExit("the losses differ: not the same work")
    peer.train()


def peer_step(
    peer: transformers.BertForPreTraining, batch: dict[str, torch.Tensor], dtype: torch.dtype
) -> Callable[[], None]:
    """Returns the peer's step: its own loss, clipping and fused AdamW, as its Trainer does them."""
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = peer(**batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
