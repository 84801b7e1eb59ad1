"""The reader of the village, beside the odds of a caption."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

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


def test_the_second_of_two_sentences_follows_where_it_speaks_of_the_same_story(reading, ids):
    def pair(first, second):
        return reading.Reader(ids, len(ids)).read_pair(
            [ids[word] for word in first.split()], [ids[word] for word in second.split()], []
        )[0]

    opening = "Anna is a farmer and lives at the barn . the day is sunny ."
    assert pair(opening, "Anna likes the cheese . in the morning Anna eats the cheese .") > 0.95
    assert pair(opening, "Karl likes the net .") < 0.2
    assert pair(opening, "in the morning the woman eats the rather awful cheese .") < 0.2
