"""Spaced repetition: the formulas of FSRS by hand, and a file that is never lost."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest

from bertsmith.errors import InputError
from bertsmith_school.learn import Deck, default_path

NOW = datetime(2026, 3, 1, 9, 0, tzinfo=timezone.utc)


@pytest.fixture
def deck(tmp_path):
    return Deck(tmp_path / "progress" / "learn.json")


def test_a_known_card_comes_back_ever_later(deck):
    """The first intervals of FSRS-6 with its published weights: 2, 11, 46 days after `good`."""
    card, now, intervals = deck.due(NOW)[0], NOW, []
    for _ in range(3):
        review = deck.answer(card, "good", now)
        intervals.append(review.interval)
        assert card not in deck.due(now + timedelta(days=review.interval, seconds=-1))
        now += timedelta(days=review.interval)
        assert card in deck.due(now)
    assert intervals == [2, 11, 46]


def test_the_first_answer_by_hand(deck):
    """Stability is the weight of the answer; difficulty w4 - e^(w5 (rating - 1)) + 1, from 1 to 10."""
    first = {"again": 0.212, "hard": 1.2931, "good": 2.3065, "easy": 8.2956}
    for number, (card, (answer, stability)) in enumerate(zip(deck.due(NOW), first.items(), strict=False)):
        review = deck.answer(card, answer, NOW)
        assert review.stability == pytest.approx(stability, abs=1e-4)
        difficulty = 6.4133 - math.exp(0.8334 * number) + 1
        assert review.difficulty == pytest.approx(min(10, max(1, difficulty)), abs=1e-4)


def test_a_forgotten_card_comes_back_soon(deck):
    card, now = deck.due(NOW)[0], NOW
    for _ in range(3):
        known = deck.answer(card, "good", now)
        now += timedelta(days=known.interval)
    forgotten = deck.answer(card, "again", now)
    assert forgotten.interval < known.interval / 5
    assert forgotten.difficulty > known.difficulty


def test_an_interval_has_an_end(deck):
    card, now = deck.due(NOW)[0], NOW
    for _ in range(12):
        review = deck.answer(card, "easy", now)
        now += timedelta(days=review.interval)
    assert review.interval == 3650


def test_what_waited_longest_comes_first_and_new_cards_last(deck):
    first, second, *_ = everything = deck.due(NOW)
    deck.answer(second, "good", NOW)
    deck.answer(first, "good", NOW + timedelta(hours=1))
    later = deck.due(NOW + timedelta(days=3))
    assert later[:2] == [second, first]
    assert later[2:] == everything[2:]
    assert deck.due(NOW + timedelta(minutes=1)) == everything[2:]


def test_cards_of_one_lesson(deck):
    assert {card.id.split("/")[0] for card in deck.due(NOW, lesson="details")} == {"details"}


def test_progress_outlives_the_process_and_the_language(deck):
    card = deck.due(NOW)[0]
    deck.answer(card, "good", NOW)
    deck.mark_read("why")
    deck.record_quiz("why", 2, 3)
    again = Deck(deck.path, "zh")
    assert card.id not in [each.id for each in again.due(NOW)]
    assert again.lesson_progress("why") == (True, (2, 3))
    assert again.lesson_progress("details") == (False, None)


def test_two_windows_do_not_undo_each_other(deck):
    other = Deck(deck.path)
    first, second = deck.due(NOW)[:2]
    deck.answer(first, "good", NOW)
    other.answer(second, "good", NOW)
    assert not {first, second} & set(Deck(deck.path).due(NOW))


def test_answers_at_the_same_moment_are_all_kept(deck):
    """Each window is a thread of the lab."""
    cards = deck.due(NOW)[:24]

    def answer(part):
        mine = Deck(deck.path)
        for card in part:
            mine.answer(card, "good", NOW)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(answer, [cards[start::4] for start in range(4)]))
    assert len(json.loads(deck.path.read_text(encoding="utf-8"))["cards"]) == 24


def test_cards_of_another_version_are_kept(deck):
    deck.answer(deck.due(NOW)[0], "good", NOW)
    kept = json.loads(deck.path.read_text())
    kept["cards"]["future/card"] = next(iter(kept["cards"].values()))
    deck.path.write_text(json.dumps(kept))
    deck.answer(deck.due(NOW)[0], "good", NOW)
    assert "future/card" in json.loads(deck.path.read_text())["cards"]


def test_opening_makes_no_file(deck):
    deck.due(NOW)
    assert not deck.path.parent.exists()


REVIEW = '{"due": "2026-03-01T09:00:00+00:00", "last": "2026-02-01T09:00:00+00:00", "stability": 3, "difficulty": 5}'


def deck_of(review, version=2):
    return f'{{"format": {version}, "cards": {{"a": {review}}}, "lessons": {{}}}}'.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"{",
        b'{"format": 1}',
        b'{"format": 3, "cards": {}, "lessons": {}}',
        b'{"format": 2, "cards": [], "lessons": {}}',
        b'{"format": 2, "cards": {}, "lessons": {"why": 1}}',
        b'{"format": 2, "cards": {}, "lessons": {"why": {"quiz": [1]}}}',
        deck_of("{}"),
        deck_of("5"),
        deck_of(REVIEW, 1),
        deck_of(REVIEW.replace("2026", "soon")),
        deck_of(REVIEW.replace("+00:00", "")),
        deck_of(REVIEW.replace("3,", "0,")),
        deck_of(REVIEW.replace("5}", "11}")),
        deck_of(REVIEW.replace("5}", "NaN}")),
        b"[" * 100_000,
        b"\x00" * 100,
    ],
)
def test_a_damaged_file_is_named_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "learn.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"learn\.json: .*--progress") as caught:
        Deck(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_damage_while_the_deck_is_open_loses_nothing(deck):
    card = deck.due(NOW)[0]
    deck.answer(card, "good", NOW)
    deck.path.write_bytes(b"{ half")
    with pytest.raises(InputError, match="damaged"):
        deck.answer(card, "good", NOW)
    assert deck.path.read_bytes() == b"{ half"


def test_a_folder_in_the_place_of_the_file(tmp_path):
    with pytest.raises(InputError, match="no plain file"):
        Deck(tmp_path)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--progress"):
        Deck(tmp_path / "file" / "learn.json").mark_read("why")


def test_an_answer_that_is_not_there(deck):
    with pytest.raises(InputError, match="use one of again, hard, good, easy"):
        deck.answer(deck.due(NOW)[0], "5", NOW)
    assert not deck.path.exists()


@pytest.mark.parametrize(("home", "expected"), [("/data", "/data"), ("", "~/.local/share"), ("rel", "~/.local/share")])
def test_the_place_of_the_file(monkeypatch, home, expected):
    monkeypatch.setenv("HOME", "/home/reader")
    monkeypatch.setenv("XDG_DATA_HOME", home)
    assert str(default_path()) == f"{expected.replace('~', '/home/reader')}/bertsmith/learn.json"
