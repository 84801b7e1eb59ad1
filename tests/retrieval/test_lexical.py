"""Words and BM25, against the formula written out."""

import math
from collections import Counter

import numpy as np
import pytest

from bertsmith.retrieval.lexical import LexicalSearch, words_of

TEXTS = ["The cat sat on the mat.", "A dog; a dog!", "...", "the CAT and the dog", "面包很好吃", "他吃面包"]


def bm25(query, texts, k1=1.5, b=0.75):
    """Robertson and Zaragoza 2009, with the never-negative idf of Lucene."""
    rows = [Counter(words_of(text)) for text in texts]
    mean = sum(row.total() for row in rows) / len(rows)
    scores = np.zeros(len(rows))
    for word in words_of(query):
        holding = sum(word in row for row in rows)
        idf = math.log(1 + (len(rows) - holding + 0.5) / (holding + 0.5))
        for number, row in enumerate(rows):
            scores[number] += idf * row[word] / (row[word] + k1 * (1 - b + b * row.total() / mean))
    return scores


def test_words():
    assert words_of("Crème-brûlée, 3.5 €!") == ["creme", "brulee", "3", "5"]
    assert words_of("吃面包 ok") == ["吃", "面", "吃面", "包", "面包", "ok"]
    assert words_of("面。包") == ["面", "包"]
    assert words_of("... !") == []


@pytest.mark.parametrize("query", ["cat", "the dog", "dog dog", "面包", "吃", "zebra cat"])
def test_scores_are_bm25(query, tmp_path):
    search = LexicalSearch.build(TEXTS)
    np.testing.assert_allclose(search.scores(query), bm25(query, TEXTS), rtol=1e-5)
    search.save(tmp_path / "words")
    np.testing.assert_array_equal(LexicalSearch.load(tmp_path / "words").scores(query), search.scores(query))


def test_search_leaves_out_what_shares_no_word():
    search = LexicalSearch.build(TEXTS)
    rows, scores = search.search("cat", 10)
    assert sorted(rows.tolist()) == [0, 3]
    assert scores[0] >= scores[1] > 0
    assert search.search("cat", 10, np.array([1, 3]))[0].tolist() == [3]
    assert search.search("zebra", 10)[0].tolist() == []
    assert search.search("...", 10)[0].tolist() == []


def test_texts_without_any_word_can_be_counted():
    assert LexicalSearch.build(["...", "!"]).search("a", 3)[0].tolist() == []
