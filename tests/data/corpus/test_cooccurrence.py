"""First vectors of pieces, by hand and beside SciPy's exact decomposition."""

import numpy as np
import pytest
from scipy import sparse
from scipy.linalg import sqrtm

from bertsmith.data.corpus import cooccurrence
from bertsmith.data.corpus.cooccurrence import (
    contexts,
    neighbour_counts,
    passage_counts,
    piece_vectors,
    positive_information,
)
from bertsmith.data.corpus.shards import SplitCounts

WORDS = ["the", "man", "woman", "eats", "bread", "a", "dog", "sleeps", "reads", "book", "cat"]
THE, MAN, WOMAN, EATS, BREAD, A, DOG, SLEEPS, READS, BOOK, CAT = range(len(WORDS))
TEXTS = ["the man eats bread the woman eats bread", "a dog sleeps", "the man reads a book"] * 4


class Corpus:
    """What is read of a corpus, from words in place of shards. A text is a document; a full stop ends a sentence."""

    def __init__(self, texts):
        documents = [[np.array([WORDS.index(word) for word in part.split()]) for part in t.split(".")] for t in texts]
        pieces = np.concatenate([part for document in documents for part in document])
        self.piece_counts = np.bincount(pieces, minlength=len(WORDS))
        self.counts = {"train": SplitCounts(len(documents), sum(map(len, documents)), len(pieces))}
        self.document = lambda split, index: {"train": documents}[split][index]


def test_pairs_count_by_their_order_and_distance_within_a_document():
    counts = neighbour_counts(Corpus(["the man . eats bread", "a dog"])).toarray()
    assert counts[THE, MAN] == 1
    assert counts[MAN, THE] == 0
    assert counts[THE, EATS] == pytest.approx(1 / 2)
    # 句子的边界不是边界：文档的才是
    assert counts[MAN, EATS] == 1
    assert counts[BREAD, A] == counts[THE, THE] == 0
    assert counts[A, DOG] == 1
    assert counts.sum() == pytest.approx(3 + 2 / 2 + 1)


def test_a_pair_farther_apart_than_the_window_does_not_count():
    counts = neighbour_counts(Corpus(["the man eats bread"])).toarray()
    assert counts[THE, EATS] == pytest.approx(1 / cooccurrence.WINDOW)
    assert counts[THE, BREAD] == 0


def test_information_is_that_of_the_formula():
    counts = np.array([[0.0, 4.0, 1.0], [4.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    found = positive_information(sparse.csr_matrix(counts)).toarray()
    contexts = counts.sum(axis=0) ** 0.75 / (counts.sum(axis=0) ** 0.75).sum()
    for row in range(3):
        for column in range(3):
            share = counts[row, column] / counts[row].sum()
            expected = max(0.0, np.log(share / contexts[column])) if share else 0.0
            assert found[row, column] == pytest.approx(expected, abs=1e-6)


def test_a_passage_counts_each_pair_of_its_pieces_once(monkeypatch):
    monkeypatch.setattr(cooccurrence, "PASSAGE", 4)
    counts = passage_counts(Corpus(["the man eats the . bread sleeps", "a man eats"])).toarray()
    # 第一篇切成「the man eats the」与「bread sleeps」两段
    assert counts[THE, MAN] == counts[MAN, THE] == counts[BREAD, SLEEPS] == counts[A, MAN] == 1
    assert counts[MAN, EATS] == 2
    assert counts[THE, BREAD] == counts[EATS, SLEEPS] == 0
    assert not counts.diagonal().any()


def test_of_many_passages_a_part_is_read(monkeypatch):
    corpus = Corpus(TEXTS)
    monkeypatch.setattr(cooccurrence, "MOST_PASSAGES", 5)
    few = passage_counts(corpus).sum()
    monkeypatch.undo()
    assert 0 < few < 0.5 * passage_counts(corpus).sum()


def test_passages_weigh_half_of_what_neighbours_do():
    corpus = Corpus(TEXTS)
    found, size = contexts(corpus).toarray(), len(WORDS)
    near, far = np.linalg.norm(found[:, : 2 * size]), np.linalg.norm(found[:, 2 * size :])
    assert far == pytest.approx(cooccurrence.PASSAGE_WEIGHT * near, rel=1e-5)
    following = neighbour_counts(corpus)
    np.testing.assert_array_equal(found[:, :size], positive_information(following).toarray())
    np.testing.assert_array_equal(found[:, size : 2 * size], positive_information(following.T).toarray())


def test_all_directions_together_are_the_root_of_the_matrix():
    """U √S (U √S)ᵀ is the root of M Mᵀ: what the randomised decomposition must come to when nothing is left out."""
    corpus = Corpus(TEXTS)
    size = len(corpus.piece_counts)
    information = contexts(corpus).toarray().astype(np.float64)
    vectors = piece_vectors(corpus, size).astype(np.float64)
    root = sqrtm(information @ information.T).real
    gram = vectors @ vectors.T
    np.testing.assert_allclose(gram / gram.max(), root / root.max(), atol=1e-4)


def test_what_stands_among_the_same_pieces_is_alike():
    vectors = piece_vectors(Corpus(TEXTS), 16)

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    assert cosine(vectors[MAN], vectors[WOMAN]) > 0.3 + cosine(vectors[MAN], vectors[DOG])


def test_size_scale_and_seed():
    corpus = Corpus(TEXTS)
    wide, again, other = piece_vectors(corpus, 700), piece_vectors(corpus, 700), piece_vectors(corpus, 700, seed=1)
    seen = corpus.piece_counts > 0
    assert wide.shape == (len(WORDS), 700)
    assert wide.dtype == np.float32
    assert np.square(wide[seen]).sum(axis=1).mean() == pytest.approx(1, abs=1e-3)
    assert not wide[~seen].any()
    np.testing.assert_array_equal(wide, again)
    # 另一个种子只是另一次转动：彼此的角度不变
    assert not np.allclose(wide, other)
    np.testing.assert_allclose(wide @ wide.T, other @ other.T, atol=0.05 * (wide @ wide.T).max())


@pytest.mark.parametrize("texts", [["the"], ["the", "dog"]])
def test_text_without_a_pair_gives_zeros(texts):
    assert not piece_vectors(Corpus(texts), 8).any()


def test_of_a_large_corpus_a_part_is_read(monkeypatch):
    corpus = Corpus(TEXTS)
    whole = neighbour_counts(corpus).sum()
    monkeypatch.setattr(cooccurrence, "MOST_TOKENS", corpus.counts["train"].tokens // 3)
    assert 0 < neighbour_counts(corpus).sum() < 0.6 * whole
