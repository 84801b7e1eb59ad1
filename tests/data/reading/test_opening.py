"""The first lines of a command that reads texts: what was understood, and how long the look may take."""

import pytest

from bertsmith.data.reading import opening
from bertsmith.data.reading.opening import opening_lines
from bertsmith.data.reading.sources import Source, find_sources

TEXT = "Ein schöner Satz. Noch einer."
CSV = "id;body\n1;Ein schöner Satz.\n2;Noch einer.\n"
FORM = "CSV with ';' between its columns, utf-8, with a header; columns: text from body; not read: id"
RECORDS = '{"body": "A sentence.", "n": {"m": "Another."}}\n'
CASES = {
    "kinds and encodings are counted": (
        {"a.txt": TEXT, "b.txt": TEXT.encode("latin-1"), "c.md": "# Title"},
        {"documents": "file"},
        ["t: 2 .txt, 1 .md; 0.0 MB; utf-8 2, iso-8859-1 1; documents: a file is one"],
    ),
    "an encoding that was named is taken": (
        {"a.txt": TEXT, "b": TEXT},
        {"documents": "line", "encoding": "latin-1"},
        ["t: 1 .txt, 1 without an ending; 0.0 MB; latin-1; documents: a line is one"],
    ),
    "other documents say theirs themselves": (
        {"a.html": "<p>x</p>"},
        {"documents": "blank-line"},
        ["t: 1 .html; 0.0 MB; documents: blank lines between them"],
    ),
    "documents make no difference to a vocabulary": ({"a.txt": TEXT}, {}, ["t: 1 .txt; 0.0 MB; utf-8"]),
    "the first table of each ending": (
        {"a.csv": CSV, "b.csv": CSV, "c.jsonl": RECORDS},
        {"documents": "blank-line", "field": "body"},
        [
            "t: 2 .csv, 1 .jsonl; 0.0 MB; documents: a row of a table is one",
            f"a.csv, the first of 2: {FORM}",
            "c.jsonl: JSON, utf-8; columns: text from body; not read: n",
        ],
    ),
    "tables beside text, and a field of a field": (
        {"a.txt": TEXT, "b.jsonl": RECORDS},
        {"documents": "file", "field": "n.m"},
        [
            "t: 1 .txt, 1 .jsonl; 0.0 MB; utf-8; documents: a file is one, a row of a table is one",
            "b.jsonl: JSON, utf-8; columns: text from n.m; not read: body",
        ],
    ),
    "what is wrong is left to what reads it": (
        {"a.csv": "", "b.json": "[", "c.tsv": "id\tbody\n1\tx\n", "d.txt": "没有说明编码的文字。".encode("gbk")},
        {"documents": "file"},
        [
            "t: 1 .csv, 1 .json, 1 .tsv, 1 .txt; 0.0 MB; encoding found when read;"
            " documents: a file is one, a row of a table is one"
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_understood_of_texts(write, name):
    files, how, lines = CASES[name]
    sources = find_sources([write(file, content) for file, content in files.items()])
    assert opening_lines(["t"], sources, **how) == lines


def test_the_look_is_short_and_fetches_nothing(write, monkeypatch):
    monkeypatch.setattr(opening, "LOOKED_AT", 20)
    near, far = find_sources([write("a.txt", "x" * 10), write("b.txt", "x" * 11)])
    remote = [Source("memory://nowhere/c.txt", 5_000_000), Source("memory://nowhere/d.csv", 7_300_000)]
    monkeypatch.setattr("bertsmith.data.reading.sources.file_system", lambda url: pytest.fail(url))
    assert opening_lines(["t"], [near, far, *remote]) == [
        "t: 3 .txt, 1 .csv; 12.3 MB; encoding found when read 2, utf-8 1"
    ]
    assert opening_lines(["t"], [near], size=2e9) == ["t: 1 .txt; 2,000.0 MB; utf-8"]
