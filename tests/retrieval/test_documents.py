"""An index of a folder of everything: pages, headings and lines of its hits, updates, and what it leaves out."""

import hashlib
import json

import pytest

from bertsmith.cli import main
from bertsmith.data.reading import documents
from bertsmith.retrieval import build_index, load_index
from bertsmith.retrieval.passages import read_document
from bertsmith.retrieval.stored import StoredIndex
from made_documents import epub, mail, pdf, word

GUIDE = """---
lang: en
---
# Bread

The **man** eats [bread](https://x.org).

```sh
bake --hot
```
The bread is old."""


@pytest.fixture
def mixed(tmp_path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    files = {
        "guide.md": GUIDE.encode(),
        "page.html": b"<title>Shop</title><h2>Prices</h2><p>The woman reads a page.</p>",
        "paper.pdf": pdf("The tree is green.", "The leaf is old.", bookmarks=[(1, 0, "Leaves")]),
        "report.docx": word((1, "Results"), "The man reads a report."),
        "book.epub": epub("<h1>Chapter</h1><p>The woman eats a book.</p>"),
        "letter.eml": mail("The bread was good.", Subject="Thanks", From="ada@x.org"),
        "plain.txt": b"A tree has a leaf.",
        "scan.pdf": pdf(""),
        "prices.xlsx": b"x",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


LEFT_OUT = r"left out 2 file\(s\): 1 \.xlsx \(tables.*; 1 \.pdf \(no text: scanned.*: scan\.pdf\)"


def test_hits_know_their_page_heading_and_line(mixed, tiny_model, tmp_path, settings):
    with pytest.warns(UserWarning, match=LEFT_OUT):
        build_index(mixed, tiny_model, tmp_path / "index", settings)
    index = load_index(tmp_path / "index", precision="float32")
    hits = {hit.text: hit for hit in index.search("bread", k=50, mode="dense")}
    assert {text: (hit.place, hit.heading) for text, hit in hits.items()} == {
        "The man eats bread.\n\nThe bread is old.": ("guide.md:6", "Bread"),
        "bake --hot": ("guide.md:9", "Bread"),
        "The woman reads a page.": ("page.html", "Shop > Prices"),
        "The tree is green.": ("paper.pdf, page 1", ""),
        "The leaf is old.": ("paper.pdf, page 2", "Leaves"),
        "The man reads a report.": ("report.docx", "Results"),
        "The woman eats a book.": ("book.epub", "Chapter"),
        "The bread was good.": ("letter.eml", "Thanks"),
        "A tree has a leaf.": ("plain.txt:1", ""),
    }
    for hit in hits.values():
        assert read_document(mixed, hit.file).text[hit.start : hit.end] == hit.text
    assert [hit.file for hit in index.search("bread", where={"from": "ada*"})] == ["letter.eml"]


def test_an_update_reads_changed_documents_alone(mixed, tiny_model, tmp_path, settings, monkeypatch):
    with pytest.warns(UserWarning, match=LEFT_OUT):
        first = build_index(mixed, tiny_model, tmp_path / "index", settings)
    assert first.added == first.documents
    (mixed / "page.html").write_text("<p>The man reads a page.</p>")
    read = []
    real = build_index.__globals__["read_document"]
    monkeypatch.setitem(build_index.__globals__, "read_document", lambda *given: read.append(given[1]) or real(*given))
    with pytest.warns(UserWarning, match=r"left out 1 file\(s\): 1 \.xlsx"):
        found = build_index(mixed, tiny_model, tmp_path / "index", settings)
    assert (read, found.changed, found.embedded) == (["page.html"], 1, 1)
    # the scanned PDF is known, so that it is not read again, but it is no file with text
    known = StoredIndex.open(tmp_path / "index").current.documents
    assert ("scan.pdf" in {one.name for one in known}, found.documents) == (True, len(known) - 1)
    assert build_index(mixed, tiny_model, tmp_path / "index", settings).documents == found.documents


def test_a_document_that_cannot_be_read_today_is_read_by_a_later_update(mixed, tiny_model, tmp_path, settings):
    def missing(path, ending, encoding):
        asked.append(path)
        return real(path, ending, encoding) if ending != ".html" else json.dumps({"fault": fault}).encode()

    def updated():
        documents._kept.cache_clear()
        asked.clear()
        return build_index(mixed, tiny_model, tmp_path / "index", settings)

    real, asked, fault = documents._ask, [], "pip install 'bertsmith[documents]' reads it (selectolax is missing)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_ask", missing)
        with pytest.warns(UserWarning, match=r"1 \.html \(pip install .*: page\.html\)"):
            first = updated()
        generation = StoredIndex.open(tmp_path / "index").path
        with pytest.warns(UserWarning, match=r"1 \.html \(pip install .*: page\.html\)"):
            again = updated()
    assert (again.added, again.changed, again.embedded, again.documents) == (0, 0, 0, first.documents)
    assert (asked, StoredIndex.open(tmp_path / "index").path) == ([str(mixed / "page.html")], generation)
    with pytest.warns(UserWarning, match=r"left out 1 file\(s\): 1 \.xlsx"):
        found = updated()
    assert (found.added, found.changed, found.embedded, found.documents) == (1, 0, 1, first.documents + 1)
    assert load_index(tmp_path / "index").search("page", mode="lexical")[0].file == "page.html"


def test_a_new_document_that_cannot_be_read_does_not_end_an_update(mixed, tiny_model, tmp_path, settings):
    for path in mixed.iterdir():
        if path.suffix != ".txt":
            path.unlink()
    build_index(mixed, tiny_model, tmp_path / "index", settings)
    (mixed / "new.pdf").write_bytes(pdf(""))
    with pytest.warns(UserWarning, match=r"left out 1 file\(s\): 1 \.pdf \(no text"):
        assert build_index(mixed, tiny_model, tmp_path / "index", settings).documents == 1


def test_an_index_of_text_alone_is_what_it_was(tmp_path, tiny_model, settings):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("The man eats bread.\n\nThe woman reads.")
    build_index(folder, tiny_model, tmp_path / "index", settings)
    current = json.loads((tmp_path / "index" / "current.json").read_bytes())
    digest = hashlib.blake2b((folder / "a.txt").read_bytes(), digest_size=16).hexdigest()
    assert current["documents"] == [{"name": "a.txt", "digest": digest, "passages": 1, "metadata": {}}]
    assert current["reading"] == 2


def test_markdown_that_an_older_version_indexed_is_read_anew(mixed, tiny_model, tmp_path, settings, monkeypatch):
    for path in mixed.iterdir():
        if path.suffix != ".md":
            path.unlink()
    monkeypatch.setattr("bertsmith.retrieval.passages._READ_AS", b"")
    build_index(mixed, tiny_model, tmp_path / "index", settings)
    monkeypatch.undo()
    assert build_index(mixed, tiny_model, tmp_path / "index", settings).changed == 1


def test_the_commands_show_pages_and_what_is_left_out(mixed, tiny_model, tmp_path, capsys):
    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        assert not ended.value.code
        return capsys.readouterr()

    told = run("index", mixed, "--model", tiny_model, "--out", tmp_path / "index")
    assert "bertsmith: warning: left out 2 file(s): 1 .xlsx" in told.err
    shown = run("search", tmp_path / "index", "old leaf", "--mode", "lexical", "-k", "1").out
    assert shown.startswith("1. paper.pdf, page 2  ")
    assert "   Leaves\n   The leaf is old.\n" in shown
    hit = json.loads(run("search", tmp_path / "index", "old leaf", "--mode", "lexical", "-k", "1", "--json").out)
    assert (hit["page"], hit["line"]) == (2, 0)
