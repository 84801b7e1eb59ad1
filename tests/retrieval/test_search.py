"""Searching: each mode against its oracle, filters, a cross-encoder's second look, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import sentence_transformers

from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference import load_pipeline
from bertsmith.inference.embed import SentenceFolder, write_sentence_folder
from bertsmith.retrieval import IndexSettings, build, build_index, load_index


@pytest.fixture
def index(notes_index):
    return load_index(notes_index, precision="float32")


def test_dense_search_is_the_order_of_cosines(index, tiny_model):
    query = load_pipeline("embed", tiny_model, precision="float32")(["the man reads"])[0]
    cosines = index.stored.vectors @ query
    hits = index.search("the man reads", k=3, mode="dense")
    assert [hit.row for hit in hits] == np.argsort(-cosines, kind="stable")[:3].tolist()
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosines.tolist(), reverse=True)[:3], abs=1e-6)


def test_lexical_search_finds_words_in_text_and_headings(index):
    assert [hit.file for hit in index.search("bread", mode="lexical")] == ["bread.txt"]
    assert index.search("面包", mode="lexical")[0].file == "中文.txt"
    hits = index.search("books", mode="lexical")
    assert {(hit.file, hit.heading) for hit in hits} == {
        ("guides/books.md", "Books"),
        ("guides/books.md", "Books > Old books"),
    }
    assert hits[0].metadata == {"lang": "en", "topic": "reading"}
    assert index.search("zebra", mode="lexical") == []


def test_hybrid_search_adds_scores(index):
    hits = index.search("the old bread", k=5)
    assert hits == index.search("the old bread", k=5, weight=0.4)
    found = {mode: index.search("the old bread", k=99, mode=mode) for mode in ("dense", "lexical")}
    expected = dict.fromkeys((hit.row for hit in found["dense"]), 0.0)
    for mode, weight in (("dense", 0.4), ("lexical", 0.6)):
        least, most = found[mode][-1].score, found[mode][0].score
        for hit in found[mode]:
            expected[hit.row] += weight * (hit.score - least) / (most - least)
    assert [hit.score for hit in hits] == pytest.approx(sorted(expected.values(), reverse=True)[:5], abs=1e-6)
    assert all(expected[hit.row] == pytest.approx(hit.score, abs=1e-6) for hit in hits)


def test_ranks_are_added_by_their_reciprocals(index):
    hits = index.search("the old bread", k=5, mode="ranks")
    dense, lexical = (
        [hit.row for hit in index.search("the old bread", k=99, mode=mode)] for mode in ("dense", "lexical")
    )
    expected = dict.fromkeys(dense, 0.0)
    for order in (dense, lexical):
        for rank, row in enumerate(order, 1):
            expected[row] += 1 / (60 + rank)
    assert [hit.score for hit in hits] == pytest.approx(sorted(expected.values(), reverse=True)[:5])
    assert all(expected[hit.row] == pytest.approx(hit.score) for hit in hits)


def test_weights_go_from_words_to_vectors(index):
    rows = [[hit.row for hit in index.search("the old bread", k=3, weight=weight)] for weight in (0.0, 1.0)]
    assert rows[0] == [hit.row for hit in index.search("the old bread", k=3, mode="lexical")]
    assert rows[1] == [hit.row for hit in index.search("the old bread", k=3, mode="dense")]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid", "ranks"])
def test_filters_leave_only_their_documents(index, mode):
    assert {hit.file for hit in index.search("a book the tree", mode=mode, where={"file": "guides/*"})} == {
        "guides/books.md",
        "guides/trees.txt",
    }
    found = index.search("a book the tree", mode=mode, where={"file": "guides/*", "lang": "e?"})
    assert {hit.file for hit in found} == {"guides/books.md"}
    assert index.search("book", mode=mode, where={"file": "none"}) == []


def test_an_unknown_field_is_named(index):
    with pytest.raises(InputError, match="'year'"):
        index.search("book", where={"year": "2020"})


def test_vectors_are_as_wide_as_the_folder_says(notes, tiny_model, tmp_path):
    write_sentence_folder(tiny_model, SentenceFolder(max_length=32, dims=16), 64)
    build_index(notes, tiny_model, tmp_path / "x", IndexSettings(overlap=4, precision="float32"))
    index = load_index(tmp_path / "x", precision="float32")
    assert index.stored.vectors.shape[1] == 16
    hits = index.search("the book", k=99, mode="dense")
    theirs = sentence_transformers.SentenceTransformer(str(tiny_model), device="cpu")
    texts = ["the book", *map(with_headings, hits)]
    query, *passages = theirs.encode(texts, normalize_embeddings=True)
    assert [hit.score for hit in hits] == pytest.approx([float(query @ one) for one in passages], abs=1e-5)


def with_headings(hit):
    return f"{hit.heading}\n{hit.text}" if hit.heading else hit.text


def test_a_cross_encoder_has_the_last_word(notes_index, tmp_path):
    import torch

    from bertsmith.model import BertConfig, BertForSequenceClassification
    from bertsmith.tokenizer import WordPieceTokenizer

    torch.manual_seed(3)
    tokenizer = WordPieceTokenizer.train(["the man eats bread . the woman reads a book !"] * 3, vocab_size=200)
    config = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=64, id2label={0: "r"})
    BertForSequenceClassification(config).save_pretrained(tmp_path / "ranker")
    tokenizer.save(tmp_path / "ranker")
    index = load_index(notes_index, rerank=tmp_path / "ranker", precision="float32")
    hits = index.search("the book", k=4)
    ranked = load_pipeline("rank", tmp_path / "ranker", precision="float32")(
        "the book", [with_headings(hit) for hit in load_index(notes_index).search("the book", k=99)]
    )
    # 与向量一样，标题也要读
    assert [with_headings(hit) for hit in hits] == [one.text for one in ranked[:4]]
    assert [hit.score for hit in hits] == pytest.approx([one.score for one in ranked[:4]], abs=1e-6)


def test_prompts_are_read_before_queries_and_passages(notes, tiny_model, tmp_path):
    settings = IndexSettings(overlap=2, query_prompt="woman ", passage_prompt="man ", precision="float32")
    build_index(notes, tiny_model, tmp_path / "x", settings)
    embed = load_pipeline("embed", tiny_model, precision="float32")
    index = load_index(tmp_path / "x", precision="float32")
    np.testing.assert_allclose(index.embed_query("a book"), embed(["woman a book"])[0], atol=1e-6)
    texts = index.stored.passages.filter(np.array(index.stored.passages["heading"]) == "")["text"].to_pylist()
    rows = [row for row, heading in enumerate(index.stored.passages["heading"].to_pylist()) if not heading]
    np.testing.assert_allclose(index.stored.vectors[rows], embed([f"man {text}" for text in texts]), atol=1e-6)


def test_prompts_of_the_model_folder_are_read_once(notes, tiny_model, tmp_path):
    asked = IndexSettings(query_prompt="woman ", passage_prompt="man ", precision="float32")
    build_index(notes, tiny_model, tmp_path / "asked", asked)
    shutil.copytree(tiny_model, tmp_path / "model")
    says = {"prompts": {"query": "woman ", "document": "man "}, "default_prompt_name": "query"}
    (tmp_path / "model" / "config_sentence_transformers.json").write_text(json.dumps(says))
    build_index(notes, tmp_path / "model", tmp_path / "said", IndexSettings(precision="float32"))
    asked_index, said_index = (load_index(tmp_path / name, precision="float32") for name in ("asked", "said"))
    np.testing.assert_array_equal(asked_index.stored.vectors, said_index.stored.vectors)
    np.testing.assert_array_equal(asked_index.embed_query("a book"), said_index.embed_query("a book"))


@pytest.mark.parametrize(
    ("query", "more", "error", "message"),
    [
        ("", {}, InputError, "empty"),
        (" \n", {}, InputError, "empty"),
        (None, {}, InputError, "empty"),
        ("a", {"k": 0}, InputError, "k is 0"),
        ("a", {"mode": "best"}, ConfigError, "use hybrid, ranks, dense, lexical"),
        ("a", {"weight": 2.0}, InputError, "weight"),
        ("a", {"weight": float("nan")}, InputError, "weight"),
        ("a", {"weight": 0.5, "mode": "dense"}, InputError, "weight"),
    ],
)
def test_bad_queries_are_one_line(index, query, more, error, message):
    with pytest.raises(error, match=message):
        index.search(query, **more)


def test_queries_of_any_length_are_answered(index):
    assert index.search("the man " * 5000, k=1)
    assert index.search("...", k=1, mode="dense")
    assert index.search("😀", k=99)


def test_a_moved_model_is_named(notes_index, tiny_model, tmp_path):
    tiny_model.rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="--model"):
        load_index(notes_index).search("book")
    assert load_index(notes_index, model=tmp_path / "moved").search("book")


def test_equal_scores_keep_the_order_of_the_files(notes, tiny_model, tmp_path, settings):
    for number in range(5):
        (notes / f"same-{number}.txt").write_text("the woman reads a book")
    build_index(notes, tiny_model, tmp_path / "x", settings)
    for mode in ("dense", "lexical", "hybrid"):
        hits = load_index(tmp_path / "x").search("the woman reads a book", mode=mode, k=5)
        assert [hit.file for hit in hits] == [f"same-{number}.txt" for number in range(5)]


@pytest.fixture
def searched(tmp_path, tiny_model, settings):
    """Searches by words in documents that a test writes."""

    def search(query, documents, **how):
        folder = tmp_path / "given"
        for name, text in documents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        build_index(folder, tiny_model, tmp_path / "given.index", settings)
        hits = load_index(tmp_path / "given.index", precision="float32").search(query, mode="lexical", **how)
        return [hit.file for hit in hits]

    return search


MATTER = """---
title: "A: the plan"
author: Zoe\u0301
tags:
  - baking
  - bread
date: 2024-01-02
draft: yes
team:
  lead: Ann
---
bread
"""


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"file": "[2024] plan.md"}, ["[2024] plan.md"]),
        ({"file": "*plan.md"}, ["2 plan.md", "[2024] plan.md"]),
        ({"file": "Zoé.md"}, ["Zoe\u0301.md"]),
        ({"author": "Zoé"}, ["Zoe\u0301.md"]),
        ({"tags": "bak*"}, ["Zoe\u0301.md"]),
        ({"tags": "bread"}, ["Zoe\u0301.md"]),
        ({"tags": "cake"}, []),
        ({"title": "A: the plan", "date": "2024-01-02", "draft": "yes", "team.lead": "A??"}, ["Zoe\u0301.md"]),
        ({"kind": "a: b"}, ["broken.md"]),
        ({"autho\u0301r": "Ann"}, ["flow.md"]),
        ({"authór": "Ann"}, ["flow.md"]),
        ({"tags": "cookies"}, ["flow.md"]),
        ({"kind": "mark"}, ["bom.md"]),
        # 试遍所有的分法就停不下来
        ({"long": "*?" * 100 + "!"}, []),
        ({"long": "*?" * 100}, ["broken.md"]),
    ],
)
def test_a_filter_means_what_it_says(searched, where, found):
    documents = {
        "2 plan.md": "bread",
        "[2024] plan.md": "bread",
        "Zoe\u0301.md": MATTER,
        "bom.md": "\ufeff---\nkind: mark\n---\nbread",
        "flow.md": "---\nautho\u0301r: Ann\ntags: [cakes, cookies]\n---\nbread",
        # 不是 YAML 的前言：逐行认
        "broken.md": f"---\nkind: a: b\nother: [\nlong: {'x' * 200}\n---\nbread",
    }
    assert sorted(searched("bread", documents, where=where)) == found


def test_front_matter_of_a_stranger_ends_at_once(searched):
    bomb = "---\nf0: &f0 {a: x, b: x}\n"
    bomb += "".join(f"f{n}: &f{n} {{a: *f{n - 1}, b: *f{n - 1}, c: [*f{n - 1}, *f{n - 1}]}}\n" for n in range(1, 40))
    bomb += "---\nbread"
    deep = "---\na: " + "{a: " * 300 + "1" + "}" * 300 + "\n---\nbread"
    assert sorted(searched("bread", {"bomb.md": bomb, "deep.md": deep})) == ["bomb.md", "deep.md"]


@pytest.mark.parametrize("similarity", ["dot", "euclidean", "manhattan"])
def test_vectors_are_compared_as_the_folder_says(notes, tiny_model, tmp_path, similarity, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(build, "EXACT_ROWS", 3)
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "model" / "config_sentence_transformers.json").write_text(
        json.dumps({"similarity_fn_name": similarity})
    )
    build_index(notes, tmp_path / "model", tmp_path / "x", IndexSettings(overlap=4, precision="float32"))
    pipeline = load_pipeline("embed", tmp_path / "model", precision="float32")
    index = load_index(tmp_path / "x", precision="float32")
    # 一位的编码只估得出乘积
    assert ("codes.faiss" in index.stored.current.checksums) == (similarity == "dot")
    read = [with_headings(hit) for hit in index.search("the book", k=99, mode="dense")]
    expected = pipeline.compare(["the book"], read)[0]
    hits = index.search("the book", k=99, mode="dense")
    assert [hit.score for hit in hits] == pytest.approx(expected.tolist(), abs=1e-4)
    assert expected.tolist() == pytest.approx(sorted(expected.tolist(), reverse=True), abs=1e-4)
    # 更新时仍是同一个索引
    assert not build_index(
        notes, tmp_path / "model", tmp_path / "x", IndexSettings(overlap=4, precision="float32")
    ).embedded
