"""The oracles are literal readings of the published rules, written here step by step, and cases counted by hand."""

import string

import numpy as np
import pytest

from bertsmith.finetune.metrics.spans import (
    cmrc_scores,
    mixed_segments,
    squad_scores,
)

SIGNS = [*"-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』", "……"]


def rule_normalize(text):
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    words = []
    word = ""
    for letter in text + " ":  # \b: an article is a whole word of letters, digits and underscores
        if letter.isalnum() or letter == "_":
            word += letter
        else:
            words.append(" " if word in ("a", "an", "the") else word)
            words.append(letter)
            word = ""
    return " ".join("".join(words).split())


def rule_squad(prediction, answers, unanswerable):
    if unanswerable:
        answers = [text for text in answers if rule_normalize(text)] or [""]
    exact, f1 = 0, 0.0
    for answer in answers:
        guess, true = rule_normalize(prediction), rule_normalize(answer)
        exact = max(exact, int(guess == true))
        same = sum(min(guess.split().count(word), true.split().count(word)) for word in set(guess.split()))
        if unanswerable and (not guess or not true):
            f1 = max(f1, float(guess == true))
        elif same:
            precision, recall = same / len(guess.split()), same / len(true.split())
            f1 = max(f1, 2 * precision * recall / (precision + recall))
    return exact, f1


def rule_segments(text):
    """Characters one by one; words without apostrophes, periods and other signs need no tokenizer but white space."""
    segments, word = [], ""
    for letter in text.lower().strip():
        if letter in SIGNS:
            continue
        if "\u4e00" <= letter <= "\u9fa5":
            segments += [*word.split(), letter]
            word = ""
        else:
            word += letter
    return segments + word.split()


def rule_cmrc(prediction, answers):
    exact, f1 = 0, 0.0
    for answer in answers:
        stripped = ["".join(c for c in text.lower().strip() if c not in SIGNS) for text in (prediction, answer)]
        exact = max(exact, int(stripped[0] == stripped[1]))
        guess, true = rule_segments(prediction), rule_segments(answer)
        runs = [
            size
            for size in range(1, min(len(guess), len(true)) + 1)
            for i in range(len(guess) - size + 1)
            for j in range(len(true) - size + 1)
            if guess[i : i + size] == true[j : j + size]
        ]
        if runs:
            precision, recall = max(runs) / len(guess), max(runs) / len(true)
            f1 = max(f1, 2 * precision * recall / (precision + recall))
    return exact, f1


def draw(rng, pieces, most):
    return "".join(pieces[i] for i in rng.integers(0, len(pieces), int(rng.integers(0, most))))


@pytest.mark.parametrize("unanswerable", [False, True])
def test_squad_equals_its_rules_on_ten_thousand_cases(unanswerable):
    rng = np.random.default_rng(1)
    pieces = ["a", "an ", "The", " ", " the ", "cat ", " Cat. ", "dog ", ",", "-", "’", "é", "\t", "7", "theme ", "_"]
    predictions = [draw(rng, pieces, 7) for _ in range(10_000)]
    answers = [[draw(rng, pieces, 7) for _ in range(int(rng.integers(not unanswerable, 4)))] for _ in predictions]
    scores = squad_scores(predictions, answers, unanswerable=unanswerable)
    expected = [rule_squad(*case, unanswerable) for case in zip(predictions, answers, strict=True)]
    assert np.stack([scores.exact_matches, scores.f1s], axis=1) == pytest.approx(np.array(expected, dtype=float))
    assert scores.f1 == pytest.approx(np.mean([f1 for _, f1 in expected]))
    assert 0.05 < min(scores.exact_match, scores.f1) < 0.95  # the cases are neither all easy nor all hopeless


def test_cmrc_equals_its_rules_on_ten_thousand_cases():
    rng = np.random.default_rng(2)
    pieces = [*"中国人民大学，。《》", "BERT ", "bert", " ", "2018", "-", "…", "……", "Ａ", "～"]
    predictions = [draw(rng, pieces, 9) for _ in range(10_000)]
    answers = [[draw(rng, pieces, 9) for _ in range(int(rng.integers(1, 3)))] for _ in predictions]
    scores = cmrc_scores(predictions, answers)
    expected = [rule_cmrc(*case) for case in zip(predictions, answers, strict=True)]
    assert np.stack([scores.exact_matches, scores.f1s], axis=1) == pytest.approx(np.array(expected, dtype=float))


def test_squad_by_hand():
    # "in denver colorado" against "denver": 1 common word of 3 and of 1
    scores = squad_scores(["in Denver, Colorado", "Denver"], [["Denver"], ["the denver.", "Boulder"]])
    assert scores.exact_matches.tolist() == [0, 1]
    assert scores.f1s.tolist() == pytest.approx([2 * (1 / 3) * 1 / (1 / 3 + 1), 1])
    assert (scores.exact_match, scores.f1) == pytest.approx((0.5, 0.75))


def test_no_answer():
    scores = squad_scores(["", "something", "", "x"], [[], [], ["x"], ["x"]], unanswerable=True)
    assert scores.exact_matches.tolist() == [1, 0, 0, 1]
    assert scores.f1s.tolist() == [1, 0, 0, 1]
    # an answer that is nothing but an article: SQuAD 1.1 finds no common word, 2.0 counts it as no answer
    assert squad_scores(["the"], [["The"]]).f1 == 0.0
    assert squad_scores(["the"], [["The"]], unanswerable=True).f1 == 1.0


def test_cmrc_by_hand():
    # 中国人 / 中国的人: the longest common run is 中国, 2 of 3 and 2 of 4; a subsequence would give 3
    scores = cmrc_scores(["中国人", "《红楼梦》", "iPhone 4s"], [["中国的人"], ["红楼梦。"], ["苹果iphone 4S手机"]])
    assert scores.f1s.tolist() == pytest.approx([2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4), 1, 2 * 2 / (2 + 6)])
    assert scores.exact_matches.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("约1,000.5米", ["约", "1,000.5", "米"]),
        ("don't (stop), U.S.", ["do", "n't", "(", "stop", ")", ",", "u.s", "."]),
        ("workers' 20–18, cannot——", ["workers", "'", "20", "–", "18", ",", "can", "not", "—", "—"]),
        ("It's 50% off...", ["it", "'s", "50", "%", "off", "..."]),
        ("《Mr. Bean》第2-3季", ["mr.", "bean", "第", "23", "季"]),
        ("", []),
    ],
)
def test_latin_words_inside_chinese(text, segments):
    assert mixed_segments(text) == segments
