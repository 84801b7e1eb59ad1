"""Training a chain over tags: beside scikit-learn where no tag has a neighbour, and beside differences elsewhere."""

import random

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from bertsmith.finetune import chain as module
from bertsmith.finetune.chain import train_chain
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.finetune.words import majority
from bertsmith.inference.chain import looks

WORDS = ("walks", "Walking", "man", "men", "3", "3,5", "Ada", "the")


def lone(count, seed):
    """Sentences of one word, whose tag is drawn by its ending."""
    draws = random.Random(seed)
    words = [draws.choice(WORDS) + draws.choice("abc") for _ in range(count)]
    return [TaggedWords((word,), (draws.choice("XXY" if word[-1] == "a" else "YZ"),)) for word in words]


def test_words_without_neighbours_have_the_probabilities_of_scikit_learn():
    train, dev = lone(120, 0), lone(40, 1)
    task = TaggingTask.of(train)
    chain, fit = train_chain(task, train, dev, (0.3,), tolerances=(1e-9, 1e-9))
    assert fit.strength == 0.3
    numbers = looks([one.words for one in train + dev])
    known = np.unique(numbers[:120][numbers[:120] >= 0])
    columns = np.array([np.isin(known, row) for row in numbers])
    theirs = LogisticRegression(C=0.3, tol=1e-8, max_iter=10_000).fit(columns[:120], [one.tags[0] for one in train])
    found = chain.logits([one.words for one in dev]).exp().numpy()
    np.testing.assert_allclose(found, theirs.predict_proba(columns[120:]), atol=2e-4)
    np.testing.assert_array_equal(fit.outputs.exp().numpy(), found)
    assert not chain.transitions.any()


def test_slopes_are_differences_of_the_loss():
    draws = random.Random(0)
    made = [tuple(draws.choice("XYZ") for _ in range(size)) for size in (4, 1, 6, 4)]
    examples = [TaggedWords(tags, tags) for tags in made]
    losses = module._losses(TaggingTask(("X", "Y", "Z")), examples)
    rng = np.random.default_rng(0)
    scores, transitions = rng.normal(size=(15, 3)), rng.normal(size=(3, 3))
    _, *slopes = losses(scores, transitions)
    for given, slope in zip((scores, transitions), slopes, strict=True):
        for place in np.ndindex(given.shape):
            given[place] += 1e-5
            more = losses(scores, transitions)[0]
            given[place] -= 2e-5
            less = losses(scores, transitions)[0]
            given[place] += 1e-5
            assert slope[place] == pytest.approx((more - less) / 2e-5, abs=1e-6)


def test_what_follows_what_is_learned():
    """After `a` comes X or Y, whatever the word; two words on the tag is the same."""
    draws, examples = random.Random(0), []
    for number in range(200):
        first = draws.choice("XY")
        words = ("x" if first == "X" else "y", f"{number}p", f"{number + 5000}q", f"{number}r")
        examples.append(TaggedWords(words, (first,) * 4))
    task = TaggingTask.of(examples)
    chain, _ = train_chain(task, examples[:150], examples[150:])
    assert (np.diag(chain.transitions) > chain.transitions.max(1) - 1e-6).all()
    found = chain.logits([("x", "777z", "778z", "999z"), ("y", "777z", "778z", "999z")]).argmax(-1).tolist()
    assert found == [0] * 4 + [1] * 4


def test_by_folds_no_sentence_is_tagged_by_a_chain_that_learned_from_it():
    """A word that stands in one fold only is nothing to those that learned from the others."""
    draws = random.Random(0)
    examples = [TaggedWords((f"w{n}", *["x"] * draws.randint(0, 2)), ("XY"[n % 2], *"ZZ")[:3]) for n in range(60)]
    examples = [TaggedWords(one.words, one.tags[: len(one.words)]) for one in examples]
    task, folds = TaggingTask.of(examples), [number % 3 for number in range(60)]
    _, fit = train_chain(task, examples, None, (1.0,), folds=folds, tolerances=(1e-9, 1e-9))
    alone = [
        train_chain(
            task,
            [one for one, fold in zip(examples, folds, strict=True) if fold != part],
            [one for one, fold in zip(examples, folds, strict=True) if fold == part],
            (1.0,),
        )[0]
        for part in range(3)
    ]
    expected = np.concatenate([alone[fold].logits([one.words]) for one, fold in zip(examples, folds, strict=True)])
    np.testing.assert_allclose(fit.outputs.exp().numpy(), np.exp(expected), atol=0.02)


def test_the_commonest_tag_is_a_chain_without_features():
    examples = [TaggedWords(("a", "b", "c"), ("X", "X", "Y"))] * 3
    chain = majority(TaggingTask.of(examples), examples)
    np.testing.assert_allclose(chain.logits([("q", "r")]).exp().numpy(), [[2 / 3, 1 / 3]] * 2, rtol=1e-5)
