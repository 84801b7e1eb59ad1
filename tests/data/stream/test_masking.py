"""Pieces, whole words and spans, on 100,000 draws, against the published distributions."""

import numpy as np
import pytest
from scipy import stats

from bertsmith.data.stream.masking import MaskingSettings, mask_tokens, span_lengths
from bertsmith.errors import ConfigError

VOCAB_SIZE, MASK, SPECIALS = 1000, 4, np.arange(5)


def draw(num_sequences, length, *, seed=0, word_sizes=(1, 2, 3), **settings):
    """Sequences of words of some pieces each, `[CLS]` first, `[SEP]` in the middle and at the end."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, size=(num_sequences, length))
    ids[:, 0], ids[:, length // 2], ids[:, -1] = 2, 3, 3
    sizes = rng.choice(word_sizes, size=ids.size)
    going_on = np.ones(ids.size + max(word_sizes), dtype=bool)
    begins = np.cumsum(sizes) - sizes
    going_on[begins[begins < ids.size]] = False
    going_on = going_on[: ids.size]
    masked = mask_tokens(
        ids.ravel(),
        np.full(num_sequences, length),
        special_ids=SPECIALS,
        mask_token_id=MASK,
        vocab_size=VOCAB_SIZE,
        settings=MaskingSettings(**settings),
        rng=rng,
        continuations=going_on,
    )
    return ids.ravel(), going_on, masked


def words_of(ids, going_on):
    """Word number of every piece, -1 on specials, found one piece at a time."""
    word, found, previous_special = -1, [], True
    for piece, continues in zip(ids.tolist(), going_on.tolist(), strict=True):
        if piece < 5:
            found.append(-1)
            previous_special = True
            continue
        if previous_special or not continues:
            word += 1
        found.append(word)
        previous_special = False
    return np.array(found)


@pytest.mark.parametrize("kind", ["whole-word", "span"])
def test_words_are_hidden_whole_and_specials_never(kind):
    ids, going_on, masked = draw(6000, 128, kind=kind)
    assert len(masked.positions) > 100_000
    words = words_of(ids, going_on)
    hidden = np.zeros(len(ids), dtype=bool)
    hidden[masked.positions] = True
    assert not hidden[words < 0].any()
    sizes = np.bincount(words[words >= 0])
    chosen = np.bincount(words[hidden], minlength=len(sizes))
    assert set(np.unique(chosen[chosen > 0] - sizes[chosen > 0])) == {0}
    assert np.array_equal(masked.labels, ids[masked.positions])
    assert not np.isin(masked.input_ids[~hidden & (words >= 0)], SPECIALS).any()


@pytest.mark.parametrize("kind", ["whole-word", "span"])
def test_the_budget_is_used_up_to_a_word(kind):
    _, _, masked = draw(6000, 128, kind=kind)
    per_sequence = np.bincount(masked.positions // 128, minlength=6000)
    # 19 = round(0.15 * 128); no word is longer than 3, so at most 2 places stay empty
    assert per_sequence.max() == 19
    assert per_sequence.min() >= 17
    assert per_sequence.mean() > 18.9


@pytest.mark.parametrize("kind", ["whole-word", "span"])
def test_the_first_word_of_a_batch_counts_with_its_pieces(kind):
    for seed in range(300):
        _, _, masked = draw(1, 40, seed=seed, kind=kind)
        # 6 = round(0.15 * 40)
        assert 4 <= len(masked.positions) <= 6


@pytest.mark.parametrize("kind", ["token", "whole-word"])
def test_every_word_is_equally_likely(kind):
    """With words of one size each word of a sequence has the same chance, wherever it stands."""
    _, _, masked = draw(8000, 102, kind=kind, word_sizes=(1,))
    counts = np.bincount(masked.positions % 102, minlength=102)
    assert counts[[0, 51, 101]].tolist() == [0, 0, 0]
    assert stats.chisquare(np.delete(counts, [0, 51, 101])).pvalue > 1e-4


def fates(ids, masked):
    new, old = masked.input_ids[masked.positions], ids[masked.positions]
    return np.where(new == MASK, 0, np.where(new == old, 2, 1))


@pytest.mark.parametrize("kind", ["token", "whole-word"])
def test_pieces_draw_their_own_fates(kind):
    ids, _, masked = draw(6000, 128, kind=kind)
    counts = np.bincount(fates(ids, masked), minlength=3)
    share = np.array([0.8, 0.1 * (994 / 995), 0.1 + 0.1 / 995])
    assert stats.chisquare(counts, share * counts.sum()).pvalue > 1e-4


def test_a_span_has_one_fate():
    """80/10/10 over 100,000 spans; within a span all pieces are [MASK], or all random, or all kept."""
    ids, _, masked = draw(16_000, 256, kind="span", word_sizes=(1,), rate=0.1)
    span = np.cumsum(masked.spans[:, 2] == 0) - 1
    assert span[-1] > 100_000
    fate = fates(ids, masked)
    hidden = np.bincount(span, weights=fate == 0)
    sizes = np.bincount(span)
    assert set(np.unique(hidden[hidden > 0] - sizes[hidden > 0])) == {0}
    # a random piece may hit the true one, so kept and random are told apart by the whole span
    kept = np.bincount(span, weights=fate == 2) == sizes
    long = sizes >= 3
    counts = [(hidden[long] > 0).sum(), (~kept & (hidden == 0))[long].sum(), kept[long].sum()]
    assert stats.chisquare(counts, np.array([0.8, 0.1, 0.1]) * sum(counts)).pvalue > 1e-4


def geometric(stop, longest):
    weights = stop * (1 - stop) ** np.arange(longest)
    return weights / weights.sum()


def test_drawn_span_lengths_are_the_truncated_geometric_of_spanbert():
    lengths = span_lengths(100_000, MaskingSettings(kind="span"), np.random.default_rng(0))
    expected = geometric(0.2, 10)
    counts = np.bincount(lengths, minlength=11)[1:]
    assert stats.chisquare(counts, expected * 100_000).pvalue > 1e-4
    # the paper says 3.8
    assert (expected * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.05)
    assert lengths.mean() == pytest.approx(3.8, abs=0.05)


def test_a_span_that_always_stops_is_one_word():
    settings = MaskingSettings(kind="span", span_stop=1.0)
    assert set(span_lengths(1000, settings, np.random.default_rng(0)).tolist()) == {1}


def test_placed_spans_keep_that_distribution():
    """In very long sequences, where the cut of each one's last span does not show."""
    _, _, masked = draw(8, 350_000, kind="span", word_sizes=(1,))
    starts = np.flatnonzero(masked.spans[:, 2] == 0)
    sizes = np.diff(np.append(starts, len(masked.positions)))
    assert len(sizes) > 100_000
    counts = np.bincount(sizes, minlength=11)[1:]
    assert stats.chisquare(counts, geometric(0.2, 10) * len(sizes)).pvalue > 1e-4


def test_boundaries_are_the_visible_neighbours():
    ids, _, masked = draw(2000, 128, kind="span")
    left, right, place = masked.spans.T
    hidden = np.zeros(len(ids), dtype=bool)
    hidden[masked.positions] = True
    assert not hidden[left].any()
    assert not hidden[right].any()
    assert np.array_equal(left + 1 + place, masked.positions)
    for start, end in set(zip(left.tolist(), right.tolist(), strict=True)):
        assert hidden[start + 1 : end].all()
        assert start // 128 == end // 128


@pytest.mark.parametrize("kind", ["token", "whole-word", "span"])
def test_the_most_predictions_cap_the_rate(kind):
    _, _, masked = draw(500, 128, kind=kind, max_predictions_per_seq=7)
    assert np.bincount(masked.positions // 128).max() == 7


@pytest.mark.parametrize("kind", ["token", "whole-word", "span"])
def test_sequences_without_words_are_left_alone(kind):
    masked = mask_tokens(
        np.array([2, 3, 2, 7, 3]),
        np.array([2, 3]),
        special_ids=SPECIALS,
        mask_token_id=MASK,
        vocab_size=VOCAB_SIZE,
        settings=MaskingSettings(kind=kind),
        rng=np.random.default_rng(0),
        continuations=np.zeros(5, dtype=bool),
    )
    assert masked.positions.tolist() == [3]


@pytest.mark.parametrize(
    "changes",
    [
        {"rate": 0.0},
        {"rate": 1.0},
        {"mask_share": 0.8, "random_share": 0.3},
        {"mask_share": -0.1},
        {"kind": "words"},
        {"span_stop": 0.0},
        {"longest_span": 0},
        {"max_predictions_per_seq": -1},
    ],
)
def test_impossible_settings_are_refused(changes):
    with pytest.raises(ConfigError):
        MaskingSettings(**changes)


def test_every_sequence_gets_the_rounded_share_of_masks():
    _, _, masked = draw(200, 128)
    per_sequence = np.bincount(masked.positions // 128, minlength=200)
    # round(0.15 * 128) = 19, as in the released procedure
    assert set(per_sequence.tolist()) == {19}


@pytest.mark.parametrize("length", [4, 5, 6])
def test_short_sequences_get_at_least_one_mask(length):
    _, _, masked = draw(50, length)
    assert np.bincount(masked.positions // length, minlength=50).tolist() == [1] * 50


def test_special_tokens_are_never_chosen_and_never_drawn():
    ids, _, masked = draw(500, 32)
    assert not np.isin(ids[masked.positions], SPECIALS).any()
    replaced = masked.input_ids[masked.positions]
    assert not np.isin(replaced[replaced != MASK], SPECIALS).any()
    untouched = np.setdiff1d(np.arange(len(ids)), masked.positions)
    assert np.array_equal(masked.input_ids[untouched], ids[untouched])
    assert np.array_equal(masked.labels, ids[masked.positions])


def test_with_a_spread_every_sequence_has_a_rate_of_its_own():
    """Evenly from none (one piece, then) to twice the rate, whatever the rest of the batch."""
    _, _, masked = draw(5000, 102, rate=0.3, spread=1.0)
    counts = np.bincount(masked.positions // 102, minlength=5000)
    assert (counts.min(), counts.max()) == (1, 61)
    assert counts.mean() == pytest.approx(0.3 * 102, rel=0.02)
    # 60 个数各占六十分之一；1 还收下 0
    inner = np.bincount(counts, minlength=62)[2:61]
    assert stats.chisquare(inner).pvalue > 1e-4


def test_a_spread_hides_no_more_than_all():
    _, _, masked = draw(500, 102, rate=0.8, spread=1.0)
    counts = np.bincount(masked.positions // 102, minlength=500)
    # 0.8 x (1 ± 0.25)：从 0.6 到 1，三个特殊符号不选
    assert (counts.min(), counts.max()) == (61, 99)


@pytest.mark.parametrize("spread", [-0.1, 1.1, float("nan")])
def test_a_spread_that_cannot_be(spread):
    with pytest.raises(ConfigError, match="mask_spread is "):
        MaskingSettings(spread=spread)
