"""Search by vectors: the passages whose unit vectors have the largest product with the query's.

Up to some ten thousand vectors all products are computed. Above that, FAISS looks at one bit of every number first
(RaBitQ, Gao and Long 2024): 48 bytes for 384 numbers, estimates that need no training and no graph. The best of these
are then compared exactly, with the vectors on disk. The estimates can miss a neighbour, the order of what is found is
exact. A filtered search compares all that the filter leaves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.cores import available_cores
from bertsmith.errors import ConfigError
from bertsmith.retrieval.ranking import best

EXACT_ROWS = 50_000
"""Up to so many vectors all are compared: the memory that 50,000 take is read in a few milliseconds."""
CANDIDATES = 1_000
"""How many of the best estimates are compared exactly, at least."""
_BLOCK = 65_536


class DenseSearch:
    """Finds the vectors nearest to one."""

    def __init__(self, vectors: NDArray[np.float32], codes: Any = None) -> None:
        """Takes vectors and their codes.

        Args:
            vectors: [N, H] float32 of unit length; may be mapped from a file.
            codes: of `open_codes`; None compares all.
        """
        self.vectors = vectors
        self._codes = codes

    def search(
        self, query: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Finds the nearest vectors.

        Args:
            query: [H] float32 of unit length.
            k: how many, at least 1.
            rows: the only ones to look at, ascending; None for all.

        Returns:
            [n] rows and [n] cosines, best first, n ≤ k.
        """
        if rows is None and self._codes is not None:
            wanted = min(max(CANDIDATES, 4 * k), len(self.vectors))
            found = self._codes.search(query[None], wanted)[1][0]
            rows = np.sort(found[found >= 0])
        if rows is None:
            scores = self.vectors @ query
        else:
            # 分块取行：过滤后仍可能有上百万行，一次取出就是整份拷贝
            parts = [self.vectors[rows[at : at + _BLOCK]] @ query for at in range(0, len(rows), _BLOCK)]
            scores = np.concatenate([np.zeros(0, dtype=np.float32), *parts])
        top = np.sort(best(scores, k))
        top = top if rows is None else rows[top]
        # 矩阵乘法的舍入与行的位置有关：逐行再算一遍，相同的向量才有相同的分
        exact: NDArray[np.float32] = (self.vectors[top] * query).sum(axis=1)
        order = best(exact, k)
        return top[order], exact[order]


def write_codes(vectors: NDArray[np.float32], path: Path) -> None:
    """Writes one bit for every number of N vectors, as FAISS reads it.

    Raises:
        ConfigError: FAISS is not installed.
    """
    faiss = _faiss()
    width = vectors.shape[1]
    # 先随机旋转：真实向量的各维方差不等，旋转后每一位的信息量才相近
    codes = faiss.index_factory(width, f"RR{width},RaBitQfs", faiss.METRIC_INNER_PRODUCT)
    codes.train(np.ascontiguousarray(vectors[:: max(1, len(vectors) // _BLOCK)]))
    for start in range(0, len(vectors), _BLOCK):
        codes.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
    faiss.write_index(codes, str(path))


def open_codes(path: Path) -> Any:
    """Reads what `write_codes` wrote.

    Raises:
        ConfigError: FAISS is not installed.
    """
    faiss = _faiss()
    faiss.omp_set_num_threads(available_cores())
    return faiss.read_index(str(path))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ConfigError("faiss is not installed; pip install 'bertsmith[search]'") from None
    return faiss
