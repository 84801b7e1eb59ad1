"""Does a model learn all there is to learn? On a grammar small enough to enumerate, that can be computed.

Every sentence of the grammar is equally likely, so what stands behind a mask has an exact distribution given the words
around it: among the sentences that agree with what is visible, the share that has each word there. Its entropy is the
least loss that any model can reach.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.reading.text import Document
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.stream import heldout_batches
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.choosing import recipe_for
from bertsmith.train.start import make_trainer, open_stream

KINDS = {
    "animal": (["dog", "cat", "cow", "hen"], ["see", "chase", "hear"], ["worm", "grass", "fly", "seed"]),
    "machine": (["crane", "truck", "robot", "mill"], ["lift", "push", "move"], ["stone", "box", "sand", "log"]),
    "person": (["baker", "nurse", "judge", "clerk"], ["write", "read", "hear"], ["letter", "book", "note", "seed"]),
}
"""Who does what to what: "hear" and "seed" belong to two kinds, so some masks leave a choice between kinds."""

ADVERBS = ["daily", "often", "never", "slowly"]
SENTENCE_WORDS, SENTENCES_IN_DOCUMENT, DOCUMENTS = 6, 1, 12000


@pytest.fixture(scope="module")
def grammar() -> list[list[str]]:
    """All sentences of the grammar: number agrees between determiner, subject and verb, kind between all of them."""
    found = []
    for subjects, verbs, objects in KINDS.values():
        for subject, verb, what, adverb in itertools.product(subjects, verbs, objects, ADVERBS):
            found.append(["this", subject, f"{verb}s", what, adverb, "."])
            found.append(["these", f"{subject}s", verb, what, adverb, "."])
    return found


@pytest.mark.slow
def test_masked_lm_reaches_the_entropy_of_a_grammar(grammar: list[list[str]], tmp_path: Path) -> None:
    words = sorted({word for sentence in grammar for word in sentence})
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    rng = np.random.default_rng(0)
    drawn = [grammar[number] for number in rng.integers(len(grammar), size=DOCUMENTS * SENTENCES_IN_DOCUMENT)]
    documents = [
        Document(f"{first}", tuple(" ".join(sentence) for sentence in drawn[first : first + SENTENCES_IN_DOCUMENT]))
        for first in range(0, len(drawn), SENTENCES_IN_DOCUMENT)
    ]
    corpus = build_from_documents(documents, tokenizer, tmp_path, heldout_share=0.1)
    recipe = recipe_for(
        "2/128",
        sequence_length=2 + SENTENCES_IN_DOCUMENT * SENTENCE_WORDS,
        batch_size=64,
        learning_rate=1e-3,
        short_probability=0.0,
        dropout=0.0,
        mask_rate=0.34,
        # 不换随机词、不留原词：哪里被遮住是看得见的，条件分布才能穷举
        mask_share=1.0,
        random_share=0.0,
        objective="mlm",
        packing="sentences",
        steps=900,
    )
    trainer = make_trainer(recipe, corpus, tokenizer)
    stream = open_stream(recipe, corpus, tokenizer)
    for _ in range(recipe.trainer.total_steps):
        trainer.train_batch(next(stream))
    needs = recipe.build_objective().needs
    heldout = heldout_batches(corpus, tokenizer, recipe.stream_settings(), needs, max_sequences=512)
    enumerated = np.array([[tokenizer.vocab.index(word) for word in sentence] for sentence in grammar])
    posteriors = np.concatenate([exact_posteriors(batch, enumerated, tokenizer) for batch in heldout])
    labels = torch.cat([batch.masked_labels for batch in heldout]).numpy()
    assert len(labels) > 1500
    assert np.all(posteriors[np.arange(len(labels)), labels] > 0), "the true word is always possible"
    logs = np.log(np.maximum(posteriors, 1e-300))
    entropy = -(posteriors * logs).sum(1).mean()
    best_possible = -logs[np.arange(len(labels)), labels].mean()
    loss = trainer.evaluate(heldout)["mlm_loss"]
    assert 0.3 < entropy < 1.5, "neither nothing nor everything can be guessed"
    assert abs(loss - entropy) < 0.05
    # 在同样的掩码上，真分布的对数损失是下界：差值就是模型与真分布的 KL 散度
    assert -0.005 < loss - best_possible < 0.05


def exact_posteriors(batch: PreTrainingBatch, grammar: np.ndarray, tokenizer: WordPieceTokenizer) -> np.ndarray:
    """Returns [M, V]: what may stand behind each mask, by counting the sentences that agree with the visible words."""
    return np.array(list(_rows(batch, grammar, tokenizer)))


def _rows(batch: PreTrainingBatch, grammar: np.ndarray, tokenizer: WordPieceTokenizer) -> Iterator[np.ndarray]:
    ids = batch.tokens.input_ids.numpy()
    starts = batch.tokens.cu_seqlens.numpy()
    for position in batch.masked_positions.tolist():
        sequence = starts[np.searchsorted(starts, position, side="right") - 1]
        number, place = divmod(position - sequence - 1, SENTENCE_WORDS)
        seen = ids[sequence + 1 + number * SENTENCE_WORDS :][:SENTENCE_WORDS]
        agrees = ((grammar == seen) | (seen == tokenizer.mask_token_id)).all(1)
        yield np.bincount(grammar[agrees, place], minlength=tokenizer.vocab_size) / agrees.sum()


def test_the_enumeration_by_hand(grammar: list[list[str]]) -> None:
    """Behind the mask of `these [MASK] hear seed daily .` stand eight subjects; after `this dog`, three verbs."""
    subjects = {s[1] for s in grammar if [s[0], *s[2:]] == ["these", "hear", "seed", "daily", "."]}
    assert subjects == {"dogs", "cats", "cows", "hens", "bakers", "nurses", "judges", "clerks"}
    assert {s[2] for s in grammar if s[:2] == ["this", "dog"]} == {"sees", "chases", "hears"}
    assert len(grammar) == 3 * (4 * 3 * 4 * 4) * 2
