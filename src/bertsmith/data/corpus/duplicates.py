"""Which documents nearly repeat an earlier one.

MinHash signatures (Broder 1997) of five-id shingles are compared within the buckets of `datasketch`'s LSH index; it
holds some kilobytes a document, which limits this to some millions of documents. The first in input order stays,
whoever read it first: the answer depends on the documents alone.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.shards import TokenizedDocuments
from bertsmith.errors import ConfigError

_PERMUTATIONS = 128
_SCHEME = "affine32"  # named, so that another version of the library gives the same signatures
_SHINGLE = 5


def signatures_of(documents: TokenizedDocuments) -> NDArray[np.uint32]:
    """Makes the MinHash signature, [D, 128], of every document from the set of its runs of five ids."""
    bounds = documents.document_bounds().tolist()
    signatures = np.empty((documents.num_documents, _PERMUTATIONS), dtype=np.uint32)
    # 排列只由固定种子决定：只生成一次，各篇文档共用
    empty = _library().MinHash(num_perm=_PERMUTATIONS, seed=1, hashfunc=int, scheme=_SCHEME)
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        signature = empty.copy()
        signature.update_batch(np.unique(_shingle_hashes(documents.tokens[start:end])).tolist())
        signatures[number] = signature.hashvalues
    return signatures


class NearDuplicates:
    """Remembers the documents that stay, and recognises those that come near one of them.

    `threshold`, above 0 and at most 1, is the share of common shingles (Jaccard similarity, as the signatures estimate
    it) from which two documents count as one.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._library = _library()
        self._index = self._library.MinHashLSH(threshold=threshold, num_perm=_PERMUTATIONS)
        self._kept: list[NDArray[np.uint32]] = []

    def repeats(self, signature: NDArray[np.uint32]) -> bool:
        """Whether a document is near one that stays; if not, it stays itself."""
        minhash = self._library.LeanMinHash(seed=1, hashvalues=signature, scheme=_SCHEME)
        # 桶里的候选只是“可能相似”，逐个用签名的相同比例核实
        near = (np.mean(self._kept[number] == signature) for number in self._index.query(minhash))
        if any(share >= self._threshold for share in near):
            return True
        self._index.insert(len(self._kept), minhash)
        self._kept.append(signature)
        return False


def _library() -> Any:
    try:
        import datasketch
    except ImportError:
        raise ConfigError(
            "--near-duplicates needs datasketch; install it with: pip install 'bertsmith[dedup]'"
        ) from None
    return datasketch


def _shingle_hashes(tokens: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Hashes all runs of five ids of a document; a shorter document is one run."""
    count = max(1, len(tokens) - _SHINGLE + 1)
    padded = np.concatenate([tokens.astype(np.uint64) + np.uint64(1), np.zeros(_SHINGLE, dtype=np.uint64)])
    mixed = np.zeros(count, dtype=np.uint64)
    for shift in range(_SHINGLE):
        mixed = (mixed + padded[shift : shift + count]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(32)).astype(np.uint32)
