"""One pre-training step against `transformers`: forward, backward, AdamW.

The settings: mini (L4 H256) and small (L4 H512) with 32 sequences of 128, base (L12 H768) with 8, each sequence with
19 masked pieces of a vocabulary of 30,522, on two threads. Both sides start from the same weights, read the same
batch, have the paper's dropout on, and their losses are compared first, with dropout off. There are two peers. *As
people write it*: the class's own loss, which computes logits at every position. *As an expert writes it*: the masked
positions are gathered before the decoder, and a batch without padding has no attention mask.

Model FLOPs utilisation: the operations of a step in closed form, as `bertsmith sizes` counts them, over the step's
time and over the rate of the feed-forward layer's matmul, measured right before.

    python benchmarks/pretrain_step.py [--rounds 7] [--only mini] [--precision float32]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from functools import partial

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
from side_by_side import Comparison, in_turn, report

LENGTH, MASKED, PIECES = 128, 19, 30522
THREADS = 2
SETTINGS = {
    "mini": (32, (torch.float32, torch.bfloat16)),
    "small": (32, (torch.float32, torch.bfloat16)),
    "base": (8, (torch.float32, torch.bfloat16)),
}
"""Sequences in a step, and the dtypes measured."""
PEERS = {"people": "as people write it", "expert": "as an expert writes it"}
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
    asked = [(size, dtype) for size in sizes for dtype in SETTINGS[size][1] if dtype in dtypes]
    report([row for size, dtype in asked for row in measure(size, dtype, options.rounds)])


def measure(size: str, dtype: torch.dtype, rounds: int) -> list[Comparison]:
    """Builds all sides from one set of weights and times them in one dtype."""
    torch.manual_seed(0)
    sequences = SETTINGS[size][0]
    ours = BertForPreTraining(BertConfig.named(size, vocab_size=PIECES))
    ours.set_compute_dtype(dtype)
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        peers = {name: transformers.BertForPreTraining.from_pretrained(folder) for name in PEERS}
    batch = random_batch(sequences)
    losses = {
        "people": partial(people_loss, peers["people"], padded_batch(batch)),
        "expert": partial(expert_loss, peers["expert"], batch),
    }
    for who, peer in peers.items():
        check_losses(ours, peer, batch, losses[who], dtype)
    trainer = BertTrainer(ours, objective_named("mlm+nsp"), TrainerSettings(total_steps=10**6, learning_rate=1e-4))
    name = "bf16" if dtype == torch.bfloat16 else "float32"
    steps = {who: peer_step(peer, losses[who], dtype) for who, peer in peers.items()}
    times = in_turn({"ours": lambda: trainer.train_batch(batch), **steps}, rounds=rounds)
    setting = f"{size}, {PIECES} pieces, {sequences} x {LENGTH}, {MASKED} masked, {THREADS} threads"
    peer_name = f"transformers {transformers.__version__} {name}{' autocast' if name == 'bf16' else ''}"
    comparisons = [
        Comparison(f"pretrain_step_{size}_{name}", setting, f"{peer_name}, {how}", times["ours"], times[who])
        for who, how in PEERS.items()
    ]
    cost = BatchCosts(ours.config, sequences, LENGTH)
    peak = measure_matmul_flops(ours.config.hidden_size, cost.num_tokens, dtype)
    utilisation = cost.training_flops / statistics.median(times["ours"]) / peak
    print(f"{size} {name}: {100 * utilisation:.0f} % of the {peak / 1e9:.0f} GFLOP/s of its matmul")
    return comparisons


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
    loss_of_peer: Callable[[], torch.Tensor],
    dtype: torch.dtype,
) -> None:
    """Makes sure that both sides compute the same thing before they are timed."""
    ours.eval()
    peer.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        peer_loss = loss_of_peer().item()
    with torch.no_grad():
        our_loss = objective_named("mlm+nsp")(ours, batch).loss.item()
    difference = abs(our_loss - peer_loss)
    print(f"{dtype}: loss ours {our_loss:.5f}, peer {peer_loss:.5f}, difference {difference:.1e}")
    if difference > LARGEST_LOSS_DIFFERENCE[dtype]:
        raise SystemExit("the losses differ: not the same work")
    peer.train()


def people_loss(peer: transformers.BertForPreTraining, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the loss as the peer's class computes it."""
    loss: torch.Tensor = peer(**batch).loss
    return loss


def expert_loss(peer: transformers.BertForPreTraining, batch: PreTrainingBatch) -> torch.Tensor:
    """Returns the same loss from the masked positions alone, and without a mask for padding that is not there."""
    shape = (batch.tokens.num_sequences, LENGTH)
    encoded = peer.bert(batch.tokens.input_ids.view(shape), token_type_ids=batch.tokens.token_type_ids.view(shape))
    states = encoded.last_hidden_state.flatten(0, 1).index_select(0, batch.masked_positions)
    pieces, pairs = peer.cls.predictions(states), peer.cls.seq_relationship(encoded.pooler_output)
    cross_entropy = torch.nn.functional.cross_entropy
    return cross_entropy(pieces.float(), batch.masked_labels) + cross_entropy(pairs.float(), batch.next_sentence_labels)


def peer_step(
    peer: transformers.BertForPreTraining, loss_of_peer: Callable[[], torch.Tensor], dtype: torch.dtype
) -> Callable[[], None]:
    """Returns a peer's step: its loss, clipping and fused AdamW, as its Trainer does them."""
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = loss_of_peer()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
