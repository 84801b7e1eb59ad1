"""The linear model over words beside scikit-learn, and the weights of two parts beside a computation by hand."""

import itertools
import math
import random
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_union

from bertsmith.errors import CheckpointError
from bertsmith.finetune.datasets.texts import LabelledText, MultiLabelledText, ScoredText
from bertsmith.finetune.tasks.classify import ClassificationTask, MultiLabelTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.words import _losses, is_beyond_chance, mix_of, train_words
from bertsmith.inference.classify import MULTI, REGRESSION, SINGLE
from bertsmith.inference.linear import FORMAT, WORDS_FILE, read_words
from bertsmith.inference.words import CHOICES, Words, ngrams

SENTENCE = "the man reads Ada's book, quickly!! 我们喜欢这本书。 ภาษา naïve straße 3,5 :-) कक्षा"


def texts(count, seed):
    draws = random.Random(seed)
    return [" ".join(draws.choices(SENTENCE.split(), k=draws.randint(2, 8))) for _ in range(count)]


def tokens_of(text):
    """Words and marks by a regular expression; characters of scripts without spaces alone."""
    unspaced = "\u0e00-\u0eff\u3040-\u30ff\u4e00-\u9fff"
    letters = rf"(?:(?![{unspaced}])[\w\u0900-\u0903\u093a-\u094f])+"
    runs = re.findall(rf"[{unspaced}]+|{letters}|[^\w\s{unspaced}]+", text.lower())
    words = [part for run in runs for part in (run if re.match(f"[{unspaced}]", run) else [run])]
    return runs, words


def word_grams(text):
    _, words = tokens_of(text)
    return words + [" ".join(pair) for pair in itertools.pairwise(words)]


def character_grams(text):
    padded = [f" {run} " for run in tokens_of(text)[0]]
    return [run[at : at + size] for run in padded for size in (2, 3, 4, 5) for at in range(len(run) - size + 1)]


def theirs(train):
    made = make_union(*(TfidfVectorizer(analyzer=grams, sublinear_tf=True) for grams in (word_grams, character_grams)))
    return made.fit(train)


@pytest.mark.parametrize("grams", [0, 1], ids=["words", "characters"])
def test_ngrams_are_those_of_a_loop(grams):
    """Every text has as many, as many different ones, and texts share as many, as strings do."""
    given = [*texts(40, 0), "", "  ", "a", "。", "x" * 300]
    owners, hashes = ngrams(given)[grams]
    strings = [(word_grams, character_grams)[grams](text) for text in given]
    found = [hashes[owners == number].tolist() for number in range(len(given))]
    assert [len(one) for one in found] == [len(one) for one in strings]
    assert [len(set(one)) for one in found] == [len(set(one)) for one in strings]
    for (ours, other), (own, others) in zip(itertools.pairwise(found), itertools.pairwise(strings), strict=True):
        assert len(set(ours) & set(other)) == len(set(own) & set(others))


@pytest.mark.parametrize("classes", [("no", "yes"), ("a", "b", "c")])
def test_classes_have_the_probabilities_of_scikit_learn(classes):
    draws, train, test = random.Random(1), texts(80, 1), texts(30, 2)
    labels = [draws.choice(classes) for _ in train]
    examples = [LabelledText(text, None, label) for text, label in zip(train, labels, strict=True)]
    words, fit = train_words(ClassificationTask.of(examples), examples, examples, (2.0,))
    features = theirs(train)
    expected = LogisticRegression(C=2.0, tol=1e-8, max_iter=2000).fit(features.transform(train), labels)
    found = words.logits(test).double().softmax(-1).numpy()
    assert fit.strength == 2.0
    torch.testing.assert_close(fit.outputs, words.logits(train), rtol=0, atol=1e-4)
    np.testing.assert_allclose(found, expected.predict_proba(features.transform(test)), atol=4e-3)


def test_labels_and_numbers_are_those_of_scikit_learn():
    draws, train, test = random.Random(1), texts(80, 1), texts(30, 2)
    features = theirs(train)
    sets = [tuple(label for label in ("x", "y", "z") if draws.random() < 0.4) for _ in train]
    labelled = [MultiLabelledText(text, None, labels) for text, labels in zip(train, sets, strict=True)]
    words, _ = train_words(MultiLabelTask.of(labelled), labelled, labelled, (2.0,))
    truth = np.array([[label in labels for label in ("x", "y", "z")] for labels in sets], dtype=int)
    expected = OneVsRestClassifier(LogisticRegression(C=2.0, tol=1e-8, max_iter=2000))
    expected.fit(features.transform(train), truth)
    np.testing.assert_allclose(
        words.logits(test).sigmoid().numpy(), expected.predict_proba(features.transform(test)), atol=4e-3
    )
    scores = [1000 + 50 * draws.random() for _ in train]
    numbered = [ScoredText(text, None, score) for text, score in zip(train, scores, strict=True)]
    words, _ = train_words(RegressionTask.of(numbered), numbered, numbered, (2.0,))
    ridge = Ridge(alpha=0.5, tol=1e-8).fit(features.transform(train), scores)
    np.testing.assert_allclose(words.logits(test)[:, 0].numpy(), ridge.predict(features.transform(test)), atol=0.3)


def test_pairs_learn_what_both_texts_hold():
    draws = random.Random(0)
    vocabulary = [f"word{number}" for number in range(400)]

    def pairs(count):
        found = []
        for _ in range(count):
            first, second = draws.sample(vocabulary, 3), draws.sample(vocabulary, 3)
            same = draws.random() < 0.5
            found.append(LabelledText(" ".join(first), " ".join(first[::-1] if same else second), str(int(same))))
        return found

    train, dev, test = pairs(200), pairs(60), pairs(60)
    words, _ = train_words(ClassificationTask.of(train), train, dev)
    found = words.logits([one.text for one in test], [one.pair for one in test]).argmax(-1).tolist()
    assert sum(str(guess) == one.label for guess, one in zip(found, test, strict=True)) >= 57


def test_weaker_penalties_are_tried_until_dev_says_stop():
    draws = random.Random(0)
    noise = [LabelledText(text, None, draws.choice("ab")) for text in texts(60, 3)]
    held = [LabelledText(text, None, draws.choice("ab")) for text in texts(60, 4)]
    task = ClassificationTask.of(noise)
    assert train_words(task, noise, held)[1].strength <= 1.0
    assert train_words(task, noise, noise)[1].strength == 100.0


def test_a_folder_gives_the_same_and_a_damaged_file_is_refused(tmp_path):
    examples = [LabelledText(text, None, "ab"[number % 2]) for number, text in enumerate(texts(40, 5))]
    words, _ = train_words(ClassificationTask.of(examples), examples, examples)
    words.save(tmp_path)
    found = read_words(tmp_path, Words)
    given = ["", *texts(3000, 6)]
    assert torch.equal(found.logits(given), words.logits(given))
    assert torch.equal(found.logits(given)[1:2], words.logits(given[1:2]))
    assert torch.equal(found.logits([""])[:, 1], torch.from_numpy(words.bias))
    assert read_words(tmp_path.parent, Words) is None
    file = tmp_path / WORDS_FILE
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="damaged"):
        read_words(tmp_path, Words)
    save_file({"bias": torch.zeros(1)}, file, {"format": FORMAT, "words": "[" * 200_000})
    with pytest.raises(CheckpointError, match="damaged"):
        read_words(tmp_path, Words)


def grid_of(encoder, words, truth):
    """The two weights with the least log loss, by trying all."""

    def loss(first, second):
        odds = first * encoder + second * words
        return sum(math.log1p(math.exp(-value if true else value)) for value, true in zip(odds, truth, strict=True))

    return min(itertools.product(np.arange(0, 3, 0.02), repeat=2), key=lambda pair: loss(*pair))


def test_the_weights_of_two_parts_are_those_of_a_grid():
    draws = np.random.default_rng(0)
    truth = draws.integers(0, 2, 300)
    encoder, words = (factor * (truth - 0.5) + draws.normal(size=300) for factor in (2.0, 1.0))
    logits = [torch.tensor(np.stack([np.zeros(300), odds], 1)) for odds in (encoder, words)]
    found, losses = mix_of(SINGLE, logits[0], logits[1], truth.tolist())
    odds = np.where(truth, 1, -1) * (found[0] * encoder + found[1] * words)
    assert losses == pytest.approx(np.log1p(np.exp(-odds)))
    assert found[:2] == pytest.approx(grid_of(encoder, words, truth), abs=0.02)
    assert found[2] == 0.0
    labels, _ = mix_of(MULTI, torch.tensor(encoder)[:, None], torch.tensor(words)[:, None], truth[:, None].tolist())
    assert labels == pytest.approx(found, abs=1e-3)


def test_the_weights_for_numbers_are_least_squares():
    draws = np.random.default_rng(0)
    truth = 7 + draws.normal(size=200)
    parts = [truth + draws.normal(size=200), 3 * truth + draws.normal(size=200)]
    first, second = (torch.tensor(part)[:, None] for part in parts)
    found, losses = mix_of(REGRESSION, first, second, truth.tolist())
    assert losses == pytest.approx((found[0] * parts[0] + found[1] * parts[1] + found[2] - truth) ** 2)
    expected, *_ = np.linalg.lstsq(np.stack([*parts, np.ones(200)], 1), truth, rcond=None)
    assert found == pytest.approx(tuple(expected), rel=1e-5)


def test_a_part_that_adds_nothing_stays_out():
    draws = np.random.default_rng(0)
    truth = draws.integers(0, 2, 300)
    good, noise = 3 * (truth - 0.5) + draws.normal(size=300), draws.normal(size=300)
    zeros = np.zeros(300)
    knows, guesses = (torch.tensor(np.stack([zeros, odds], 1)) for odds in (good, noise))
    assert mix_of(SINGLE, guesses, knows, truth.tolist())[0] == (0.0, 1.0, 0.0)
    assert mix_of(SINGLE, knows, guesses, truth.tolist())[0] == (1.0, 0.0, 0.0)
    # 两部分一样好：只留便宜的词
    assert mix_of(SINGLE, knows, knows, truth.tolist())[0] == (0.0, 1.0, 0.0)


def test_the_same_model_is_saved_as_the_same_bytes(tmp_path):
    """safetensors puts the notes of a header in a random order."""
    words, saved = Words.none(SINGLE, ("好", "bad")), set()
    for _ in range(12):
        words.save(tmp_path)
        saved.add((tmp_path / WORDS_FILE).read_bytes())
    assert len(saved) == 1
    assert read_words(tmp_path, Words).labels == words.labels


def test_losses_are_smaller_by_more_than_chance():
    """By hand: gains of mean 1 and deviation 2 over 9 and over 16 examples are 1.5 and 2 standard errors."""
    for count, told in ((9, False), (16, True)):
        gains = 1 + 2 * np.array([-1.0, 1.0] * (count // 2) + [0.0] * (count % 2)) * math.sqrt(
            count / (count - count % 2)
        )
        assert gains.std() == pytest.approx(2)
        assert is_beyond_chance(np.zeros(count), gains) is told
        assert not is_beyond_chance(gains, np.zeros(count))


def test_the_loss_of_choices_is_that_of_a_softmax_over_each_question():
    """Beside cross-entropy and its gradient by torch, for three questions of different lengths."""
    draws = np.random.default_rng(0)
    counts, rights = (2, 4, 3), (1, 0, 2)
    scores = torch.from_numpy(draws.normal(size=(sum(counts), 1)) * 50).requires_grad_()
    truth = [2 * n + (place == rights[n]) for n, count in enumerate(counts) for place in range(count)]
    losses, slopes = _losses(CHOICES, scores.detach().numpy(), np.array(truth, dtype=np.float64))
    rows = scores[:, 0].split(counts)
    expected = torch.stack([-row.log_softmax(0)[right] for row, right in zip(rows, rights, strict=True)])
    expected.sum().backward()
    np.testing.assert_allclose(losses[[1, 2, 8]], expected.detach().numpy(), atol=1e-12)
    assert losses.sum() == pytest.approx(float(expected.detach().sum()))
    np.testing.assert_allclose(slopes, scores.grad.numpy(), atol=1e-12)
