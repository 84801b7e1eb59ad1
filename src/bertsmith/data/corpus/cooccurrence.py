"""First vectors of the pieces, counted: pieces that stand among the same pieces get vectors that point the same way.

A model that starts from random vectors spends its first minutes on finding out which words are alike. How often each
piece stands near each other one says that already (Levy and Goldberg 2014): the positive pointwise mutual information
of all pairs, reduced to as many dimensions as the model has. Counting takes seconds.

- neighbours up to `WINDOW` pieces away count; a pair at distance d counts 1/d
- a neighbour on the left is another context than the same piece on the right: what may be guessed depends on the side
- that pieces occur in the same passages counts too, with less weight: neighbours tell what a piece can do in a
  sentence, passages what it is about (as in Deerwester et al. 1990)
- frequent contexts are held down by the power `SMOOTHING`, as word2vec does with its negative samples
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.seeding import generator

WINDOW = 2
SMOOTHING = 0.75
PASSAGE, MOST_PASSAGES = 64, 10_000
"""Pieces of a passage, and passages that are read; of more, these are evenly spread."""
PASSAGE_WEIGHT = 0.5
"""Of what passages tell, relative to what neighbours tell (root of the sum of squares)."""
MOST_TOKENS = 10_000_000
"""A larger corpus is read in part: documents evenly spread, until about so many tokens are counted."""
_POWER_STEPS = 2
"""Of the randomised decomposition: two bring the directions close to exact where singular values fall slowly."""


def piece_vectors(corpus: TokenCorpus, size: int, *, seed: int = 0) -> NDArray[np.float32]:
    """Returns vectors of the pieces, [V, size]: mean square length 1 for those seen in training, zero for the rest."""
    from sklearn.utils.extmath import randomized_svd

    information = contexts(corpus)
    rank = min(size, information.shape[0])
    draw = generator(seed, "corpus/piece vectors")
    left, values, _ = randomized_svd(
        information, rank, n_iter=_POWER_STEPS, random_state=int(draw.integers(2**31)), flip_sign=False
    )
    # M ≈ U S Vᵀ：取 U √S，词与上下文各分一半（Levy 与 Goldberg 2014）
    vectors = left * np.sqrt(values)
    # 随机转一个方向：否则头几维又大又有共性，LayerNorm 会让它们压过其余
    turn, _ = np.linalg.qr(draw.standard_normal((size, size)))
    turned = vectors @ turn[:rank]
    seen = information.getnnz(axis=1) > 0
    if not seen.any():
        return np.zeros_like(turned, dtype=np.float32)
    length = np.sqrt(np.square(turned[seen]).sum(axis=1).mean())
    return np.where(seen[:, None], turned / length, 0.0).astype(np.float32)


def contexts(corpus: TokenCorpus) -> sparse.csr_matrix:
    """Returns the information, [V, 3 V], that each piece shares with its left and right neighbours and its passages."""
    following = neighbour_counts(corpus)
    # 左邻与右邻分开算两组：掩码语言模型猜词时，左右的含义不同
    near = sparse.hstack([positive_information(following), positive_information(following.T)])
    far = positive_information(passage_counts(corpus))
    scale = PASSAGE_WEIGHT * np.linalg.norm(near.data) / max(float(np.linalg.norm(far.data)), 1e-12)
    # 同一次分解里相加：语域清楚的小词表多取主题，词多的文本多取邻词，不必为谁留出几维
    return sparse.hstack([near, np.float32(scale) * far]).tocsr()


def neighbour_counts(corpus: TokenCorpus) -> sparse.csr_matrix:
    """Counts which pieces follow which within `WINDOW` in a document: [V, V], row before column, weighing 1/d."""
    size = len(corpus.piece_counts)
    # 各文档首尾相接，中间隔开一个窗口：一次减法就得到所有距离为 d 的词对
    gap = np.full(WINDOW, -1, dtype=np.int64)
    stream = np.concatenate([gap, *(part for document in _documents(corpus) for part in (document, gap))])
    counts = sparse.csr_matrix((size, size), dtype=np.float32)
    for distance in range(1, WINDOW + 1):
        first, second = stream[:-distance], stream[distance:]
        inside = (first >= 0) & (second >= 0)
        weights = np.full(int(inside.sum()), 1 / distance, dtype=np.float32)
        counts += sparse.csr_matrix((weights, (first[inside], second[inside])), shape=(size, size))
    return counts


def passage_counts(corpus: TokenCorpus) -> sparse.csr_matrix:
    """Counts in how many passages two different pieces occur together: [V, V], symmetric."""
    passages = [
        document[start : start + PASSAGE]
        for document in _documents(corpus)
        for start in range(0, len(document), PASSAGE)
    ]
    chosen = passages[:: max(1, -(-len(passages) // MOST_PASSAGES))]
    pieces = [np.unique(passage) for passage in chosen]
    ends = np.cumsum([0, *(len(each) for each in pieces)])
    shape = (len(pieces), len(corpus.piece_counts))
    found = sparse.csr_matrix((np.ones(ends[-1], np.float32), np.concatenate(pieces), ends), shape=shape)
    together = (found.T @ found).tocsr()
    together.setdiag(0)
    together.eliminate_zeros()
    return together


def positive_information(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Returns max(0, log p(context | piece) / p(context)) of pieces by contexts, p(context) of power `SMOOTHING`."""
    totals = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
    smoothed = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel() ** SMOOTHING
    pairs = counts.tocoo()
    expected = totals[pairs.row] * smoothed[pairs.col] / max(smoothed.sum(), 1.0)
    information = np.log(pairs.data / expected)
    # 只留正值：没有一起出现，多半只是没见到，说明不了两个词相斥
    kept = information > 0
    return sparse.csr_matrix(
        (information[kept].astype(np.float32), (pairs.row[kept], pairs.col[kept])), shape=counts.shape
    )


def _documents(corpus: TokenCorpus) -> Iterator[NDArray[np.int32]]:
    """The documents of the training split, or a part of them that is evenly spread."""
    known = corpus.counts["train"]
    every = max(1, -(-known.tokens // MOST_TOKENS))
    for index in range(0, known.documents, every):
        yield np.concatenate(corpus.document("train", index))
