"""Attention over sentences of many lengths, on the CPU: one padded rectangle, or several with less padding.

A rectangle costs a few calls, and computes what nobody reads wherever a sentence is shorter than its longest. The table
shows one for all sentences, one for each length, and the cut that `MultiHeadSelfAttention` makes between the two; its
constants were chosen by these figures. The sentences lie sorted by length, as prediction and fine-tuning lay them.

    python benchmarks/attention_parts.py [--precision bf16] [--threads 1] [--rounds 7]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from bertsmith.batch import FULL, RaggedBatch
from bertsmith.kernels import ragged_attention
from bertsmith.model import BertConfig, MultiHeadSelfAttention

SHAPES = ((256, 4), (384, 12), (768, 12))
LENGTHS = ((32, 5, 15), (64, 4, 12), (32, 20, 30), (32, 5, 50), (16, 20, 100), (16, 100, 128))
NEVER_CUT = 10**12


def main() -> None:
    """Times the three ways on every shape, for prediction and for training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    title = f"attention of one layer, {options.precision}, {options.threads} thread(s), ms"
    table = Table(title=title, title_justify="left")
    for heading in ("width, heads", "sentences", "for", "one rectangle", "one a length", "as chosen", "rectangles"):
        table.add_column(heading)
    for width, heads in SHAPES:
        attention = MultiHeadSelfAttention(
            BertConfig(hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width)
        )
        for count, shortest, longest in LENGTHS:
            draw = random.Random(0)
            lengths = sorted(draw.randint(shortest, longest) for _ in range(count))
            batch = RaggedBatch.from_sequences([[2] * length for length in lengths])
            for training in (False, True):
                attention.train(training)
                chosen = ragged_attention.CUT_COST_IN_TRAINING if training else ragged_attention.CUT_COST
                seconds = times(attention, batch, dtype, (NEVER_CUT, 0, chosen), options.rounds)
                table.add_row(
                    f"{width}, {heads}",
                    f"{count} of {shortest} to {longest}",
                    "training" if training else "prediction",
                    *(f"{1000 * each:.1f}" for each in seconds),
                    str(len(ragged_attention.cut_into_rectangles(batch, chosen // heads))),
                )
    Console(width=120).print(table)


def times(
    attention: MultiHeadSelfAttention, batch: RaggedBatch, dtype: torch.dtype, cut_costs: Sequence[int], rounds: int
) -> list[float]:
    """Returns the median seconds with each cost of a cut, in turn; with the backward pass where it trains."""
    dropout = attention.dropout.probability if attention.training else 0.0
    qkv = torch.randn(batch.num_tokens, 3, attention.num_heads, attention.head_size, dtype=dtype)
    seconds: list[list[float]] = [[] for _ in cut_costs]
    for number in range(1 + rounds):
        for cut_cost, taken in zip(cut_costs, seconds, strict=True):
            leaf = qkv.clone().requires_grad_(attention.training)
            with patch.multiple(ragged_attention, CUT_COST=cut_cost, CUT_COST_IN_TRAINING=cut_cost):
                begun = time.perf_counter()
                with torch.set_grad_enabled(attention.training):
                    states = ragged_attention.ragged_attention(
                        *(leaf, batch, FULL, attention.attend), training=attention.training, dropout=dropout
                    )
                    if attention.training:
                        states.sum().backward()
                # 第一轮是预热，不计
                if number:
                    taken.append(time.perf_counter() - begun)
    return [statistics.median(taken) for taken in seconds]


if __name__ == "__main__":
    main()
