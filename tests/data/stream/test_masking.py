import numpy as np
import pytest
from scipy import stats

from bertsmith.data.stream.masking import MaskingSettings, mask_tokens
from bertsmith.errors import ConfigError

VOCAB_SIZE, MASK, SPECIALS = 1000, 4, np.arange(5)


def draw(num_sequences, length, *, seed=0, settings=None):
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, size=num_sequences * length)
    ids[::length] = 2
    ids[length - 1 :: length] = 3
    lengths = np.full(num_sequences, length)
    masked = mask_tokens(
        ids,
        lengths,
        special_ids=SPECIALS,
        mask_token_id=MASK,
        vocab_size=VOCAB_SIZE,
        settings=settings or MaskingSettings(),
        rng=rng,
    )
    return ids, masked


def test_every_sequence_gets_the_rounded_share_of_masks():
    _, masked = draw(200, 128)
    per_sequence = np.bincount(masked.positions // 128, minlength=200)
    # round(0.15 * 128) = 19, as in the released procedure
    assert set(per_sequence.tolist()) == {19}


@pytest.mark.parametrize("length", [3, 4, 5])
def test_short_sequences_get_at_least_one_mask(length):
    _, masked = draw(50, length)
    assert np.bincount(masked.positions // length, minlength=50).tolist() == [1] * 50


def test_special_tokens_are_never_chosen_and_never_drawn():
    ids, masked = draw(500, 32)
    assert not np.isin(ids[masked.positions], SPECIALS).any()
    replaced = masked.input_ids[masked.positions]
    assert not np.isin(replaced[replaced != MASK], SPECIALS).any()
    untouched = np.setdiff1d(np.arange(len(ids)), masked.positions)
    assert np.array_equal(masked.input_ids[untouched], ids[untouched])


def test_labels_are_the_true_ids():
    ids, masked = draw(20, 64)
    assert np.array_equal(masked.labels, ids[masked.positions])


def test_a_sequence_of_specials_only_is_left_alone():
    ids = np.array([2, 3, 2, 7, 3])
    masked = mask_tokens(
        ids,
        np.array([2, 3]),
        special_ids=SPECIALS,
        mask_token_id=MASK,
        vocab_size=VOCAB_SIZE,
        settings=MaskingSettings(),
        rng=np.random.default_rng(0),
    )
    assert masked.positions.tolist() == [3]


def test_the_fates_are_80_10_10():
    ids, masked = draw(5000, 140)
    new, old = masked.input_ids[masked.positions], ids[masked.positions]
    total = len(old)
    counts = np.array([(new == MASK).sum(), ((new != MASK) & (new != old)).sum(), (new == old).sum()])
    assert total > 100_000
    # a random piece may hit the true one: of 10 % random, 1 in 995 looks unchanged
    expected = total * np.array([0.8, 0.1 * (994 / 995), 0.1 + 0.1 / 995])
    assert stats.chisquare(counts, expected).pvalue > 1e-4


def test_positions_are_uniform():
    _, masked = draw(5000, 34)
    counts = np.bincount(masked.positions % 34, minlength=34)
    assert counts[0] == counts[33] == 0
    assert stats.chisquare(counts[1:33]).pvalue > 1e-4


def test_with_a_spread_every_sequence_has_a_rate_of_its_own():
    """Evenly from none (one piece, then) to twice the rate, whatever the rest of the batch."""
    _, masked = draw(5000, 102, settings=MaskingSettings(rate=0.3, spread=1.0))
    counts = np.bincount(masked.positions // 102, minlength=5000)
    assert (counts.min(), counts.max()) == (1, 61)
    assert counts.mean() == pytest.approx(0.3 * 102, rel=0.02)
    # 60 个数各占六十分之一；1 还收下 0
    inner = np.bincount(counts, minlength=62)[2:61]
    assert stats.chisquare(inner).pvalue > 1e-4


def test_a_spread_hides_no_more_than_all():
    _, masked = draw(500, 102, settings=MaskingSettings(rate=0.8, spread=1.0))
    counts = np.bincount(masked.positions // 102, minlength=500)
    # 0.8 x (1 ± 0.25)：从 0.6 到 1，首尾两个特殊符号不选
    assert (counts.min(), counts.max()) == (61, 100)


@pytest.mark.parametrize("spread", [-0.1, 1.1, float("nan")])
def test_a_spread_that_cannot_be(spread):
    with pytest.raises(ConfigError, match=r"mask spread .* is outside \[0, 1\]"):
        MaskingSettings(spread=spread)
