"""Search by vectors, against all products."""

import numpy as np
import pytest

from bertsmith.retrieval.dense import DenseSearch, open_codes, write_codes


def unit_vectors(count, width=64, seed=0):
    drawn = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


VECTORS, QUERIES = unit_vectors(3000), unit_vectors(20, seed=1)


def test_all_are_compared():
    for query in QUERIES:
        rows, scores = DenseSearch(VECTORS).search(query, 7)
        exact = VECTORS.astype(np.float64) @ query
        assert rows.tolist() == np.argsort(-exact)[:7].tolist()
        np.testing.assert_allclose(scores, exact[rows], atol=1e-6)


def test_filtered_rows_are_all_compared():
    some = np.arange(1, 3000, 3)
    for codes in (None, object()):
        rows, _ = DenseSearch(VECTORS, codes).search(QUERIES[0], 5, some)
        assert rows.tolist() == some[np.argsort(-(VECTORS[some] @ QUERIES[0]))[:5]].tolist()
    assert DenseSearch(VECTORS).search(QUERIES[0], 5, some[:0])[0].tolist() == []


@pytest.mark.parametrize("width", [64, 60, 384])
def test_codes_find_nearly_all_and_score_exactly(width, tmp_path):
    pytest.importorskip("faiss")
    vectors, queries = unit_vectors(5000, width), unit_vectors(20, width, seed=1)
    write_codes(vectors, tmp_path / "codes")
    search = DenseSearch(vectors, open_codes(tmp_path / "codes"))
    hits = 0
    for query in queries:
        rows, scores = search.search(query, 10)
        np.testing.assert_allclose(scores, vectors[rows] @ query, atol=1e-6)
        assert (np.diff(scores) <= 0).all()
        hits += len(set(rows.tolist()) & set(np.argsort(-(vectors @ query))[:10].tolist()))
    assert hits >= 0.95 * 200
    assert search.search(vectors[17], 1)[0].tolist() == [17]
    assert len(search.search(queries[0], 6000)[0]) == 5000
