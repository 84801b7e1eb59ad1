"""Training the linear model over passages: beside differences and every span, and on questions whose words tell."""

import random

import numpy as np
import pytest

from bertsmith.finetune.datasets.questions import Answer as AnswerText
from bertsmith.finetune.datasets.questions import QuestionExample
from bertsmith.finetune.spans import LAST, span_losses, targets_of, train_spans, words_within
from bertsmith.finetune.tasks.answer import AnsweringTask
from bertsmith.inference.answer import Answer

NAMES, THINGS = ("Ada", "Ben", "Cleo", "Dan"), ("books", "cats", "maps", "coins")


def questions(count, seed, *, impossible=0.0):
    """Who has things, or how many: the shape of the answer and the thing that stands near tell where it is."""
    draws, found = random.Random(seed), []
    for number in range(count):
        people, things = draws.sample(NAMES, 3), draws.sample(THINGS, 3)
        counts = [str(draws.randrange(10, 99)) for _ in things]
        context = " ".join(f"{who} has {many} {what}." for who, many, what in zip(people, counts, things, strict=True))
        which = draws.randrange(3)
        asked, answer = draws.choice(
            [(f"Who has {things[which]}?", people[which]), (f"How many {things[which]} are there?", counts[which])]
        )
        answers = (AnswerText(answer, context.index(answer)),)
        if draws.random() < impossible:
            asked, answers = asked.replace(things[which], "swords"), ()
        found.append(QuestionExample(str(number), asked, context, answers))
    return found


def test_words_find_answers_that_shape_and_nearness_tell():
    train, dev = questions(100, 0), questions(40, 1)
    task = AnsweringTask.of(train)
    model, fit = train_spans(task, train, dev)
    answerer = task.pipeline(model, None, None)
    found = task.metrics(dev, task.predicted(answerer, dev))
    assert found["exact_match"] > 0.9
    assert fit.outputs.shape == (sum(task.rows(dev)), 4)
    told = task.told(answerer, fit.outputs, dev)
    assert [one.text for one in told] == [one.text for one in task.predicted(answerer, dev)]


def test_questions_without_an_answer_are_left_unanswered():
    train, dev = questions(120, 0, impossible=0.4), questions(50, 1, impossible=0.4)
    task = AnsweringTask.of(train)
    model, fit = train_spans(task, train, dev)
    assert task.null_threshold == 0.0
    pipeline = task.pipeline(model, None, None)
    task = task.decided(pipeline, fit.outputs, dev)
    found = task.metrics(dev, task.told(pipeline, fit.outputs, dev))
    assert found["no_answer_exact_match"] > 0.8
    assert found["has_answer_exact_match"] > 0.8


@pytest.mark.parametrize("none", [False, True])
def test_slopes_are_differences_of_the_loss(none):
    targets = [0, 0b0111, LAST, 0b0011, 0b0110, LAST, LAST + (0b1000 if none else 0b0111)]
    scores = np.random.default_rng(0).normal(size=(7, 4))
    _, slopes = span_losses(scores, targets)
    for place in np.ndindex(scores.shape):
        scores[place] += 1e-5
        more = span_losses(scores, targets)[0]
        scores[place] -= 2e-5
        less = span_losses(scores, targets)[0]
        scores[place] += 1e-5
        assert slopes[place] == pytest.approx((more - less) / 2e-5, abs=1e-6)


def test_targets_are_the_words_that_an_answer_touches():
    context = "In the 1990s, Ada-Lou came."
    for text, expected in (("1990", [2]), ("Ada-Lou", [4, 5, 6]), (" came", [7]), ("the 1990s", [1, 2])):
        example = QuestionExample("q", "When?", context, (AnswerText(text, context.index(text)),))
        codes = np.array(targets_of([example]))
        assert codes[-1] >= LAST
        assert np.flatnonzero(codes & 2).tolist() == expected
        assert np.flatnonzero(codes & 1).tolist() == expected[:1]
        assert np.flatnonzero(codes & 4).tolist() == expected[-1:]
    none = targets_of([QuestionExample("q", "When?", context, ())])
    assert none == [0] * 8 + [LAST + 8]
    assert words_within([(0, 2), (3, 6)], 3, 4) == (1, 1)


def test_by_folds_no_question_is_answered_by_what_learned_from_it():
    examples = questions(40, 0)
    folds = [number % 2 for number in range(40)]
    task = AnsweringTask.of(examples)
    _, fit = train_spans(task, examples, None, (0.1,), folds=folds)
    rows, first = task.rows(examples), 0
    for part in range(2):
        rest = [one for one, fold in zip(examples, folds, strict=True) if fold != part]
        alone, _ = train_spans(task, rest, rest, (0.1,))
        pipeline = task.pipeline(alone, None, None)
        same = 0
        for one, size, fold in zip(examples, rows, folds, strict=True):
            if fold == part:
                told = Answer.told(pipeline, fit.outputs[first : first + size], [(one.question, one.context)])[0]
                same += told.text == pipeline(one.question, one.context).text
            first += size
        first = 0
        assert same >= 18
