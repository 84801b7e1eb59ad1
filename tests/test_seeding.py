import numpy as np
from scipy import stats

from bertsmith.seeding import generator, key_of, torch_seed


def test_draws_depend_on_their_purpose_only():
    assert generator(1, "masking", 2, 3).random() == generator(1, "masking", 2, 3).random()
    keys = {key_of(s, p, a, b) for s in range(3) for p in ("masking", "pairs") for a in range(10) for b in range(10)}
    assert len(keys) == 600


def test_seeds_of_numpy_are_those_of_python():
    assert generator(np.int64(3), "masking", np.uint32(1)).random() == generator(3, "masking", 1).random()


def test_neighbouring_counters_are_independent():
    draws = np.array([generator(0, "x", i).random() for i in range(5000)])
    assert stats.kstest(draws, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.05


def test_torch_seeds_fit():
    assert 0 <= torch_seed(0, "dropout", 10**12) < 2**63
