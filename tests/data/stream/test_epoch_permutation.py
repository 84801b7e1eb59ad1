import numpy as np
import pytest
from scipy import stats

from bertsmith.data.stream import stream as order
from bertsmith.data.stream.stream import EpochPermutation


@pytest.fixture
def always_computed(monkeypatch):
    """Computes the order of small corpora as that of large ones."""
    monkeypatch.setattr(order, "DRAWN_DOCUMENTS", 0)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 17, 1000, 4097])
@pytest.mark.usefixtures("always_computed")
def test_every_document_comes_once(count):
    found = EpochPermutation(count, seed=1, epoch=2).places(0, count)
    assert sorted(found.tolist()) == list(range(count))


@pytest.mark.usefixtures("always_computed")
def test_any_part_of_the_order_is_the_same_as_in_the_whole():
    whole = EpochPermutation(5000, seed=3, epoch=0).places(0, 5000)
    assert np.array_equal(EpochPermutation(5000, seed=3, epoch=0).places(4321, 100), whole[4321:4421])
    assert len(EpochPermutation(5000, seed=3, epoch=0).places(4990, 100)) == 10
    assert len(EpochPermutation(5000, seed=3, epoch=0).places(6000, 100)) == 0


@pytest.mark.usefixtures("always_computed")
def test_a_computed_order_looks_random():
    """Where a document goes, and which one follows another, is uniform over seeds (chi-square)."""
    count, seeds = 20, 4000
    orders = np.array([EpochPermutation(count, seed, 0).places(0, count) for seed in range(seeds)])
    for place in (0, 7, 19):
        assert stats.chisquare(np.bincount(orders[:, place], minlength=count)).pvalue > 1e-4
    steps = (np.diff(orders[:, :2], axis=1) % count).ravel()
    assert stats.chisquare(np.bincount(steps, minlength=count)[1:]).pvalue > 1e-4
    long = EpochPermutation(100_000, seed=0, epoch=0).places(0, 100_000)
    assert abs(stats.spearmanr(np.arange(100_000), long).statistic) < 0.02


def test_a_hundred_million_documents_take_no_memory():
    large = EpochPermutation(10**8, seed=0, epoch=0)
    found = large.places(99_999_000, 5000)
    assert len(found) == 1000
    assert len(set(found.tolist())) == 1000
    assert found.max() < 10**8
