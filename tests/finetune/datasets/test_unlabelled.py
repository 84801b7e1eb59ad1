"""Pairs from text without labels."""

import pytest

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.unlabelled import read_unlabelled


def sentences_of(number):
    return [f"Sentence {letter} of story {number} is here." for letter in "abcdefgh"]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "texts"
    place.mkdir()
    for number in range(30):
        (place / f"{number:02d}.txt").write_text(" ".join(sentences_of(number)) + "\n")
    return place


def number_of(text):
    return text.split(" of story ")[1].split()[0]


def test_a_sentence_and_what_stands_around_it(folder):
    train, dev = read_unlabelled(folder, "cloze")
    assert len(train) + len(dev) == 60
    kept = 0
    for pair in train + dev:
        story = sentences_of(number_of(pair.query))
        first = 4 * (story.index(pair.query) // 4)
        rest = [sentence for sentence in story[first : first + 4] if sentence != pair.query]
        kept += pair.query in pair.positive
        assert pair.positive in (" ".join(rest), " ".join(story[first : first + 4]))
    assert 0 < kept < 20
    # the epoch is chosen by documents that nothing was learned from
    assert {number_of(pair.query) for pair in train}.isdisjoint(number_of(pair.query) for pair in dev)


def test_a_stretch_and_the_next_one(folder):
    train, dev = read_unlabelled(folder, "adjacent")
    story = sentences_of(number_of(train[0].query))
    assert (train[0].query, train[0].positive) == (" ".join(story[:2]), " ".join(story[2:4]))
    assert len(train) % 3 == 0
    assert dev == read_unlabelled(folder, "cloze")[1]


def test_words_in_a_row_and_the_stretch_they_are_from(folder):
    train, dev = read_unlabelled(folder, "span")
    for pair in train:
        story = sentences_of(number_of(pair.positive))
        assert pair.positive in (" ".join(story[:4]), " ".join(story[4:]))
        assert f" {pair.query} " in f" {pair.positive} "
    assert {len(pair.query.split()) for pair in train} <= set(range(3, 13))
    assert len({len(pair.query.split()) for pair in train}) > 5
    assert dev == read_unlabelled(folder, "cloze")[1]


def test_a_span_of_chinese_is_of_characters(tmp_path):
    for number in range(80):
        (tmp_path / f"{number:02d}.txt").write_text(
            f"第{number}家店的汤很好喝。第{number}位老板人不错。", encoding="utf-8"
        )
    train, _ = read_unlabelled(tmp_path, "span")
    assert all(pair.query in pair.positive and 2 <= len(pair.query) <= 13 for pair in train)
    # 一段的一半以下：句子不会整个变成问题
    assert max(len(pair.query) for pair in train) <= 13 < min(len(pair.positive) for pair in train)


def test_a_sentence_and_itself(folder):
    train, _ = read_unlabelled(folder, "same")
    assert all(pair.query == pair.positive for pair in train)
    assert len({pair.query for pair in train}) == len(train)


def test_the_same_seed_gives_the_same_pairs(folder):
    assert read_unlabelled(folder, seed=3) == read_unlabelled(folder, seed=3) != read_unlabelled(folder, seed=4)


def test_copies_are_left_out(folder):
    (folder / "99.txt").write_text((folder / "00.txt").read_text())
    train, dev = read_unlabelled(folder, "adjacent")
    assert len({pair.positive for pair in train}) == len(train)
    assert len({pair.query for pair in dev}) == len(dev)


def test_text_that_gives_nothing_is_refused(tmp_path, folder):
    with pytest.raises(ConfigError, match="positives 'next' are unknown; use span, cloze, adjacent, same"):
        read_unlabelled(folder, "next")
    (tmp_path / "a.txt").write_text("One sentence only.\n")
    with pytest.raises(InputError, match="1 documents give 0 pairs to learn from and 0 to choose the epoch by"):
        read_unlabelled(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(InputError, match="no sentence found"):
        read_unlabelled(tmp_path / "b.txt")
