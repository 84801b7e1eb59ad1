"""`/search`: the passages that the index itself finds, through a real server."""

import shutil
from pathlib import Path

import httpx
import pytest

from bertsmith.errors import CheckpointError, InputError
from bertsmith.files import read_json
from bertsmith.retrieval import IndexSettings, build_index, load_index
from bertsmith.serve.settings import ServeSettings, named_indexes
from typed_command import typed

pytest.importorskip("bm25s")
TEXTS = {
    "bread.md": "---\nauthor: Ada\n---\n# Food\nthe man eats bread .\n",
    "book.txt": "the woman reads a book !",
    "market.txt": "where is the market ?\n",
}


@pytest.fixture(scope="module")
def index(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    out = tmp_path_factory.mktemp("indexes") / "notes"
    build_index(folder, str(models["base"]), out, IndexSettings(precision="float32"))
    return out


@pytest.fixture(scope="module")
def server(server_class, models, index):
    settings = {"indexes": (("notes", str(index)),), "precision": "float32"}
    running = server_class({"base": models["base"], "ranker": models["rank"]}, **settings)
    yield running
    running.close()


def ask(server, **body):
    return server.post("/search", body)


@pytest.mark.parametrize("mode", ["hybrid", "ranks", "dense", "lexical"])
def test_the_server_finds_what_the_index_finds(server, index, mode):
    query = "who eats bread ?"
    answer = ask(server, query=query, mode=mode, k=3).json()
    expected = load_index(index, precision="float32").search(query, mode=mode, k=3)
    assert [hit["file"] for hit in answer["hits"]] == [hit.file for hit in expected]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    assert answer["index"] == "notes"
    assert (answer["tokens"] > 0) == (mode != "lexical")


def test_a_hit_says_where_it_stands(server):
    (hit,) = ask(server, query="bread", mode="lexical").json()["hits"]
    assert (hit["start"], hit["end"], hit["text"]) == (0, 20, "the man eats bread .")
    assert (hit["file"], hit["line"], hit["heading"], hit["metadata"]) == ("bread.md", 5, "Food", {"author": "Ada"})
    assert hit["page"] == 0


def test_filters_and_a_second_look(server, models):
    hits = ask(server, query="the", where={"file": "*.txt"}).json()["hits"]
    assert {hit["file"] for hit in hits} == {"book.txt", "market.txt"}
    nothing = ask(server, query="the", where={"file": "*.pdf"}).json()
    assert (nothing["hits"], nothing["note"]) == ([], "no document is as `where` says")
    assert "note" not in ask(server, query="xyz", mode="lexical", where={"file": "*.txt"}).json()
    reranked = ask(server, query="the", rerank="ranker").json()["hits"]
    # 排序的模型连标题一起读
    texts = [f"{hit['heading']}\n{hit['text']}" if hit["heading"] else hit["text"] for hit in reranked]
    again = server.post("/rerank", {"model": "ranker", "query": "the", "texts": texts})
    assert [row["index"] for row in again.json()] == list(range(len(texts)))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"query": ""}, 422, "unusable_input"),
        ({"query": " \n"}, 422, "unusable_input"),
        ({"query": "a", "k": 0}, 422, "invalid_request"),
        ({"query": "a", "k": 101}, 422, "invalid_request"),
        ({"query": "a", "mode": "both"}, 422, "invalid_request"),
        ({"query": "a", "mode": "dense", "weight": 0.5}, 422, "unusable_input"),
        ({"query": "a", "where": {"colour": "red"}}, 422, "unusable_input"),
        ({"query": "a", "where": {"file": "*?" * 128 + "!"}}, 422, "invalid_request"),
        ({"query": "a", "index": "other"}, 404, "index_not_found"),
        ({"query": "a", "rerank": "base"}, 422, "wrong_model"),
        ({"query": "a", "rerank": "gone"}, 404, "model_not_found"),
        ({"query": "a", "model": "base"}, 422, "invalid_request"),
        ({"query": ["a"]}, 422, "invalid_request"),
        ({"query": "a" * 600_000}, 413, "too_many_characters"),
    ],
)
def test_a_search_that_cannot_be_done(server, body, status, code):
    answer = ask(server, **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_info_names_the_index(server):
    (told,) = httpx.get(f"{server.url}/info").json()["indexes"]
    assert (told["name"], told["documents"], told["passages"], told["model"]) == ("notes", 3, 3, "base")


def test_a_server_without_an_index_says_so(start, models):
    answer = ask(start({"base": models["base"]}), query="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "no_index")


def test_an_index_of_another_model_is_refused(start, models, index):
    with pytest.raises(CheckpointError, match="no served model made this index; add --model"):
        start({"answer": models["answer"]}, indexes=(("notes", str(index)),))


def test_names_of_indexes(index, tmp_path):
    assert named_indexes([str(index), f"other={index}"]) == (("notes", str(index)), ("other", str(index)))
    with pytest.raises(InputError, match="two are called 'notes'"):
        named_indexes([str(index), str(index)])
    with pytest.raises(InputError, match="cannot be a name"):
        named_indexes([f"a b={index}"])
    settings = ServeSettings((("base", "b"),), (("notes", "n"),))
    assert ServeSettings.from_json(settings.to_json()) == settings


def test_the_command_needs_an_index_that_is_one(tmp_path, capsys):
    assert "bertsmith index FOLDER --model MODEL --out" in typed(capsys, "serve", "--index", tmp_path, code=2)


def test_an_update_is_found_without_a_restart(start, models, index, tmp_path):
    shutil.copytree(index, tmp_path / "notes")
    folder = Path(read_json(index / "search-index.json", dict, CheckpointError, "")["folder"])
    live = start({"base": models["base"]}, indexes=(("notes", str(tmp_path / "notes")),), precision="float32")
    assert ask(live, query="zebra", mode="lexical").json()["hits"] == []
    (folder / "zebra.txt").write_text("a zebra")
    try:
        build_index(folder, str(models["base"]), tmp_path / "notes", IndexSettings(precision="float32"))
    finally:
        (folder / "zebra.txt").unlink()
    (hit,) = ask(live, query="zebra", mode="lexical").json()["hits"]
    assert hit["file"] == "zebra.txt"
    assert ask(live, query="who eats bread ?").json()["hits"]
