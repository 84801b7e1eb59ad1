"""Orders of rows: the best of many scores, and one order made of several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RANK_CONSTANT = 60
"""What is added to every rank, so that the first place of one order does not outweigh all others (Cormack et al.)."""
USUAL_WEIGHT = 0.4
"""Of vectors beside words. On XQuAD's questions good vectors are best at 0.5, vectors from nothing at 0.2. Here neither
loses much, and both are better than by reciprocal ranks (docs/notes/measurements.md, "Words and vectors")."""
DEPTH = 100
"""How many passages of each order are looked at where two are joined, at least."""


def best(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Returns the places of the k highest scores, highest first; of equals the earlier one.

    Args:
        scores: [N] finite numbers.
        k: at least 1; more than N gives all.
    """
    if k < len(scores):
        # 先按阈值取，并列的都留下，再稳定排序：结果不取决于 partition 内部的次序
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= least)
    else:
        places = np.arange(len(scores))
    order = np.argsort(-scores[places], kind="stable")[:k]
    found: NDArray[np.int64] = places[order]
    return found


def reciprocal_ranks(orders: Sequence[NDArray[np.int64]]) -> dict[int, float]:
    """Adds up 1 / (60 + rank) over several orders (Cormack, Clarke and Büttcher 2009).

    Ranks need no common scale, which cosines and BM25 scores do not have.

    Args:
        orders: rows of each, best first.

    Returns:
        row → score, for every row that stands in one of them.
    """
    scores: dict[int, float] = {}
    for order in orders:
        for rank, row in enumerate(order.tolist(), 1):
            scores[row] = scores.get(row, 0.0) + 1.0 / (RANK_CONSTANT + rank)
    return scores


def weighted_scores(
    dense: tuple[NDArray[np.int64], NDArray[np.float32]],
    lexical: tuple[NDArray[np.int64], NDArray[np.float32]],
    weight: float,
) -> dict[int, float]:
    """Adds the scores of two searches, each scaled to [0, 1] over what it found.

    Args:
        dense: rows and scores.
        lexical: rows and scores.
        weight: of the dense ones, in [0, 1]; the lexical ones have the rest.

    Returns:
        row → score in [0, 1]; a row that one search did not find has 0 there.
    """
    scores: dict[int, float] = {}
    for (rows, found), share in ((dense, weight), (lexical, 1.0 - weight)):
        least, most = (float(found.min()), float(found.max())) if len(found) else (0.0, 0.0)
        for row, score in zip(rows.tolist(), found.tolist(), strict=True):
            # 全部相等时没有高低可分：都算找到，记满分
            scaled = (score - least) / (most - least) if most > least else 1.0
            scores[row] = scores.get(row, 0.0) + share * scaled
    return scores


def joined_scores(
    dense: NDArray[np.float32], lexical: NDArray[np.float32], weight: float | None = USUAL_WEIGHT
) -> NDArray[np.float32]:
    """Joins the scores of all texts, as a search over both joins what it finds.

    Args:
        dense: [N].
        lexical: [N]; 0 where a text shares no word with the query.
        weight: of the dense ones, in [0, 1]; None adds reciprocal ranks instead.

    Returns:
        [N]; 0 for a text that is among the best `DEPTH` of neither.
    """
    orders = [best(dense, DEPTH), best(lexical, DEPTH)]
    orders[1] = orders[1][lexical[orders[1]] > 0]
    if weight is None:
        found = reciprocal_ranks(orders)
    else:
        found = weighted_scores((orders[0], dense[orders[0]]), (orders[1], lexical[orders[1]]), weight)
    joined = np.zeros(len(dense), dtype=np.float32)
    joined[list(found)] = list(found.values())
    return joined
