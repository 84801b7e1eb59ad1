import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from digests import digest
from scipy import stats

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.corpus.shards import HELDOUT, TRAIN, SplitCounts, TokenCorpus
from bertsmith.data.reading.text import Document
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.data.stream.stream import (
    HELDOUT_BATCH,
    PreTrainingStream,
    StreamNeeds,
    StreamPosition,
    StreamSettings,
    heldout_batches,
)
from bertsmith.errors import ConfigError
from bertsmith.tokenizer import WordPieceTokenizer

WORDS = [f"w{letter}{other}" for letter in "abcdefgh" for other in "klmnop"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    rng = np.random.default_rng(0)
    documents = [
        Document("t", tuple(" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(rng.integers(2, 12))))
        for _ in range(120)
    ]
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d.sentences), vocab_size=200)
    corpus = build_from_documents(documents, tokenizer, tmp_path_factory.mktemp("corpus"), heldout_share=0.1)
    return corpus, tokenizer


NEEDS = {
    "mlm+nsp": StreamNeeds(),
    "mlm": StreamNeeds("none"),
    "mlm+sop": StreamNeeds("sentence_order"),
    "ltr": StreamNeeds("none", "next_token"),
    "ltr+nsp": StreamNeeds("next_sentence", "next_token"),
}


def settings(*, objective="mlm+nsp", seed=3, **changes):
    """What a stream is made of, by name."""
    chosen = StreamSettings(**{"sequence_length": 32, "batch_size": 8, **changes})
    return {"settings": chosen, "needs": NEEDS[objective], "seed": seed}


def same(first, second):
    return all(
        torch.equal(a, b)
        for a, b in [
            (first.tokens.input_ids, second.tokens.input_ids),
            (first.tokens.token_type_ids, second.tokens.token_type_ids),
            (first.tokens.cu_seqlens, second.tokens.cu_seqlens),
            (first.masked_positions, second.masked_positions),
            (first.masked_labels, second.masked_labels),
            (first.next_sentence_labels, second.next_sentence_labels),
        ]
    )


def test_sequences_have_the_shape_of_the_paper(world):
    corpus, tokenizer = world
    batch = next(PreTrainingStream(corpus, tokenizer, **settings()))
    restored = batch.tokens.input_ids.clone()
    restored[batch.masked_positions] = batch.masked_labels
    assert batch.tokens.num_sequences == 8
    assert batch.tokens.max_seqlen <= 32
    for n, length in enumerate(batch.tokens.lengths):
        start = int(batch.tokens.cu_seqlens[n])
        ids, types = restored[start : start + length], batch.tokens.token_type_ids[start : start + length]
        assert ids[0] == tokenizer.cls_token_id
        assert ids[-1] == tokenizer.sep_token_id
        (separators,) = torch.where(ids == tokenizer.sep_token_id)
        assert len(separators) == 2
        first_length = int(separators[0]) + 1
        assert types.tolist() == [0] * first_length + [1] * (length - first_length)


def test_a_stream_opened_in_the_middle_goes_on_exactly(world):
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, **settings())
    for step in range(80):
        if step % 7 == 0:
            opened = PreTrainingStream(corpus, tokenizer, **settings())
            opened.position = StreamPosition(**stream.position.to_json())
            assert same(next(opened), next(stream))
        else:
            next(stream)
    assert stream.position.epoch >= 1


def test_no_epoch_repeats_another(world):
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, **settings())
    first = next(stream)
    while stream.position.epoch == 0:
        next(stream)
    stream.position = StreamPosition(epoch=1)
    assert not same(first, next(stream))


def test_an_epoch_visits_every_document_once(world, monkeypatch):
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, **settings(batch_size=1))
    visited = []
    original = stream._examples_of
    monkeypatch.setattr(
        stream, "_examples_of", lambda index, epoch: (visited.append((epoch, index)), original(index, epoch))[1]
    )
    while stream.position.epoch == 0:
        next(stream)
    assert sorted(index for epoch, index in visited if epoch == 0) == list(range(corpus.counts[TRAIN].documents))


def test_validation_batches_are_the_same_each_time_and_unseen(world, monkeypatch):
    corpus, tokenizer = world
    read, original = [], TokenCorpus.document

    def watched(self, split, index):
        read.append((split, index))
        return original(self, split, index)

    monkeypatch.setattr(TokenCorpus, "document", watched)
    first = heldout_batches(corpus, tokenizer, **settings(), max_sequences=40)
    second = heldout_batches(corpus, tokenizer, **settings(), max_sequences=40)
    assert len(first) >= 2
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    assert {split for split, _ in read} == {HELDOUT}
    monkeypatch.undo()
    # 留出的文档，训练的部分里一篇也没有
    learned = {
        b" ".join(sentence.tobytes() for sentence in corpus.document(TRAIN, index))
        for index in range(corpus.counts[TRAIN].documents)
    }
    for split, index in set(read):
        assert b" ".join(sentence.tobytes() for sentence in corpus.document(split, index)) not in learned


def test_validation_sees_every_heldout_document_once_whatever_the_batch_size(world, monkeypatch):
    corpus, tokenizer = world
    visited = []
    original = PreTrainingStream._examples_of

    def visits(self, index, epoch):
        visited.append((epoch, index))
        return original(self, index, epoch)

    monkeypatch.setattr(PreTrainingStream, "_examples_of", visits)
    by_size = []
    for changes in ({"batch_size": 1}, {"batch_size": 4096}, {"batch_tokens": 10**6}):
        visited.clear()
        by_size.append(heldout_batches(corpus, tokenizer, **settings(**changes), max_sequences=10**6))
        assert sorted(visited) == [(0, index) for index in range(corpus.counts[HELDOUT].documents)]
    first, *others = by_size
    assert len(first) >= 2
    assert max(batch.tokens.num_sequences for batch in first) <= HELDOUT_BATCH
    for other in others:
        assert all(same(a, b) for a, b in zip(first, other, strict=True))
    # and a part of them is the beginning of all
    part = heldout_batches(corpus, tokenizer, **settings(), max_sequences=HELDOUT_BATCH)
    assert len(part) == 1
    assert same(part[0], first[0])


def test_the_draws_of_earlier_versions_are_kept(tmp_path):
    """A run begun with the first release goes on with it: 200 batches are those that version drew."""
    rng = np.random.default_rng(0)
    documents = [
        Document("t", tuple(" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(rng.integers(1, 12))))
        for _ in range(120)
    ]
    tokenizer = WordPieceTokenizer.train((s for d in documents for s in d.sentences), vocab_size=200)
    corpus = build_from_documents(documents, tokenizer, tmp_path / "corpus", heldout_share=0.1)
    stream = PreTrainingStream(corpus, tokenizer, **settings())
    hashed = hashlib.blake2b(digest_size=16)
    for _ in range(200):
        batch = next(stream)
        tokens = batch.tokens
        for tensor in (tokens.input_ids, tokens.token_type_ids, tokens.cu_seqlens.long()):
            hashed.update(tensor.numpy().tobytes())
        for tensor in (batch.masked_positions, batch.masked_labels, batch.next_sentence_labels):
            hashed.update(tensor.numpy().tobytes())
    assert stream.position == StreamPosition(6, 0, 176)
    assert hashed.hexdigest() == "e67a7aa111c8a92ffb6c7b34dff561f0"


KINDS = [
    {},
    {"objective": "mlm", "masking": MaskingSettings(kind="span")},
    {"objective": "mlm+sop", "masking": MaskingSettings(kind="whole-word")},
    {"objective": "ltr"},
    {"objective": "ltr+nsp", "batch_tokens": 300},
    {"objective": "mlm", "packing": "full", "batch_tokens": 400},
    {"static_masking": 2},
    {"pairing": "google"},
]


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_any_number_of_ranks_sees_the_same_global_batches(world, changes):
    corpus, tokenizer = world
    alone = PreTrainingStream(corpus, tokenizer, **settings(**changes))
    ranks = {
        size: [
            PreTrainingStream(corpus, tokenizer, **settings(**changes), rank=r, world_size=size) for r in range(size)
        ]
        for size in (2, 4, 8)
    }
    for _ in range(40):
        batch = next(alone)
        for streams in ranks.values():
            shares = [next(stream) for stream in streams]
            assert digest(shares) == digest([batch])
            assert {stream.position for stream in streams} == {alone.position}
            assert {s.global_masked for s in shares} == {len(batch.masked_labels)} == {batch.global_masked}
            assert {s.global_labelled for s in shares} == {batch.global_labelled}
            assert {s.global_tokens for s in shares} == {batch.tokens.num_tokens}
            assert sum(len(share.masked_labels) for share in shares) == batch.global_masked


def test_a_batch_splits_into_parts_that_know_the_whole(world):
    corpus, tokenizer = world
    batch = next(
        PreTrainingStream(corpus, tokenizer, **settings(objective="mlm", masking=MaskingSettings(kind="span")))
    )
    parts = batch.split(3)
    assert [part.tokens.num_sequences for part in parts] == [3, 3, 2]
    assert digest(parts) == digest([batch])
    assert {part.global_masked for part in parts} == {len(batch.masked_labels)}
    assert len(batch.split(100)) == 8


@pytest.mark.parametrize(
    ("changes", "rank", "world_size"),
    [({"batch_size": 3}, 0, 4), ({"batch_tokens": 64, "batch_size": 99}, 0, 3), ({}, 2, 2), ({}, -1, 1)],
)
def test_a_rank_without_food_is_refused(world, changes, rank, world_size):
    corpus, tokenizer = world
    with pytest.raises(ConfigError):
        PreTrainingStream(corpus, tokenizer, **settings(**changes), rank=rank, world_size=world_size)


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "mlm+sop"])
def test_a_token_budget_is_filled_and_never_exceeded(world, objective):
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, **settings(objective=objective, batch_tokens=500))
    sizes = [next(stream).tokens.num_tokens for _ in range(100)]
    assert max(sizes) <= 500
    # the next sequence of at most 32 did not fit
    assert min(sizes) > 500 - 32
    by_count = PreTrainingStream(corpus, tokenizer, **settings(objective=objective))
    budget = PreTrainingStream(corpus, tokenizer, **settings(objective=objective, batch_tokens=500))
    assert sequences_of(by_count, 200) == sequences_of(budget, 200)


def sequences_of(stream, count):
    """The first sequences of a stream, uncorrupted, whatever the batches they come in."""
    found = []
    while len(found) < count:
        batch = next(stream)
        ids = batch.tokens.input_ids.clone()
        if stream.needs.targets == "masked":
            ids[batch.masked_positions] = batch.masked_labels
        found += [part.tolist() for part in ids.split(batch.tokens.lengths)]
    return found[:count]


def epoch_of(stream, epoch=0):
    stream.position = StreamPosition(epoch=epoch)
    size = stream.settings.batch_size
    assert size == 1
    while stream.position.epoch == epoch:
        yield next(stream)


def test_single_segments_are_the_whole_corpus_once(world):
    """Full sentences of one document: an epoch holds each document's ids, in order, nothing twice."""
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, **settings(objective="mlm", batch_size=1))
    found = Counter()
    for batch in epoch_of(stream):
        ids = batch.tokens.input_ids.clone()
        ids[batch.masked_positions] = batch.masked_labels
        assert ids[0] == tokenizer.cls_token_id
        assert ids[-1] == tokenizer.sep_token_id
        assert not np.isin(ids[1:-1], list(tokenizer.special_ids)).any()
        assert batch.tokens.num_tokens <= 32
        assert batch.tokens.token_type_ids.sum() == 0
        assert batch.next_sentence_labels.tolist() == [-100]
        found.update(ids[1:-1].tolist())
    every = (corpus.document(TRAIN, index) for index in range(corpus.counts[TRAIN].documents))
    assert found == Counter(np.concatenate([ids for document in every for ids in document]).tolist())


def test_full_packing_runs_on_across_documents(world):
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, **settings(objective="mlm", packing="full", batch_size=1))
    lengths, separators, words = [], 0, 0
    for batch in epoch_of(stream):
        ids = batch.tokens.input_ids.clone()
        ids[batch.masked_positions] = batch.masked_labels
        lengths.append(len(ids))
        separators += int((ids[1:-1] == tokenizer.sep_token_id).sum())
        words += int((~np.isin(ids, list(tokenizer.special_ids))).sum())
    documents = corpus.counts[TRAIN].documents
    assert words == corpus.counts[TRAIN].tokens
    assert max(lengths) <= 32
    # every sequence is full but the last one of a block of documents
    assert sum(length < 32 for length in lengths) <= stream.blocks_per_epoch
    # a border at the end of a sequence needs no separator; the first document of a block has none before it
    assert 0.6 * documents < separators < documents


@pytest.mark.parametrize("objective", ["ltr", "ltr+nsp"])
def test_left_to_right_predicts_every_next_token(world, objective):
    corpus, tokenizer = world
    batch = next(PreTrainingStream(corpus, tokenizer, **settings(objective=objective)))
    expected_positions, expected_labels = [], []
    for start, length in zip(batch.tokens.cu_seqlens.tolist(), batch.tokens.lengths, strict=False):
        for place in range(start, start + length - 1):
            expected_positions.append(place)
            expected_labels.append(int(batch.tokens.input_ids[place + 1]))
    assert batch.masked_positions.tolist() == expected_positions
    assert batch.masked_labels.tolist() == expected_labels
    assert tokenizer.mask_token_id not in batch.tokens.input_ids
    assert (batch.global_labelled > 0) == (objective == "ltr+nsp")


def full_batches(stream, epoch):
    """Every sequence of an epoch with its corruption, in whichever order."""
    return Counter(
        (tuple(batch.tokens.input_ids.tolist()), tuple(batch.masked_labels.tolist()))
        for batch in epoch_of(stream, epoch)
    )


@pytest.mark.parametrize("changes", [{}, {"objective": "mlm", "packing": "full"}], ids=str)
def test_static_masking_repeats_every_nth_epoch(world, changes):
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, **settings(static_masking=2, batch_size=1, **changes))
    first, second, third = (full_batches(stream, epoch) for epoch in (0, 1, 2))
    assert first == third
    assert len(first & second) < 0.1 * first.total()
    stream.position = StreamPosition(epoch=0)
    one = [next(stream) for _ in range(20)]
    stream.position = StreamPosition(epoch=2)
    # the same sequences, in another order
    assert [digest([batch]) for batch in one] != [digest([next(stream)]) for _ in range(20)]


def test_static_masks_of_one_block_are_not_those_of_the_next(world, monkeypatch):
    """Sequences of equal length, in blocks of a few: a draw that forgets the block hides the same places in each."""
    monkeypatch.setattr("bertsmith.data.stream.stream.BLOCK_TOKENS", 600)
    corpus, tokenizer = world
    how = settings(objective="mlm", packing="full", static_masking=1, batch_size=1)
    stream = PreTrainingStream(corpus, tokenizer, **how)
    assert stream.blocks_per_epoch >= 4
    batches = [batch for batch in epoch_of(stream, 0) if batch.tokens.num_tokens == 32]
    hidden = Counter(tuple(batch.masked_positions.tolist()) for batch in batches)
    assert len(hidden) > 0.95 * hidden.total() > 40


def test_static_masks_do_not_depend_on_the_batches_they_come_in(world):
    corpus, tokenizer = world
    small = PreTrainingStream(corpus, tokenizer, **settings(static_masking=3, batch_size=4))
    large = PreTrainingStream(corpus, tokenizer, **settings(static_masking=3, batch_size=8))
    for _ in range(20):
        assert digest([next(large)]) == digest_joined([next(small), next(small)])


def digest_joined(batches):
    """The digest of batches laid end to end."""
    joined = RaggedBatch.from_sequences(
        [ids.tolist() for batch in batches for ids in batch.tokens.input_ids.split(batch.tokens.lengths)],
        [ids.tolist() for batch in batches for ids in batch.tokens.token_type_ids.split(batch.tokens.lengths)],
    )
    shift = batches[0].tokens.num_tokens
    first, second = batches
    return digest(
        [
            PreTrainingBatch(
                joined,
                torch.cat([first.masked_positions, second.masked_positions + shift]),
                torch.cat([first.masked_labels, second.masked_labels]),
                torch.cat([first.next_sentence_labels, second.next_sentence_labels]),
            )
        ]
    )


class WithWords:
    """A corpus that knows words which the vocabulary does not show: every second piece goes on with a word."""

    has_words = True

    def __init__(self, corpus):
        self.corpus, self.counts = corpus, corpus.counts

    def document(self, split, index):
        return self.corpus.document(split, index)

    def text(self, split, index):
        return self.corpus.text(split, index)

    def continuations(self, split, index):
        return [np.arange(len(ids)) % 2 == 1 for ids in self.document(split, index)]


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_words_of_the_corpus_are_hidden_whole(world, objective):
    """Words of two pieces, as the corpus says; sentences are short, so that none is cut."""
    corpus, tokenizer = world
    changes = {"objective": objective, "masking": MaskingSettings(kind="whole-word", mask_share=1.0, random_share=0.0)}
    plain = PreTrainingStream(corpus, tokenizer, **settings(objective=objective, sequence_length=200))
    stream = PreTrainingStream(WithWords(corpus), tokenizer, **settings(sequence_length=200, **changes))
    pairs = singles = 0
    for _ in range(30):
        batch = next(stream)
        assert batch.tokens.input_ids.max() < tokenizer.vocab_size
        hidden = batch.masked_positions.tolist()
        while hidden:
            first = hidden.pop(0)
            if hidden and hidden[0] == first + 1:
                hidden.pop(0)
                pairs += 1
            else:
                singles += 1
    # only the last word of a sentence with an odd number of pieces is single
    assert pairs > 2 * singles
    stream.position = plain.position = StreamPosition()
    assert sequences_of(stream, 50) == sequences_of(plain, 50)


def test_labels_are_half_and_half_and_a_random_second_is_never_of_the_same_text(world):
    """100,000 pairs; two documents are parts of each text, whose ids tell it, so a second segment shows its source."""
    documents = 40

    class Marked:
        def __init__(self):
            self.counts = {TRAIN: SplitCounts(documents, documents * 12, documents * 120)}

        def text(self, split, index):
            return index // 2

        def document(self, split, index):
            return [np.full(10, 100 + index // 2, np.int32) for _ in range(12)]

    tokenizer = WordPieceTokenizer([*world[1].vocab[:5], *(f"w{n}" for n in range(200))])
    stream = PreTrainingStream(Marked(), tokenizer, **settings(batch_size=1000, sequence_length=64))
    labels, crossed = Counter(), Counter()
    while labels.total() < 100_000:
        batch = next(stream)
        ids = batch.tokens.input_ids.clone()
        ids[batch.masked_positions] = batch.masked_labels
        ends = batch.tokens.cu_seqlens
        same_source = (ids[ends[:-1].long() + 1] == ids[ends[1:].long() - 2]).tolist()
        labels.update(batch.next_sentence_labels.tolist())
        crossed.update(zip(batch.next_sentence_labels.tolist(), same_source, strict=True))
    assert stats.binomtest(labels[0], labels.total(), 0.5).pvalue > 1e-4
    assert set(crossed) == {(0, True), (1, False)}


def test_opening_far_into_training_reads_only_the_block_it_needs(world, monkeypatch):
    corpus, tokenizer = world
    monkeypatch.setattr("bertsmith.data.stream.stream.BLOCK_TOKENS", 300)

    def documents_read(position):
        stream = PreTrainingStream(corpus, tokenizer, **settings(batch_size=2))
        stream.position = position
        read = []
        original = corpus.document
        with monkeypatch.context() as patch:
            patch.setattr(corpus, "document", lambda *at: (read.append(at), original(*at))[1])
            next(stream)
        return len(read), stream.blocks_per_epoch

    at_start, blocks = documents_read(StreamPosition())
    assert blocks >= 10
    # far on: epoch 30,000 is beyond step 1,000,000; what is read is one block, and other documents for its random pairs
    for block in range(blocks):
        far, _ = documents_read(StreamPosition(epoch=30_000, block=block, offset=1))
        assert far <= 4 * at_start


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence_length": 4},
        {"batch_size": 0},
        {"packing": "tight"},
        {"pairing": "none"},
        {"packing": "full"},
        {"packing": "full", "objective": "ltr+nsp"},
        {"pairing": "google", "objective": "mlm"},
        {"objective": "ltr", "masking": MaskingSettings(kind="span")},
        {"batch_tokens": 31},
        {"static_masking": -1},
        {"short_probability": -3.0},
        {"short_probability": 1.5},
        {"short_probability": float("nan")},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(world, changes):
    with pytest.raises(ConfigError):
        PreTrainingStream(*world, **settings(**changes))
