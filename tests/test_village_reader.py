"""The reader of the village, beside the odds of a caption and beside frequencies of drawn stories."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bertsmith.tinyworld import draw_stories
from bertsmith.tinyworld.stories import CAPTIONS, caption_odds

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def reading(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("village_reader")


@pytest.fixture
def ids(reading):
    return {word: number for number, word in enumerate(sorted(reading.village_words()))}


@pytest.mark.parametrize(
    ("pattern", "filled", "blank"),
    [
        (CAPTIONS[1], {"noun": "man", "reading": "book"}, "reading"),
        (CAPTIONS[2], {"noun": "man", "work_verb": "mends", "work_object": "fence"}, "work_object"),
        (CAPTIONS[4], {"noun": "woman", "animal": "cow", "place": "barn"}, "place"),
        (CAPTIONS[4], {"noun": "woman", "animal": "cow", "place": "barn"}, "animal"),
        (CAPTIONS[5], {"animal": "cow", "place": "barn"}, "animal"),
    ],
)
def test_a_blank_of_a_caption_has_its_exact_odds(reading, ids, monkeypatch, pattern, filled, blank):
    monkeypatch.setattr(reading, "RANDOM", 0.0)
    monkeypatch.setattr(reading, "CAPTION_SHARE", 1.0)
    slots = [word[1:-1] if word.startswith("{") else "" for word in pattern.split()]
    words = [filled[slot] if slot else word for slot, word in zip(slots, pattern.split(), strict=True)]
    seen = [reading.UNSEEN if slot == blank else ids[word] for slot, word in zip(slots, words, strict=True)]
    _, odds = reading.Reader(ids, len(ids)).read_pair(seen, [], [slots.index(blank)])
    expected = np.zeros(len(ids))
    for word, share in caption_odds(pattern, filled, blank).items():
        expected[ids[word]] = share
    np.testing.assert_allclose(odds[0], expected, atol=1e-6)


def test_what_a_story_comes_to_is_as_often_as_in_drawn_ones(reading):
    stories = list(draw_stories(0, 2000))
    drawn = Counter(
        "keep" if words[3:4] == ["keep"] else "other" if words[1:3] == ["is", "a"] else "likes"
        for story in stories
        for words in ([token.text for token in sentence] for sentence in story.sentences[2:5])
        if words[3:4] == ["keep"] or "likes" in words
    )
    kinds = reading.story_kinds()
    visits = {"likes": kinds["likes"].visits, "keep": kinds["keep"].visits}
    visits["other"] = kinds["other"].visits + kinds["likes other"].visits
    for name, expected in visits.items():
        assert drawn[name] / len(stories) == pytest.approx(expected, abs=0.04), name


def test_the_second_of_two_sentences_follows_where_it_speaks_of_the_same_story(reading, ids):
    def pair(first, second):
        return reading.Reader(ids, len(ids)).read_pair(
            [ids[word] for word in first.split()], [ids[word] for word in second.split()], []
        )[0]

    opening = "Anna is a farmer and lives at the barn . the day is sunny ."
    assert pair(opening, "Anna likes the cheese . in the morning Anna eats the cheese .") > 0.95
    assert pair(opening, "Karl likes the net .") < 0.2
    assert pair(opening, "in the morning the woman eats the rather awful cheese .") < 0.2


def test_a_fact_that_was_told_is_known_later_in_the_story(reading, ids, monkeypatch):
    monkeypatch.setattr(reading, "RANDOM", 0.0)
    told = "Anna is a farmer and lives at the barn . the day is sunny . Anna likes the butter ."
    told += " in the morning Anna eats the truly tasty"
    seen = [*(ids[word] for word in told.split()), reading.UNSEEN, ids["."]]
    _, odds = reading.Reader(ids, len(ids)).read_pair(seen, [], [len(seen) - 2])
    # 七成忠于所好，其余在这个角落的四样里均分
    assert odds[0, ids["butter"]] == pytest.approx(0.7 + 0.3 / 4, abs=1e-6)
    assert odds[0, ids["cheese"]] == pytest.approx(0.3 / 4, abs=1e-6)
