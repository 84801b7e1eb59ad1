"""`bertsmith index` and `bertsmith search` as typed."""

import json
import os

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


def test_hits_are_plain_lines_in_any_terminal(run, notes, tiny_model, tmp_path, monkeypatch):
    (notes / ("deep" * 20)).mkdir()
    badges = "[![ci](https://x.org/a.svg)](https://x.org) " * 30
    (notes / ("deep" * 20) / "a.md").write_text(f"# {badges}Fast **bert**\n\nThe man eats [bold] bread.\n")
    run("index", notes, "--model", tiny_model, "--out", tmp_path / "x", "--overlap", 3)
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("search", tmp_path / "x", "bread", "-k", 2, "--where", "file=deep*")[1].splitlines()
    assert lines[0].startswith(f"1. {'deep' * 20}/a.md:3  ")
    assert lines[1:] == ["   Fast bert", "   The man eats [bold] bread."]


def test_a_filter_that_matches_nothing_says_so(run, notes, tiny_model, tmp_path):
    run("index", notes, "--model", tiny_model, "--out", tmp_path / "x", "--overlap", 3)
    said = run("search", tmp_path / "x", "bread", "--where", "lang=de")[1]
    assert said == "nothing found: no document is as --where says\n"
    _, out, err = run("search", tmp_path / "x", "bread", "--where", "lang=de", "--json")
    assert (out, "no document is as --where says" in err) == ("", True)


def test_what_is_left_out_of_an_index_is_told(run, notes, tiny_model, tmp_path):
    (notes / "photo.md").write_bytes(bytes(range(256)))
    code, _, err = run("index", notes, "--model", tiny_model, "--out", tmp_path / "x", "--overlap", 3)
    assert code == 0
    assert "photo.md" in err
    assert "bertsmith: warning: left out" in err


@pytest.mark.parametrize("command", ["index", "embed"])
def test_a_name_that_is_not_utf8_is_one_line_at_once(run, notes, tiny_model, tmp_path, command):
    place = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    os.mkdir(place)
    file = os.path.join(place, "a.txt")
    with open(file, "w") as text:
        text.write("bread")
    asked = (place, "--out", tmp_path / "x") if command == "index" else (file, "--out", tmp_path / "x.npy")
    code, _, err = run(command, *asked, "--model", tiny_model)
    assert (code, err.count("\n")) == (2, 1)
    assert "is not UTF-8; rename it" in err
    assert "caf\\udce9" in err


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
