"""A quickstart that ends in a search: the index works, and the comparison is what each way really finds."""

import numpy as np
import pytest

from bertsmith import quickstart
from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets.related import RelatedTexts
from bertsmith.inference import load_pipeline
from bertsmith.journeys import searching
from bertsmith.journeys.searching import WAYS, SearchTask, compare_ways
from bertsmith.retrieval import load_index
from bertsmith.retrieval.lexical import LexicalSearch
from bertsmith.tinyworld import draw_stories, render


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for number, story in enumerate(draw_stories(0, 120)):
        (folder / f"{number:03d}.txt").write_text("\n".join(render(sentence) for sentence in story.sentences))
    return folder


@pytest.mark.slow
def test_a_folder_becomes_searchable(text, tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "CANDIDATES", 60)
    out = tmp_path / "out"
    how = {"size": "1/64", "minutes": 0.05, "vocab_size": 400, "search": True}
    found = quickstart(text, out, **how).details.search
    assert set(found.mrr) == set(WAYS)
    assert found.mrr["words (BM25)"] > 0.3
    assert all(0 < value <= 1 for value in found.mrr.values())
    assert len(found.examples) == searching.SHOWN
    best = max(found.mrr, key=found.mrr.get)
    assert found.verdict.startswith(f"Best: {best} ({found.mrr[best]:.3f})")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h2>Search</h2>" in page
    assert found.verdict in page
    hits = load_index(out / "index").search((text / "007.txt").read_text(), k=3)
    assert hits[0].file == "007.txt"
    # 同一条命令再来一次：什么也不重做，结果一样
    again = quickstart(text, out, **how).details.search
    assert again == found


def test_each_way_finds_what_it_finds_alone(tiny_model):
    asked = [RelatedTexts("the man", "the man eats bread ."), RelatedTexts("a book", "the woman reads a book .")]
    others = ["the man reads .", "a tree is green .", "the man eats bread .", "the book is old ."]
    found = compare_ways(asked, asked, others, tiny_model, tiny_model)
    passages = ["the man eats bread .", "the woman reads a book .", *(others[n] for n in (0, 1, 3))]
    embed, words = load_pipeline("embed", tiny_model), LexicalSearch.build(passages)
    ranks = {way: [] for way in WAYS[:2]}
    for number, pair in enumerate(asked):
        for way, scores in (
            (WAYS[0], words.scores(pair.query)),
            (WAYS[1], embed(passages) @ embed([pair.query])[0]),
        ):
            ahead = [score >= scores[number] for place, score in enumerate(scores) if place != number]
            ranks[way].append(1 / (1 + sum(ahead)))
    for way, expected in ranks.items():
        assert found.mrr[way] == pytest.approx(np.mean(expected))
    assert found.mrr["vectors before"] == found.mrr["vectors after"]
    assert (found.queries, found.candidates) == (2, 5)
    assert found.weight in searching.WEIGHTS


def test_other_queries_choose_the_weight_of_vectors(tiny_model, monkeypatch):
    # 前两句只有向量答得对，词指向别处；后两句只有词答得对
    meant = [RelatedTexts("dawn", "the sky at noon ."), RelatedTexts("dusk", "the sea at night .")]
    worded = [RelatedTexts("the dawn", "the sky at dawn ."), RelatedTexts("the dusk", "the sea at dusk .")]
    place = {pair.positive: number for number, pair in enumerate((*meant, *worded))}
    answers = {"dawn": 0, "dusk": 1, "the dawn": 1, "the dusk": 0}

    class Vectors:
        def __call__(self, texts):
            return np.eye(4, dtype=np.float32)[[answers.get(text, place.get(text)) for text in texts]]

    monkeypatch.setattr(searching.Embed, "load", lambda *_: Vectors())
    others = list(place)
    weights = [compare_ways(meant, by, others, tiny_model, tiny_model).weight for by in (meant, worded)]
    assert weights[0] > 0.5
    assert weights[1] < 0.5


@pytest.mark.parametrize(("weight", "mrr"), [(0.0, 1), (0.3, 1), (0.7, 1), (0.9, 1 / 2), (1.0, 1 / 2)])
def test_words_and_vectors_find_by_their_weight(weight, mrr):
    """By hand: cosines 0.6, 0.8 and 0 are 3/4, 1 and 0 of their range; one text has the word. 1 - w/4 > w below 0.8."""
    examples = [RelatedTexts("red", "red sun", ("blue moon", "green tree"))]
    vectors = [np.array([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]], dtype=np.float32)]
    found = SearchTask(weight=weight).scored(examples, vectors)
    assert found.metrics["mrr"] == pytest.approx(mrr)
    assert bool(found.mistakes) == (mrr < 1)
    remark = f"vectors without words have ndcg_at_10 0.631; in an index they count {weight:g}"
    assert (remark in found.remarks) == (weight < 1)


def test_what_cannot_be_searched(text, tmp_path):
    out = tmp_path / "out"
    for corpus, folder in (([], out), ([text, text], out), (text / "000.txt", out), (text, text / "out")):
        with pytest.raises(ConfigError, match="--search makes an index|lies in"):
            quickstart(corpus, folder, size="1/64", minutes=0.05, search=True)
        assert not folder.exists()
