"""`bertsmith index` and `bertsmith search` as typed."""

import json

import pytest

from bertsmith.cli import main


@pytest.fixture
def run(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    return call


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("The man eats [bold] bread.")
    (tmp_path / "notes/b.md").write_text("---\nlang: en\n---\n# Books\nThe woman reads a book.")
    return tmp_path / "notes"


def test_a_folder_is_indexed_updated_and_searched(run, notes, tiny_model, tmp_path):
    words = ("index", notes, "--model", tiny_model, "--out", tmp_path / "x", "--overlap", 3)
    code, out, _ = run(*words)
    assert (code, out.strip().endswith("2 files (2 new, 0 changed, 0 deleted), 2 passages, 2 embedded")) == (0, True)
    (notes / "a.txt").write_text("The man eats [bold] old bread.")
    assert "(0 new, 1 changed, 0 deleted), 2 passages, 1 embedded" in run(*words)[1]

    _, out, _ = run("search", tmp_path / "x", "bread", "-k", 1)
    assert "a.txt:1" in out
    assert "[bold]" in out
    found = [
        json.loads(line)
        for line in run("search", tmp_path / "x", "the", "--json", "--where", "lang=en")[1].splitlines()
    ]
    assert [(hit["file"], hit["line"], hit["heading"]) for hit in found] == [("b.md", 5, "Books")]
    assert run("search", tmp_path / "x", "zebra", "--mode", "lexical")[1] == "nothing found\n"


def test_a_narrow_terminal_shows_the_whole_place(run, notes, tiny_model, tmp_path, monkeypatch):
    (notes / ("deep" * 20)).mkdir()
    (notes / ("deep" * 20) / "a.txt").write_text("\n\nThe man eats bread. " * 9)
    run("index", notes, "--model", tiny_model, "--out", tmp_path / "x")
    monkeypatch.setenv("COLUMNS", "80")
    rows = [row.split("│") for row in run("search", tmp_path / "x", "bread", "-k", 2)[1].splitlines()]
    places = "".join(row[2].strip() for row in rows if len(row) == 5)
    assert f"{'deep' * 20}/a.txt:3" in places


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((" ",), "the query is empty"),
        (("a", "--where", "file"), "write FIELD=PATTERN"),
        (("a", "--where", "x=y"), "no document has a field 'x'"),
        (("a", "--where", "file=a", "--where", "file=b"), "given twice"),
        (("a", "--weight", "0.5", "--mode", "dense"), "weight"),
        (("a", "--model", "none"), "none is gone"),
        (("a", "--rerank", "none"), "none"),
    ],
)
def test_bad_searches_end_with_one_line(run, notes, tiny_model, tmp_path, more, message):
    run("index", notes, "--model", tiny_model, "--out", tmp_path / "x", "--overlap", 3)
    code, _, err = run("search", tmp_path / "x", *more)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_without_the_libraries_the_way_to_install_them_is_told(run, notes, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bm25s", None)
    code, _, err = run("index", notes, "--model", tiny_model, "--out", tmp_path / "x", "--overlap", 3)
    assert code == 2
    assert "pip install 'bertsmith[search]'" in err
