"""One pre-training step against `transformers`: forward, backward, AdamW.

The setting is the house's: mini (L4 H256), 30,522 pieces, 32 sequences of 128 with 19 masked pieces each, on two
threads. Both sides start from the same weights, read the same batch, have the paper's dropout on, and their losses
are compared first, with dropout off. The peer computes logits for every position, as its class does.

    python benchmarks/pretrain_step.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable

import numpy as np
import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream import PreTrainingBatch
from bertsmith.model import BertConfig, BertForPreTraining
from bertsmith.objectives import PreTrainingObjective
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from side_by_side import Comparison, compare, report

SEQUENCES, LENGTH, MASKED, PIECES = 32, 128, 19, 30522
THREADS = 2
LARGEST_LOSS_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def main() -> None:
    """Compares the losses, then the times, in float32 and in bf16."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(THREADS)
    transformers.logging.set_verbosity_error()
    report([measure(dtype, rounds) for dtype in (torch.float32, torch.bfloat16)])


def measure(dtype: torch.dtype, rounds: int) -> Comparison:
    """Builds both sides from one set of weights and times them in one dtype."""
    torch.manual_seed(0)
    ours = BertForPreTraining(BertConfig.named("mini", vocab_size=PIECES))
    ours.set_compute_dtype(dtype)
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        peer = transformers.BertForPreTraining.from_pretrained(folder)
    batch = random_batch()
    peer_batch = padded_batch(batch)
    check_losses(ours, peer, batch, peer_batch, dtype)
    trainer = BertTrainer(ours, PreTrainingObjective(), TrainerSettings(total_steps=10**6, learning_rate=1e-4))
    name = "bf16" if dtype == torch.bfloat16 else "float32"
    return compare(
        f"pretrain_step_{name}",
        lambda: trainer.train_batch(batch),
        peer_step(peer, peer_batch, dtype),
        peer_name=f"transformers {transformers.__version__} {name}{' autocast' if name == 'bf16' else ''}",
        setting=f"mini 4/256, {PIECES} pieces, {SEQUENCES} x {LENGTH}, {MASKED} masked, {THREADS} threads",
        rounds=rounds,
    )


def random_batch() -> PreTrainingBatch:
    """Returns one batch of random ids, all sequences full, 19 positions chosen in each."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, PIECES, size=SEQUENCES * LENGTH)
    positions = np.concatenate(
        [np.sort(rng.choice(np.arange(1, LENGTH - 1), MASKED, replace=False)) + n * LENGTH for n in range(SEQUENCES)]
    )
    labels = ids[positions].copy()
    ids[positions] = 103
    types = np.tile(np.repeat([0, 1], LENGTH // 2), SEQUENCES)
    return PreTrainingBatch(
        tokens=RaggedBatch.from_flat(ids, np.full(SEQUENCES, LENGTH), types),
        masked_positions=torch.from_numpy(positions),
        masked_labels=torch.from_numpy(labels),
        next_sentence_labels=torch.from_numpy(rng.integers(0, 2, size=SEQUENCES)),
    )


def padded_batch(batch: PreTrainingBatch) -> dict[str, torch.Tensor]:
    """Lays the same batch out as the peer wants it: labels of -100 wherever nothing is masked."""
    labels = torch.full((SEQUENCES * LENGTH,), -100)
    labels[batch.masked_positions] = batch.masked_labels
    return {
        "input_ids": batch.tokens.input_ids.view(SEQUENCES, LENGTH),
        "token_type_ids": batch.tokens.token_type_ids.view(SEQUENCES, LENGTH),
        "attention_mask": torch.ones(SEQUENCES, LENGTH, dtype=torch.long),
        "labels": labels.view(SEQUENCES, LENGTH),
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
        our_loss = PreTrainingObjective()(ours, batch).loss.item()
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
