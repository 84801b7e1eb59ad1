"""What a head does, in a few numbers (Clark et al. 2019, "What Does BERT Look At?", §3 and §4).

Every measure is a mean over the tokens of the text: how spread a head's attention is, how far it reaches, and what
share of it goes to `[CLS]`, to `[SEP]`, to the neighbours and, of a pair, from one text to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.interpret.maps import AttentionMaps, Floats


@dataclass(frozen=True)
class HeadMeasure:
    """One number about a head.

    Attributes:
        name: as in a heading.
        meaning: one sentence.
        is_share: whether it lies in [0, 1] and is shown in percent.
    """

    name: str
    meaning: str
    is_share: bool


MEASURES: dict[str, HeadMeasure] = {
    "entropy": HeadMeasure(
        "entropy", "How spread the attention is, in nats: 0 for one token, ln S for all alike.", False
    ),
    "distance": HeadMeasure("distance", "How far away the tokens are that are read, in tokens.", False),
    "cls": HeadMeasure("to [CLS]", "Share that goes to [CLS].", True),
    "sep": HeadMeasure("to [SEP]", "Share that goes to [SEP]: often a head's way of doing nothing.", True),
    "itself": HeadMeasure("to itself", "Share that a token gives to itself.", True),
    "previous": HeadMeasure("to previous", "Share that goes to the token before, of the tokens that have one.", True),
    "next": HeadMeasure("to next", "Share that goes to the token behind, of the tokens that have one.", True),
}
"""The measures by key, in the order in which they are shown."""

PAIRS = ("A→A", "A→B", "B→A", "B→B")
"""Names of the four shares of `pair_shares`, row by row."""


def summaries(attention: AttentionMaps) -> dict[str, Floats]:
    """Measures every head.

    Args:
        attention: of one text or pair.

    Returns:
        For each key of `MEASURES` [L, A] float32; NaN where a head was pruned.
    """
    maps = attention.maps.astype(np.float64)
    size = len(attention.tokens)
    places = np.arange(size)
    distance = np.abs(places[:, None] - places)
    # 0 ln 0 取 0：softmax 下溢成 0 的权重不贡献熵
    logarithms = np.log(np.where(maps > 0, maps, 1.0))
    found = {
        "entropy": np.abs((maps * logarithms).sum(-1)).mean(-1),
        "distance": (maps * distance).sum(-1).mean(-1),
        "cls": maps[..., 0].mean(-1),
        "sep": maps[..., list(attention.separators)].sum(-1).mean(-1),
        "itself": maps[..., places, places].mean(-1),
        # 第一个词没有前一个、最后一个没有后一个：只对有邻居的词取平均
        "previous": maps[..., places[1:], places[:-1]].mean(-1),
        "next": maps[..., places[:-1], places[1:]].mean(-1),
    }
    return {name: found[name].astype(np.float32) for name in MEASURES}


def pair_shares(maps: Floats, token_type_ids: Sequence[int]) -> Floats:
    """Measures how much the two texts of a pair read each other.

    Args:
        maps: [L, A, S, S].
        token_type_ids: S segments, both present; special tokens count with the segment they stand in.

    Returns:
        [L, A, 2, 2] float32: what the tokens of one text (row) give to each text (column), on average; rows add up
        to 1.
    """
    types = np.asarray(token_type_ids)
    shares = [
        [maps[:, :, types == reader][:, :, :, types == read].sum(-1, dtype=np.float64).mean(-1) for read in (0, 1)]
        for reader in (0, 1)
    ]
    return np.stack([np.stack(row, -1) for row in shares], -2).astype(np.float32)
