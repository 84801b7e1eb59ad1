import re
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from bertsmith.data.reading.sentences import split_sentences
from bertsmith.seeding import generator
from bertsmith.tinyworld import draw_captions, draw_questions, draw_reviews, draw_stories, draw_tagged_sentences, render
from bertsmith.tinyworld.stories import BOOK_SHARE, FAITHFULNESS, draw_facts, fill_pattern, slot_distribution
from bertsmith.tinyworld.words import CORNERS, MEN, MOODS, WOMEN

STORIES = list(draw_stories(0, 2000))


def test_stories_have_7_to_12_sentences_and_a_few_hundred_words():
    assert {len(story.sentences) for story in STORIES} <= set(range(7, 13))
    words = {token.text.lower() for story in STORIES for sentence in story.sentences for token in sentence}
    assert 300 <= len(words) <= 600


def test_the_splitter_gives_the_sentences_back():
    for story in STORIES[:300]:
        assert split_sentences(story.text) == [render(sentence) for sentence in story.sentences]


def test_the_same_seed_gives_the_same_world_and_splits_differ():
    assert list(draw_stories(0, 5)) == STORIES[:5]
    assert next(draw_stories(1, 1)) != STORIES[0]
    assert next(draw_stories(0, 1, split="test")) != STORIES[0]


def test_facts_hold_through_a_story():
    """Nothing of another corner or another mood is ever mentioned."""
    for story in STORIES[:300]:
        words = set(re.findall(r"\w+", story.text.lower()))
        for corner in CORNERS:
            if corner is not story.facts.corner:
                assert not words & {*corner.places, *corner.jobs, *corner.animals, *corner.foods, corner.reading}
        for mood in MOODS:
            if mood is not story.facts.mood:
                assert not words & {*mood.judgements, *mood.feelings, *mood.gestures, *mood.intensifiers, *mood.weather}
        named = words & {name.lower() for name in WOMEN + MEN}
        assert named <= {person.name.lower() for person in story.facts.people}


def test_odds_add_up_to_one():
    slots = [
        "subject",
        "food",
        "animal",
        "place",
        "reading",
        "work_verb",
        "weather",
        "feeling",
        "judgement",
        "gesture",
        "intensifier",
        "name",
        "other",
    ]
    for seed in range(20):
        facts = draw_facts(generator(seed, "test"))
        for slot in slots:
            assert sum(slot_distribution(slot, facts, *facts.people).values()) == pytest.approx(1.0)


def test_the_odds_are_what_the_paper_says_by_hand():
    facts = draw_facts(generator(5, "test"))
    hero, friend = facts.people
    food = slot_distribution("food", facts, hero, friend)
    assert food[hero.food] == pytest.approx(FAITHFULNESS + (1 - FAITHFULNESS) / 4)
    assert set(food) == set(facts.corner.foods)
    assert slot_distribution("reading", facts, hero, friend)["book"] == BOOK_SHARE


def test_draws_follow_the_odds():
    facts = draw_facts(generator(5, "test"))
    hero, friend = facts.people
    rng = np.random.default_rng(0)
    drawn = Counter(fill_pattern("{food}", facts, hero, friend, rng)[0].text for _ in range(20_000))
    odds = slot_distribution("food", facts, hero, friend)
    observed = [drawn[word] for word in odds]
    assert stats.chisquare(observed, [20_000 * p for p in odds.values()]).pvalue > 1e-4


def test_captions_are_single_sentences_without_a_stop():
    for caption in draw_captions(0, 200):
        text = render(caption)
        assert split_sentences(text) == [text]
        assert not text.endswith(".")


def test_reviews_are_labelled_by_their_words():
    reviews = list(draw_reviews(0, 2000, split="train"))
    words_of = {mood.name: set(mood.judgements) for mood in MOODS}
    for review in reviews:
        words = set(re.findall(r"\w+", review.text.lower()))
        assert words & words_of[review.label]
        assert not words & words_of["good" if review.label == "bad" else "bad"]
    assert stats.binomtest(sum(r.label == "good" for r in reviews), 2000, 0.5).pvalue > 1e-3


def test_tags_name_what_the_words_are():
    people = {name.lower() for name in WOMEN + MEN}
    kinds = {
        "B-food": {food for corner in CORNERS for food in corner.foods},
        "B-place": {place for corner in CORNERS for place in corner.places},
        "B-animal": {animal for corner in CORNERS for animal in corner.animals},
        "B-person": people | {"the", "man", "woman", "he", "she"},
    }
    for sentence in draw_tagged_sentences(0, 500, split="train"):
        assert len(sentence.words) == len(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            if tag != "O":
                assert word.lower() in kinds[tag]
            else:
                assert word.lower() not in people | kinds["B-food"] | kinds["B-place"] | kinds["B-animal"]


def test_answers_stand_where_they_are_said_to():
    for question in draw_questions(0, 300, split="train"):
        assert question.context[question.start : question.start + len(question.answer)] == question.answer
        name = re.search(r"does (\w+)|do (\w+)", question.question)
        assert name is not None
        assert (name[1] or name[2]) in question.context
