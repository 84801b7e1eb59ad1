"""The order in which an epoch visits the documents: a random permutation of any number of them in bounded memory.

Up to a million documents the permutation is drawn and kept. Beyond that it is computed place by place: a Feistel
network turns any keyed function into a permutation of the numbers below a power of four (Luby and Rackoff 1988), and
what falls outside the range is sent through again until it falls inside (cycle walking; Black and Rogaway 2002). So
the memory, and the time to open an epoch in its middle, do not grow with the corpus.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertsmith.seeding import generator

DRAWN_DOCUMENTS = 2**20
"""Most documents whose order is drawn and kept: 8 MiB."""

_ROUNDS = 6
"""Four suffice in theory for an ideal round function; ours is a quick mixer."""


class EpochPermutation:
    """The order of one epoch."""

    def __init__(self, num_documents: int, seed: int, epoch: int) -> None:
        """Chooses the order by (seed, epoch) alone."""
        self.num_documents = num_documents
        rng = generator(seed, "stream/document order", epoch)
        self._drawn = rng.permutation(num_documents) if num_documents <= DRAWN_DOCUMENTS else None
        self._keys = rng.integers(0, 2**64, size=_ROUNDS, dtype=np.uint64) if self._drawn is None else None

    def places(self, first: int, count: int) -> NDArray[np.int64]:
        """Returns the documents at `count` places from `first` on; fewer at the end of the epoch."""
        if self._drawn is not None:
            drawn: NDArray[np.int64] = self._drawn[first : first + count]
            return drawn
        last = min(first + count, self.num_documents)
        return self._permuted(np.arange(first, max(first, last), dtype=np.uint64)).astype(np.int64)

    def _permuted(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        half = np.uint64(-(-(self.num_documents - 1).bit_length() // 2))
        values = self._encrypted(places, half)
        # 落在范围之外的再走一圈：置换的每个环都会回到范围之内，所以结果仍是一一对应
        while (outside := values >= self.num_documents).any():
            values[outside] = self._encrypted(values[outside], half)
        return values

    def _encrypted(self, values: NDArray[np.uint64], half: np.uint64) -> NDArray[np.uint64]:
        """Permutes the numbers below 4 ** `half`."""
        assert self._keys is not None
        mask = (np.uint64(1) << half) - np.uint64(1)
        left, right = values >> half, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        return (left << half) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes the bits of 64-bit numbers: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
