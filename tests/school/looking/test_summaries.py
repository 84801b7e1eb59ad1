import math

import numpy as np
import pytest

from bertsmith_school.looking.maps import MEASURES, AttentionMaps, pair_shares, summaries

TOKENS = ["[CLS]", "a", "[SEP]", "b", "[SEP]"]
TYPES = [0, 0, 0, 1, 1]
EYE, ALIKE = np.eye(5), np.full((5, 5), 0.2)
PREVIOUS = np.roll(np.eye(5), -1, axis=1)


def of_heads(*heads):
    return AttentionMaps(TOKENS, TYPES, np.array([heads], dtype=np.float32), (2, 4))


@pytest.fixture
def found():
    return {name: values[0].tolist() for name, values in summaries(of_heads(EYE, ALIKE, PREVIOUS)).items()}


def test_every_measure_is_there_for_every_head(found):
    assert list(found) == list(MEASURES)
    assert all(len(values) == 3 for values in found.values())


def test_a_head_that_looks_at_itself(found):
    assert [found[name][0] for name in MEASURES] == pytest.approx([0, 0, 0.2, 0.4, 1, 0, 0])


def test_a_head_that_looks_everywhere(found):
    # the mean distance of two draws from 0 to 4: (25 - 1) / (3 * 5)
    assert [found[name][1] for name in MEASURES] == pytest.approx([math.log(5), 1.6, 0.2, 0.4, 0.2, 0.2, 0.2])


def test_a_head_that_looks_one_step_away(found):
    # every token looks at the one before it, and [CLS] at the last one, four steps away
    assert [found[name][2] for name in MEASURES] == pytest.approx([0, 8 / 5, 0.2, 0.4, 0, 1, 0])


def test_a_pruned_head_has_no_measures():
    for values in summaries(of_heads(EYE, np.full((5, 5), np.nan))).values():
        assert np.isnan(values).tolist() == [[False, True]]


def test_the_shares_of_a_pair():
    shares = pair_shares(of_heads(EYE, ALIKE, PREVIOUS).maps, TYPES)
    assert shares.shape == (1, 3, 2, 2)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(shares[0, 0], [[1, 0], [0, 1]], atol=1e-6)
    np.testing.assert_allclose(shares[0, 1], [[0.6, 0.4], [0.6, 0.4]], atol=1e-6)
    # of A, [CLS] alone looks over to B; of B, its first token looks back at the separator of A
    np.testing.assert_allclose(shares[0, 2], [[2 / 3, 1 / 3], [1 / 2, 1 / 2]], atol=1e-6)
