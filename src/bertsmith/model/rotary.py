"""Rotary position embedding: where a token stands is an angle that turns its queries and keys (Su et al. 2021).

A learned table says where a token stands in the sequence. Here the product of a query at m with a key at n depends on
m - n alone, so that one pattern (`the word before mine`) serves every place of the text. Nothing is learned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.kernels.rotation import rotate


def rotary_angles(batch: RaggedBatch, head_size: int, base: float) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines of a batch, each [T, D/2] float32.

    Args:
        batch: gives the place of every token in its sequence.
        head_size: D, an even number.
        base: θ: pair i of the dimensions turns by `base ** (-2 i / D)` radians a token, so that a larger base tells
            places further apart from each other.
    """
    known, key = batch.kept, ("angles", head_size, base)
    if key in known:
        found: tuple[Tensor, Tensor] = known[key]
        return found
    if torch.compiler.is_compiling():
        return _angles(batch, head_size, base)
    # 推理模式造出的张量不能参与之后的训练：在它之外计算
    with torch.inference_mode(False):
        found = known[key] = _angles(batch, head_size, base)
    return found


def _angles(batch: RaggedBatch, head_size: int, base: float) -> tuple[Tensor, Tensor]:
    pairs = torch.arange(0, head_size, 2, dtype=torch.float32, device=batch.position_ids.device)
    # 低维转得快，分辨相邻的词；高维转得慢，分辨远近
    angles = batch.position_ids[:, None].float() * base ** (-pairs / head_size)
    return angles.cos(), angles.sin()


def rotated(qkv: Tensor, batch: RaggedBatch, base: float) -> Tensor:
    """Turns the queries and keys of every token by the angles of its place; the values stay.

    Args:
        qkv: [T, 3, A, D]; dimension i of a head is paired with i + D/2, as published models have it.
        batch: gives the places.
        base: see `rotary_angles`.

    Returns:
        [T, 3, A, D].
    """
    return rotate(qkv, *rotary_angles(batch, qkv.shape[-1], base))
