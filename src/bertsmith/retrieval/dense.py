"""Search by vectors: the passages whose vectors are most like the query's, as the model's folder compares them.

Up to some ten thousand vectors all are compared. Above that, FAISS looks at one bit of every number first (RaBitQ, Gao
and Long 2024): 48 bytes for 384 numbers, estimates that need no training and no graph. The best of these are then
compared exactly, with the vectors on disk. The estimates can miss a neighbour, the order of what is found is exact. A
filtered search compares all that the filter leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError
from bertsmith.inference.embed import SimilarityFunction, similarities
from bertsmith.parallel import available_cores

RANK_CONSTANT = 60
"""What is added to every rank, so that the first place of one order does not outweigh all others (Cormack et al.)."""
USUAL_WEIGHT = 0.4
"""Of vectors beside words. On XQuAD's questions good vectors are best at 0.5, vectors from nothing at 0.2. Here neither
loses much, and both are better than by reciprocal ranks (docs/notes/measurements.md, "Words and vectors")."""
DEPTH = 100
"""How many passages of each order are looked at where two are joined, at least."""

Found = tuple[NDArray[np.int64], NDArray[np.float32]]
"""What a search found: [n] rows and [n] scores, best first."""


def search_library(module: str, package: str = "") -> Any:
    """Returns a library of the extra `search`; ConfigError where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"{package or module} is not installed; pip install 'bertsmith[search]'") from None


def best(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Returns the places of the k ≥ 1 highest scores (or of all N), highest first; of equals the earlier one."""
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
    """Adds up 1 / (60 + rank) over several orders: row → score (Cormack, Clarke and Büttcher 2009).

    Ranks need no common scale, which cosines and BM25 scores do not have.
    """
    scores: dict[int, float] = {}
    for order in orders:
        for rank, row in enumerate(order.tolist(), 1):
            scores[row] = scores.get(row, 0.0) + 1.0 / (RANK_CONSTANT + rank)
    return scores


def weighted_scores(dense: Found, lexical: Found, weight: float) -> dict[int, float]:
    """Adds the scores of two searches, each scaled to [0, 1] over what it found: row → score in [0, 1].

    The dense ones have `weight`, in [0, 1], the lexical ones the rest. A row that one search did not find has 0 there.
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
    """Joins the [N] scores of all texts, as a search over both joins what it finds.

    A lexical score is 0 where a text shares no word with the query. The dense ones have `weight`, in [0, 1]; None adds
    reciprocal ranks instead. The result, [N], is 0 for a text that is among the best `DEPTH` of neither.
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


PRODUCTS = ("cosine", "dot")
"""Similarities that are a product of two vectors; codes estimate no others."""
EXACT_ROWS = 50_000
"""Up to so many vectors all are compared: the memory that 50,000 take is read in a few milliseconds."""
CANDIDATES = 1_000
"""How many of the best estimates are compared exactly, at least."""
_BLOCK = 65_536


class DenseSearch:
    """Finds the vectors nearest to one."""

    def __init__(
        self, vectors: NDArray[np.float32], codes: Any = None, similarity: SimilarityFunction = "cosine"
    ) -> None:
        """Takes vectors [N, H], for `cosine` of unit length, and `codes` of `open_codes`; None compares all."""
        self.vectors = vectors
        self._codes = codes
        self._similarity = similarity

    def search(self, query: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None = None) -> Found:
        """Finds the vectors nearest to `query` [H], for `cosine` of unit length, among all or only `rows`, ascending.

        Returns:
            [n] rows and [n] similarities, best first, n ≤ k.
        """
        if rows is None and self._codes is not None:
            wanted = min(max(CANDIDATES, 4 * k), len(self.vectors))
            found = self._codes.search(query[None], wanted)[1][0]
            rows = np.sort(found[found >= 0])
        if rows is None:
            scores = self._compared(self.vectors, query)
        else:
            # 分块取行：过滤后仍可能有上百万行，一次取出就是整份拷贝
            blocks = (self.vectors[rows[at : at + _BLOCK]] for at in range(0, len(rows), _BLOCK))
            parts = [self._compared(block, query) for block in blocks]
            scores = np.concatenate([np.zeros(0, dtype=np.float32), *parts])
        top = np.sort(best(scores, k))
        top = top if rows is None else rows[top]
        # 矩阵乘法的舍入与行的位置有关：逐行再算一遍，相同的向量才有相同的分
        near = self.vectors[top]
        exact: NDArray[np.float32] = (
            (near * query).sum(axis=1) if self._similarity in PRODUCTS else self._compared(near, query)
        )
        order = best(exact, k)
        return top[order], exact[order]

    def _compared(self, vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.float32]
        found = (
            vectors @ query if self._similarity in PRODUCTS else similarities(query[None], vectors, self._similarity)[0]
        )
        return found


def write_codes(vectors: NDArray[np.float32], path: Path) -> None:
    """Writes one bit for every number of N vectors, as FAISS reads it."""
    faiss = search_library("faiss")
    width = vectors.shape[1]
    # 先随机旋转：真实向量的各维方差不等，旋转后每一位的信息量才相近
    codes = faiss.index_factory(width, f"RR{width},RaBitQfs", faiss.METRIC_INNER_PRODUCT)
    codes.train(np.ascontiguousarray(vectors[:: max(1, len(vectors) // _BLOCK)]))
    for start in range(0, len(vectors), _BLOCK):
        codes.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
    faiss.write_index(codes, str(path))


def open_codes(path: Path) -> Any:
    """Reads what `write_codes` wrote; FileNotFoundError where the file is gone."""
    faiss = search_library("faiss")
    faiss.omp_set_num_threads(available_cores())
    try:
        return faiss.read_index(str(path))
    except RuntimeError:
        # faiss 只说打不开：文件若已不在，那是更新换掉了旧的一代，由 FileNotFoundError 来说
        path.stat()
        raise
