"""Hard negatives against a ranking written out by hand, near duplicates against all cosines, and what is refused."""

import json

import numpy as np
import pytest

from bertsmith.errors import BertsmithError, ConfigError, InputError
from bertsmith.finetune.datasets.related import RELATED
from bertsmith.inference import load_pipeline
from bertsmith.retrieval.mining import MiningSettings, mine, near_duplicates
from typed_command import typed

PAIRS = [
    ("who eats bread ?", "the man eats bread ."),
    ("who eats bread ?", "the woman eats bread too ."),
    ("who reads ?", "the woman reads a book ."),
    ("what is green ?", "a tree is green ."),
    ("what is old ?", "the bread is old ."),
    ("the tree has a leaf .", "the leaf is green ."),
    ("what has a leaf ?", "the tree has a leaf ."),
]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("query\tpositive\n" + "".join(f"{query}\t{text}\n" for query, text in PAIRS))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("first", "margin", "similarity"), [(1, 0.0, "cosine"), (2, 0.0, "cosine"), (1, 0.1, "cosine"), (1, 0.05, "dot")]
)
def test_negatives_are_what_is_found_and_is_no_answer(first, margin, similarity, pairs, tiny_model, tmp_path):
    (tiny_model / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": similarity}))
    embed = load_pipeline("embed", tiny_model, precision="float32")
    texts = list(dict.fromkeys(text for _, text in PAIRS))
    how = {"normalize": similarity == "cosine"}
    vectors = embed(texts, **how)
    settings = {"negatives": 2, "first_rank": first, "margin": margin, "precision": "float32"}
    found = mine(pairs, tmp_path / "mined.jsonl", model=tiny_model, **settings).details
    rows = read(tmp_path / "mined.jsonl")
    assert [(row["query"], row["positive"]) for row in rows] == PAIRS
    for row in rows:
        products = dict(zip(texts, (vectors @ embed([row["query"]], **how)[0]).tolist(), strict=True))
        right = [text for query, text in PAIRS if query == row["query"]]
        ranked = sorted(
            (text for text in texts if text not in (*right, row["query"])), key=lambda text: -products[text]
        )
        least = min(products[text] for text in right)
        allowed = [text for text in ranked[first - 1 :] if products[text] <= least - margin * abs(least)]
        assert row["negatives"] == allowed[:2]
    assert found.negatives == sum(len(row["negatives"]) for row in rows)
    assert found.without == sum(not row["negatives"] for row in rows)
    assert (found.pairs, found.texts) == (len(PAIRS), len(texts))


def test_words_find_negatives_without_a_model(pairs, tmp_path):
    mine(pairs, tmp_path / "mined.jsonl", mode="lexical")
    rows = {(row["query"], row["positive"]): row["negatives"] for row in read(tmp_path / "mined.jsonl")}
    assert rows["who eats bread ?", "the man eats bread ."] == ["the bread is old ."]
    assert rows["who reads ?", "the woman reads a book ."] == []


def test_training_reads_what_was_mined(pairs, tiny_model, tmp_path):
    mine(pairs, tmp_path / "mined.jsonl", model=tiny_model, margin=0.0)
    examples = RELATED.read(tmp_path / "mined.jsonl")
    assert [(one.query, one.positive) for one in examples] == PAIRS
    assert any(one.negatives for one in examples)


def test_negatives_of_the_file_stay(tmp_path):
    lines = [
        {"query": "who eats bread ?", "positive": "the man eats bread .", "negatives": ["the bread is old ."]},
        {"query": "what grows ?", "positive": "a tree grows .", "negatives": []},
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    mine(tmp_path / "pairs.jsonl", tmp_path / "mined.jsonl", mode="lexical")
    assert [row["negatives"] for row in read(tmp_path / "mined.jsonl")] == [["the bread is old ."], []]


def test_a_beir_folder_is_searched_whole(tmp_path):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    texts = {"1": "the man eats bread .", "2": "the bread is old .", "3": "a tree is green ."}
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts.items())
    )
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "who eats bread ?"}) + "\n")
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    found = mine(folder, tmp_path / "mined.jsonl", mode="lexical").details
    assert found.texts == 3
    assert [row["negatives"] for row in read(tmp_path / "mined.jsonl")] == [["the bread is old ."]]


def test_near_duplicates_are_all_pairs_above_the_cosine(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("bertsmith.retrieval.mining._BLOCK", 3)
    texts = [text for _, text in PAIRS] + ["", PAIRS[0][1], "the man eats bread !"]
    (tmp_path / "texts.txt").write_text("".join(text + "\n" for text in texts))
    count = near_duplicates(tmp_path / "texts.txt", tiny_model, tmp_path / "alike.jsonl", 0.9, precision="float32")
    vectors = load_pipeline("embed", tiny_model, precision="float32")(texts)
    cosines = vectors @ vectors.T
    there = [
        (i + 1, j + 1)
        for i in range(len(texts))
        for j in range(i + 1, len(texts))
        if texts[i] and texts[j] and cosines[i, j] >= 0.9
    ]
    rows = read(tmp_path / "alike.jsonl")
    assert [tuple(row["lines"]) for row in rows] == there
    assert count == len(there) > 0
    for row in rows:
        one, other = row["lines"]
        assert (row["text"], row["pair"]) == (texts[one - 1], texts[other - 1])
        assert row["score"] == pytest.approx(cosines[one - 1, other - 1], abs=1e-5)
    assert near_duplicates(tmp_path / "texts.txt", tiny_model, tmp_path / "same.jsonl", 1.0, precision="float32") >= 1


def test_the_command(pairs, tiny_model, tmp_path, capsys):
    first, second, *_, last = typed(
        capsys, "mine", pairs, "--model", tiny_model, "--out", tmp_path / "mined.jsonl", "--margin", "0"
    ).splitlines()
    assert first == f"pairs.tsv: TSV with tabs between its columns, utf-8, with a header; {len(PAIRS)} rows for embed"
    assert second == "columns: query or text from query, text from positive"
    assert f"{len(PAIRS)} pairs" in last
    lines = tmp_path / "lines.txt"
    lines.write_text("the man eats bread .\nthe man eats bread .\n")
    asked = ["mine", str(lines), "--out", str(tmp_path / "alike.jsonl"), "--near-duplicates", "0.99"]
    opening, found = typed(capsys, *asked, "--model", tiny_model).splitlines()
    assert opening == f"{lines}: 1 .txt; 0.0 MB; utf-8"
    assert "1 pairs of lines" in found
    for more, said in (
        (["--model", str(tiny_model), "--margin", "0.1"], "--margin has no meaning"),
        ([], "name the --model"),
    ):
        assert said in typed(capsys, *asked, *more, code=2)


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        ("", InputError, "holds no line"),
        ("query\tpositive\n", InputError, "no example"),
        ("text\tlabel\na\tb\nc\td\n", InputError, "no query with a text"),
        ("query\tpositive\na\tb\n", ConfigError, "name the --model"),
    ],
)
def test_files_without_pairs(content, error, said, tmp_path):
    (tmp_path / "pairs.tsv").write_text(content)
    with pytest.raises(error, match=said):
        mine(tmp_path / "pairs.tsv", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_what_cannot_be_asked(pairs, tiny_model, tmp_path):
    with pytest.raises(BertsmithError):
        mine(pairs, pairs, mode="lexical")
    assert pairs.read_text().startswith("query")
    for least in (0.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="cosine"):
            near_duplicates(pairs, tiny_model, tmp_path / "out.jsonl", least)
    for name, said in (("a.tsv", "a.tsv: is a table"), ("a.html", "a.html: is a document")):
        (tmp_path / name).write_text("one\ntwo\n")
        with pytest.raises(InputError, match=said):
            near_duplicates(tmp_path / name, tiny_model, tmp_path / "out.jsonl", 0.9)
    (tmp_path / "one.txt").write_text("one text\n\n")
    with pytest.raises(InputError, match="holds 1 texts"):
        near_duplicates(tmp_path / "one.txt", tiny_model, tmp_path / "out.jsonl", 0.9)


def test_equal_scores_give_no_negative():
    from bertsmith.retrieval.mining import _negatives

    assert _negatives(np.ones(5, dtype=np.float32), [2], None, MiningSettings(mode="lexical")) == []
