"""Words and BM25, against the formula written out."""

import math
from collections import Counter

import numpy as np
import opencc
import pytest

from bertsmith.retrieval.lexical import LexicalSearch, places_of, simplified, words_of

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
    np.testing.assert_array_equal(
        LexicalSearch.load(tmp_path / "words", len(TEXTS)).scores(query), search.scores(query)
    )


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


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("GDP 2024", "２０２４年ＧＤＰ"),
        ("finance office", "the oﬃce of ﬁnance"),
        ("文化部长", "⽂化部⻓"),
        ("STRASSE", "Die Straße ist lang"),
        ("Straße", "DIE STRASSE"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
    ],
)
def test_characters_that_only_look_different_are_found(query, text):
    texts = [text, "something else"]
    search = LexicalSearch.build(texts)
    assert search.search(query, 1)[0].tolist() == [0]
    # 一个词也没有漏：少认一个字，别的词照样能找到这段文字
    assert set(words_of(query)) <= set(words_of(text))
    np.testing.assert_allclose(search.scores(query), bm25(query, texts), rtol=1e-5)


@pytest.mark.parametrize(
    ("query", "text"), [("头发", "臺灣的頭髮"), ("頭髮", "台湾的头发"), ("發展", "城市的发展"), ("后天", "後天下雨")]
)
def test_traditional_and_simplified_characters_are_found_by_each_other_where_it_is_asked_for(query, text):
    search = LexicalSearch.build([text, "something else"], simplified)
    assert search.search(query, 1)[0].tolist() == [0]
    assert places_of(text, set(words_of(query, simplified)), simplified)
    pairs = [word for word in words_of(query) if len(word) > 1]
    assert not set(pairs) & set(words_of(text))


def test_single_characters_are_those_of_opencc():
    text = "漢語學習資料庫裡的乾淨麵條與後裡遊戲"
    converter = opencc.OpenCC("t2s")
    assert simplified(text) == "".join(map(converter.convert, text))


def test_a_place_in_the_text_is_one_of_its_own_characters():
    text = "ＧＤＰ of the ⽂化部⻓"
    words = {*words_of("gdp"), *words_of("文化")}
    assert [text[start:end] for start, end in places_of(text, words)] == ["ＧＤＰ", "⽂化"]
