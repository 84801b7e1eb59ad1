"""The linear model over passages: beside every span, one after the other."""

import itertools
import math

import numpy as np
import pytest
import torch

from bertsmith.errors import CheckpointError, InputError
from bertsmith.inference import load_pipeline
from bertsmith.inference.answer import Answer
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.linear import read_words
from bertsmith.inference.spans import Spans, best_word_spans, looks, passage_words, span_chances
from bertsmith.model import BertConfig, BertForQuestionAnswering
from bertsmith.tokenizer import WordPieceTokenizer

PASSAGE = "In 1987 Ada Byron moved to Paris. She sold 12 books there, and kept the map."
QUESTION = "How many books did Byron sell?"


def spans_of(scores):
    """Every span of a passage with its score, by the definition."""
    for first, last in itertools.combinations_with_replacement(range(len(scores)), 2):
        inside = sum(scores[word, 1] for word in range(first, last + 1))
        yield scores[first, 0] + inside + scores[last, 2], first, last


def model_of(seed=0):
    """A model that knows the features of one question, with weights that are drawn."""
    rng = np.random.default_rng(seed)
    features = np.unique(looks(QUESTION, PASSAGE)).astype(np.int32)
    weights = rng.normal(size=(len(features), 4)).astype(np.float32) / 10
    return Spans(features, weights, rng.normal(size=4).astype(np.float32))


@pytest.mark.parametrize("none", [False, True])
def test_chances_are_those_of_all_spans(none):
    rng = np.random.default_rng(0)
    sizes = [1, 5, 2]
    scores = rng.normal(size=(8, 4)) * 3
    normalizer, expected = span_chances(scores, sizes, none=none)
    total, counted, first = 0.0, np.zeros((8, 4)), 0
    for size in sizes:
        rows = scores[first : first + size]
        spans = list(spans_of(rows))
        rivals = [score for score, *_ in spans] + ([rows[-1, 3]] if none else [])
        whole = np.logaddexp.reduce(rivals)
        total += whole
        for score, one, other in spans:
            chance = math.exp(score - whole)
            counted[first + one, 0] += chance
            counted[first + one : first + other + 1, 1] += chance
            counted[first + other, 2] += chance
        if none:
            counted[first + size - 1, 3] = math.exp(rows[-1, 3] - whole)
        first += size
    assert normalizer == pytest.approx(total, abs=1e-9)
    np.testing.assert_allclose(expected, counted, atol=1e-9)


@pytest.mark.parametrize(("most", "count"), [(30, 100), (2, 4), (1, 3)])
def test_the_best_spans_are_those_of_a_loop(most, count):
    scores = np.round(np.random.default_rng(1).normal(size=(7, 4)), 1)
    short = [(score, first, last) for score, first, last in spans_of(scores) if last - first < most]
    expected = sorted(short, key=lambda one: (-round(one[0], 6), one[1:]))[:count]
    found = best_word_spans(scores, most, count)
    assert [one[1:] for one in found] == [one[1:] for one in expected]
    np.testing.assert_allclose([one[0] for one in found], [one[0] for one in expected], atol=1e-9)


def test_outputs_are_sums_of_the_weights_of_features():
    model = model_of()
    found = model.logits([(QUESTION, PASSAGE), (QUESTION, "A new passage.")]).numpy()
    for word, numbers in enumerate(looks(QUESTION, PASSAGE)):
        places = np.searchsorted(model.features, numbers)
        np.testing.assert_allclose(found[word], model.weights[places].sum(0) + model.bias, atol=1e-5)
    assert len(found) == len(passage_words(PASSAGE).words) + len(passage_words("A new passage.").words)


def test_how_is_asked_and_what_stands_near_are_features():
    """The number is looked at in another way where another question is asked; so is a word beside the question's."""
    numbers = looks(QUESTION, PASSAGE)
    place = passage_words(PASSAGE).words.index("12")
    other = looks("Who sold books?", PASSAGE)[place]
    assert len(set(numbers[place].tolist()) - set(other.tolist())) > 10
    # 与问题无关的特征（词形、邻词）则不变
    assert len(set(numbers[place].tolist()) & set(other.tolist())) > 8
    assert (looks("BOOKS 你好", "书 books 12") != looks("你好", "书 books 12")[:, :1]).any()


@pytest.mark.parametrize(("question", "passage"), [("?", ""), (" ", PASSAGE), ("\u200b", PASSAGE), ("who", " \n")])
def test_a_question_or_passage_without_words_is_refused(question, passage):
    with pytest.raises(InputError, match="holds no word"):
        Answer(model_of(), None)(question, passage)


def test_answers_of_words_alone_are_the_best_spans():
    model = model_of()
    answerer = Answer(model, None, max_answer_tokens=3, n_best=5)
    found = answerer(QUESTION, PASSAGE)
    scores = model.logits([(QUESTION, PASSAGE)]).double().numpy()
    places = passage_words(PASSAGE).places
    score, first, last = max((one for one in spans_of(scores) if one[2] - one[1] < 3), key=lambda one: one[0])
    assert (found.start, found.end) == (places[first][0], places[last][1])
    assert found.text == PASSAGE[found.start : found.end]
    assert found.score == pytest.approx(score)
    assert len(found.candidates) == 5
    assert sum(one.probability for one in found.candidates) == pytest.approx(1)
    assert not found.no_answer
    sure = Answer(model, None, null_threshold=float(found.score - scores[-1, 3] + 1))(QUESTION, PASSAGE)
    assert sure.no_answer
    assert sure.null_score == pytest.approx(scores[-1, 3])


def test_the_scores_of_tokens_become_those_of_words():
    """Where every word is a token, the answers are those of the encoder alone; in several windows as well."""
    words = sorted({word.lower() for word in passage_words(PASSAGE + QUESTION).words})
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    torch.manual_seed(0)
    config = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=64)
    model = BertForQuestionAnswering(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    how = {"stride": 4, "null_threshold": 0.0}
    for length in (64, 18):
        plain = Answer(model, tokenizer, InferenceConfig("cpu", "float32", max_length=length), **how)
        alone = plain(QUESTION, PASSAGE)
        plain.words = model_of().mixed((1.0, 0.0, 0.0))
        beside = plain(QUESTION, PASSAGE)
        if length == 64:
            assert [one.text for one in beside.candidates] == [one.text for one in alone.candidates]
        assert beside.null_score == pytest.approx(alone.null_score, abs=1e-4)
        assert beside.candidates[0].score >= alone.candidates[0].score - 1e-4
        plain.words = model_of().mixed((0.5, 2.0, 0.0))
        mixed = plain.logits([(QUESTION, PASSAGE)])
        plain.words = model_of().mixed((1.0, 0.0, 0.0))
        ours = plain.logits([(QUESTION, PASSAGE)])
        torch.testing.assert_close(mixed, 0.5 * ours + 2.0 * model_of().logits([(QUESTION, PASSAGE)]))


def test_a_folder_of_words_is_a_model(tmp_path):
    model = model_of()
    model.save(tmp_path)
    (tmp_path / "task.json").write_text(
        '{"task": "answer", "max_length": 0, "stride": 128, "max_answer_tokens": 4, "null_threshold": null}'
    )
    pipeline = load_pipeline("answer", tmp_path)
    assert pipeline(QUESTION, PASSAGE) == Answer(model, None, max_answer_tokens=4)(QUESTION, PASSAGE)
    kept = read_words(tmp_path, Spans)
    np.testing.assert_array_equal(kept.weights, model.weights)
    Spans(model.features, model.weights[:-1], model.bias).save(tmp_path)
    with pytest.raises(CheckpointError, match="its shapes do not fit together"):
        load_pipeline("answer", tmp_path)
