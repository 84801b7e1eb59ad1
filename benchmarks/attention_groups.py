"""Attention over sentences of many lengths: a group for each length against one padded rectangle, on the CPU.

A group computes nothing for padding and costs a few calls; a rectangle costs a few calls in all and computes what
nobody reads. Where the one beats the other says when `MultiHeadSelfAttention` should choose which: the table shows
what it chooses, from the padded attention weights that each group saves.

    python benchmarks/attention_groups.py [--threads 1] [--rounds 7]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch
from rich.console import Console
from rich.table import Table

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertConfig
from bertsmith.model.attention import MultiHeadSelfAttention

SHAPES = ((256, 4), (384, 12), (768, 12))
LENGTHS = ((32, 5, 15), (64, 4, 12), (32, 20, 30), (32, 5, 50), (16, 20, 100), (16, 100, 128))
WAYS = ("_attend_padded", "_attend_grouped")


def main() -> None:
    """Times both ways on every shape, for prediction and for training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table(title=f"attention of one layer, float32, {options.threads} thread(s), ms", title_justify="left")
    for heading in ("width, heads", "sentences", "padding a group", "for", "rectangle", "groups", "chosen"):
        table.add_column(heading)
    for width, heads in SHAPES:
        attention = MultiHeadSelfAttention(
            BertConfig(hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width)
        )
        for count, shortest, longest in LENGTHS:
            draw = random.Random(0)
            batch = RaggedBatch.from_sequences([[2] * draw.randint(shortest, longest) for _ in range(count)])
            runs = batch.equal_runs
            padding = count * batch.max_seqlen**2 - sum(many * length**2 for many, length in runs)
            for training in (False, True):
                attention.train(training)
                rectangle, groups = times(attention, batch, options.rounds)
                table.add_row(
                    f"{width}, {heads}",
                    f"{count} of {shortest} to {longest}",
                    f"{heads * padding // len(runs):,}",
                    "training" if training else "prediction",
                    f"{1000 * rectangle:.1f}",
                    f"{1000 * groups:.1f}",
                    "groups" if attention._is_grouped(batch) else "rectangle",
                )
    Console(width=120).print(table)


def times(attention: MultiHeadSelfAttention, batch: RaggedBatch, rounds: int) -> tuple[float, float]:
    """Returns the median seconds of a rectangle and of groups, in turn; with the backward pass where it trains."""
    projected = torch.randn(batch.num_tokens, 3, attention.num_heads, attention.head_size)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(1 + rounds):
        for way in WAYS:
            leaf = projected.clone().requires_grad_(attention.training)
            begun = time.perf_counter()
            with torch.set_grad_enabled(attention.training):
                states = getattr(attention, way)(leaf, batch, causal=False)
                if attention.training:
                    states.sum().backward()
            # 第一轮是预热，不计
            if number:
                seconds[way].append(time.perf_counter() - begun)
    rectangle, groups = (statistics.median(seconds[way]) for way in WAYS)
    return rectangle, groups


if __name__ == "__main__":
    main()
