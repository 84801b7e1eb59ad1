import numpy as np
import pytest
import torch

from bertsmith.data.shards import HELDOUT, TRAIN, build_shards
from bertsmith.data.stream import PreTrainingStream, StreamPosition, StreamSettings, heldout_batches
from bertsmith.data.text import Document
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
    corpus = build_shards(documents, tokenizer, tmp_path_factory.mktemp("corpus"), settings={}, heldout_share=0.1)
    return corpus, tokenizer


def settings(**changes):
    return StreamSettings(**{"sequence_length": 32, "batch_size": 8, "seed": 3, **changes})


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
    batch = next(PreTrainingStream(corpus, tokenizer, settings()))
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


def test_the_order_is_the_same_each_time_and_another_seed_is_another_order(world):
    corpus, tokenizer = world
    first, second = (PreTrainingStream(corpus, tokenizer, settings()) for _ in range(2))
    other = PreTrainingStream(corpus, tokenizer, settings(seed=4))
    for _ in range(60):
        batch = next(first)
        assert same(batch, next(second))
        assert not same(batch, next(other))


def test_a_stream_opened_in_the_middle_goes_on_exactly(world):
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, settings())
    for step in range(80):
        if step % 7 == 0:
            opened = PreTrainingStream(corpus, tokenizer, settings())
            opened.position = StreamPosition(**stream.position.to_json())
            assert same(next(opened), next(stream))
        else:
            next(stream)
    assert stream.position.epoch >= 1


def test_no_epoch_repeats_another(world):
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, settings())
    first = next(stream)
    while stream.position.epoch == 0:
        next(stream)
    stream.position = StreamPosition(epoch=1)
    assert not same(first, next(stream))


def test_an_epoch_visits_every_document_once(world, monkeypatch):
    corpus, tokenizer = world
    stream = PreTrainingStream(corpus, tokenizer, settings(batch_size=1))
    visited = []
    original = stream._pairs_of
    monkeypatch.setattr(
        stream, "_pairs_of", lambda index, epoch: (visited.append((epoch, index)), original(index, epoch))[1]
    )
    while stream.position.epoch == 0:
        next(stream)
    assert sorted(index for epoch, index in visited if epoch == 0) == list(range(corpus.counts[TRAIN].documents))


def test_validation_batches_are_the_same_each_time_and_unseen(world):
    corpus, tokenizer = world
    first = heldout_batches(corpus, tokenizer, settings(), max_sequences=40)
    second = heldout_batches(corpus, tokenizer, settings(), max_sequences=40)
    assert len(first) >= 2
    assert all(same(a, b) for a, b in zip(first, second, strict=True))
    assert corpus.counts[HELDOUT].documents < corpus.counts[TRAIN].documents


@pytest.mark.parametrize("changes", [{"sequence_length": 4}, {"batch_size": 0}])
def test_impossible_settings_are_refused(changes):
    with pytest.raises(ConfigError):
        settings(**changes)
