import numpy as np
import pytest
from scipy import stats

from bertsmith.data.stream.pairs import IN_ORDER, IS_NEXT, NO_LABEL, SWAPPED, draw_ordered_pairs, draw_pairs

MAX_TOKENS = 61


def make_document(number, sentence_lengths):
    """Ids tell where a token comes from: document * 10,000 + its place in the document."""
    ids = np.arange(sum(sentence_lengths)) + number * 10_000
    return np.split(ids, np.cumsum(sentence_lengths)[:-1])


def pairs_of(document, *, seed=0, other=None, max_tokens=MAX_TOKENS, short_probability=0.1):
    rng = np.random.default_rng(seed)
    other = other or make_document(9, [7, 11, 5, 9])
    return list(
        draw_pairs(
            document, draw_other=lambda: other, max_tokens=max_tokens, short_probability=short_probability, rng=rng
        )
    )


def many_pairs(count, **options):
    rng = np.random.default_rng(1)
    pairs = []
    seed = 0
    while len(pairs) < count:
        document = make_document(1, rng.integers(3, 20, size=rng.integers(2, 30)).tolist())
        pairs += pairs_of(document, seed=seed, **options)
        seed += 1
    return pairs


def test_a_true_second_segment_follows_and_a_random_one_comes_from_elsewhere():
    for pair in many_pairs(3000):
        assert np.all(np.diff(pair.first) == 1)
        assert np.all(np.diff(pair.second) == 1)
        assert min(len(pair.first), len(pair.second)) > 0
        assert len(pair.first) + len(pair.second) <= MAX_TOKENS
        assert pair.first[0] // 10_000 == 1
        if pair.label == IS_NEXT:
            assert pair.second[0] // 10_000 == 1
            assert pair.second[0] > pair.first[-1]
        else:
            assert pair.second[0] // 10_000 == 9


def test_without_truncation_the_true_second_segment_follows_immediately():
    for seed in range(200):
        for pair in pairs_of(make_document(1, [5, 6, 7, 5]), seed=seed, max_tokens=100, short_probability=0.0):
            if pair.label == IS_NEXT:
                assert pair.second[0] == pair.first[-1] + 1


def test_short_targets_are_drawn_for_a_tenth_of_the_documents():
    document = make_document(1, [10] * 40)
    longest = [max(len(p.first) + len(p.second) for p in pairs_of(document, seed=seed)) for seed in range(4000)]
    # a short target is uniform in 2..61 and chunks overshoot by up to a sentence: below 50 it is visibly short
    short = sum(length < 50 for length in longest)
    share_visible = (40 - 2) / 60
    assert stats.binomtest(short, 4000, 0.1 * share_visible).pvalue > 1e-3


def test_unused_sentences_are_put_back():
    """Whatever a random second segment displaced comes again: every sentence is used at least once."""
    for seed in range(100):
        document = make_document(1, [6] * 20)
        used = np.unique(
            np.concatenate(
                [p.first for p in pairs_of(document, seed=seed, short_probability=0.0)]
                + [p.second for p in pairs_of(document, seed=seed, short_probability=0.0)]
            )
        )
        from_document = used[used // 10_000 == 1]
        # truncation may cost a few tokens at the ends of a chunk
        assert len(from_document) >= 0.85 * 120


def test_truncation_takes_from_both_ends():
    document = [np.arange(200), np.arange(200, 400)]
    fronts = []
    for seed in range(300):
        for pair in pairs_of(document, seed=seed, short_probability=0.0):
            if pair.label == IS_NEXT:
                assert abs(len(pair.first) - len(pair.second)) <= 1
                assert len(pair.first) + len(pair.second) == MAX_TOKENS
                fronts.append(pair.first[0])
    # 170 of 200 ids go, each from the front with probability one half
    assert stats.ttest_1samp(fronts, 0.5 * (200 - MAX_TOKENS / 2)).pvalue > 1e-4


def test_a_single_long_sentence_gets_a_true_neighbour():
    """Where the release would always draw a random B, labels stay balanced here."""
    labels = [p.label for seed in range(3000) for p in pairs_of(make_document(1, [90, 90, 90]), seed=seed)]
    assert stats.binomtest(labels.count(IS_NEXT), len(labels), 0.5).pvalue > 1e-4


def test_a_document_of_one_sentence_has_no_label():
    (pair,) = pairs_of(make_document(1, [100]))
    assert pair.label == NO_LABEL
    assert len(pair.first) == MAX_TOKENS
    assert len(pair.second) == 0


@pytest.mark.parametrize("length", [1, MAX_TOKENS - 1, MAX_TOKENS])
def test_a_document_of_one_sentence_that_fits_is_whole(length):
    (document,) = make_document(1, [length])
    for seed in range(20):
        (pair,) = pairs_of([document], seed=seed)
        assert pair.first.tolist() == document.tolist()
        assert len(pair.second) == 0


@pytest.mark.parametrize("max_tokens", [2, 3])
def test_the_smallest_targets_work(max_tokens):
    for seed in range(50):
        for pair in pairs_of(make_document(1, [4, 1, 9, 2]), seed=seed, max_tokens=max_tokens):
            assert len(pair.first) >= 1
            assert len(pair.second) >= 1
            assert len(pair.first) + len(pair.second) <= max_tokens


def ordered_pairs_of(document, *, seed=0, short_probability=0.1):
    rng = np.random.default_rng(seed)
    return list(draw_ordered_pairs(document, max_tokens=MAX_TOKENS, short_probability=short_probability, rng=rng))


@pytest.fixture(scope="module")
def many_ordered_pairs():
    rng = np.random.default_rng(1)
    pairs = []
    for seed in range(10**6):
        document = make_document(1, rng.integers(3, 40, size=rng.integers(2, 60)).tolist())
        pairs += ordered_pairs_of(document, seed=seed)
        if len(pairs) >= 100_000:
            return pairs
    return pairs


def test_half_of_the_ordered_pairs_are_swapped(many_ordered_pairs):
    swapped = sum(pair.label == SWAPPED for pair in many_ordered_pairs)
    assert stats.binomtest(swapped, len(many_ordered_pairs), 0.5).pvalue > 1e-4


def test_both_segments_are_of_one_document_and_only_their_order_differs(many_ordered_pairs):
    for pair in many_ordered_pairs[:20_000]:
        a, b = (pair.first, pair.second) if pair.label == IN_ORDER else (pair.second, pair.first)
        assert len(a) + len(b) <= MAX_TOKENS
        assert np.all(np.diff(a) == 1)
        assert np.all(np.diff(b) == 1)
        assert a[-1] < b[0]


def test_lengths_do_not_tell_the_order(many_ordered_pairs):
    """First segments are as long in swapped pairs as in others' second segments swapped back: no shortcut."""
    early = [len(p.first if p.label == IN_ORDER else p.second) for p in many_ordered_pairs]
    labels = np.array([p.label for p in many_ordered_pairs])
    assert stats.ks_2samp(np.array(early)[labels == IN_ORDER], np.array(early)[labels == SWAPPED]).pvalue > 1e-4


def test_without_truncation_ordered_segments_meet():
    for seed in range(200):
        for pair in ordered_pairs_of(make_document(1, [5, 6, 7, 5]), seed=seed, short_probability=0.0):
            a, b = (pair.first, pair.second) if pair.label == IN_ORDER else (pair.second, pair.first)
            assert b[0] == a[-1] + 1


def test_ordered_pairs_read_a_document_from_its_first_piece_to_its_last():
    document = make_document(1, [5, 6, 7, 5])
    for seed in range(200):
        pairs = ordered_pairs_of(document, seed=seed, short_probability=0.0)
        read = np.unique(np.concatenate([side for pair in pairs for side in (pair.first, pair.second)]))
        assert np.array_equal(read, np.concatenate(document))


def test_an_ordered_document_of_one_sentence_has_no_label():
    (pair,) = ordered_pairs_of(make_document(1, [100]))
    assert (pair.label, len(pair.first), len(pair.second)) == (NO_LABEL, MAX_TOKENS, 0)
