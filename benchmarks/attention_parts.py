"""Attention over sentences of many lengths, on the CPU: one padded rectangle, or several with less padding.

A rectangle costs a few calls, and computes what nobody reads wherever a sentence is shorter than its longest. The table
shows one for all sentences, one for each length, and the cut that `MultiHeadSelfAttention` makes between the two; its
constants were chosen by these figures. The sentences lie sorted by length, as prediction and fine-tuning lay them.

    python benchmarks/attention_parts.py [--precision bf16] [--threads 1] [--rounds 7]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from bertsmith.batch import FULL, RaggedBatch
from bertsmith.kernels import ragged_attention
from bertsmith.kernels.layers import native_precision
from bertsmith.model import BertConfig, MultiHeadSelfAttention
from measured import add_options, results_of
from side_by_side import EXPERT, OURS, PEOPLE, rounds_of
from tables import print_table

SHAPES = ((256, 4), (384, 12), (768, 12))
LENGTHS = ((32, 5, 15), (64, 4, 12), (32, 20, 30), (32, 5, 50), (16, 20, 100), (16, 100, 128))
NEVER_CUT = 10**12


def main() -> None:
    """Times the three ways on every shape, for prediction and for training."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", choices=("float32", "bf16"), default=native_precision("cpu"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rounds = 1 if options.quick else options.rounds
    results, rows = results_of("attention_parts", options), []
    for width, heads in SHAPES[: 1 if options.quick else None]:
        for count, shortest, longest in LENGTHS:
            for use in ("prediction", "training"):
                sentences = f"{count} of {shortest} to {longest}"
                what = {"name": f"{use}, {width}/{heads}, {sentences}, {options.precision}"}
                measure = partial(measured, width, heads, (count, shortest, longest), use, options.precision, rounds)
                rows.append(results.get(what, measure))
    print_table(rows)


def measured(
    width: int, heads: int, sentences: tuple[int, int, int], use: str, precision: str, rounds: int
) -> dict[str, Any]:
    """Times the three ways on sentences, sorted by length."""
    attention = MultiHeadSelfAttention(
        BertConfig(hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width)
    ).train(use == "training")
    count, shortest, longest = sentences
    draw = random.Random(0)
    lengths = sorted(draw.randint(shortest, longest) for _ in range(count))
    batch = RaggedBatch.from_sequences([[2] * length for length in lengths])
    chosen = ragged_attention.CUT_COST_IN_TRAINING if attention.training else ragged_attention.CUT_COST
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    found = times(attention, batch, dtype, (chosen, NEVER_CUT, 0), rounds)
    names = (OURS, PEOPLE, f"{EXPERT}: one rectangle a length")
    figures = {"rectangles": len(ragged_attention.cut_into_rectangles(batch, chosen // heads))}
    peers = {PEOPLE: "one rectangle", names[2]: "one rectangle a length"}
    return rounds_of(dict(zip(names, found, strict=True)), peers=peers, figures=figures)


def times(
    attention: MultiHeadSelfAttention, batch: RaggedBatch, dtype: torch.dtype, cut_costs: Sequence[int], rounds: int
) -> list[list[float]]:
    """Returns the seconds with each cost of a cut, in turn; with the backward pass where it trains."""
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
    return seconds


if __name__ == "__main__":
    main()
