"""Spreadsheets are read wherever a table is: as the same rows in a CSV."""

import sys
import zipfile

import pytest

import bertsmith
from bertsmith.data.reading import documents
from bertsmith.data.reading.records import texts_in
from bertsmith.data.reading.sources import Span
from bertsmith.data.reading.tables import kind_of, open_table
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.inputs import read_inputs
from bertsmith.finetune.datasets.related import RELATED
from bertsmith.finetune.datasets.texts import LABELLED, MULTILABELLED, SCORED
from made_documents import zipped
from spreadsheets import write_spreadsheet

PAIRS = [(f'wrote "number {n}", with\na comma', n % 2) for n in range(12)]
ROWS = [["Comment", "Rating"], *map(list, PAIRS)]
ENDINGS = pytest.mark.parametrize("name", ["a.xlsx", "a.ods"])


@ENDINGS
def test_a_cell_is_what_a_csv_would_hold(tmp_path, name):
    rows = [["text", "n"], [], ["  spaced  ", 1], ["half", 0.5], ["yes", True], [None, 3]]
    path = write_spreadsheet(tmp_path / name, {"S": rows})
    found = list(open_table(path, kind_of(path)).rows)
    assert [row.cells[1] for row in found] == ["n", "1", "0.5", "true", "3"]
    assert [row.place for row in found[:2]] == [f"{path}: row 1", f"{path}: row 3"]


@ENDINGS
@pytest.mark.filterwarnings("ignore:.*found by names and content", "ignore:.*reads the sheet")
def test_every_reader_of_tables_reads_sheets(tmp_path, name):
    pairs = [["query", "positive"], ["where?", "here"], ["when?", "now"]]
    flags = [["text", "a", "b"], ["x", True, False], ["y", 0, 1]]
    sheets = {"Reviews": ROWS, "Pairs": pairs, "Flags": flags}
    path = write_spreadsheet(tmp_path / name, sheets)
    assert {(one.text, one.label) for one in LABELLED.read(path)} == {(text, str(n)) for text, n in PAIRS}
    assert [one.score for one in SCORED.read(path, ReadingOptions(sheet="Reviews"))] == [n for _, n in PAIRS]
    assert [one.query for one in RELATED.read(path, ReadingOptions(sheet="Pairs"))] == ["where?", "when?"]
    how = ReadingOptions(sheet="Flags", label_column=("a", "b"))
    assert [one.labels for one in MULTILABELLED.read(path, how)] == [("a",), ("b",)]
    how = {"task": "classify", "counts": range(1, 2)}
    inputs = list(read_inputs(LABELLED.inputs, path, ReadingOptions(sheet="Reviews"), **how))
    assert [(one.texts, one.others) for one in inputs] == [((text,), {"Rating": str(n)}) for text, n in PAIRS]
    lines = [list(one) for one in texts_in(Span(str(path)), "Comment")]
    assert lines == [text.splitlines() for text, _ in PAIRS]


@ENDINGS
def test_the_sheet_that_is_read_is_said(tmp_path, name):
    path = write_spreadsheet(tmp_path / name, {"One": [["text", "label"], ["a", "x"], ["b", "y"]], "Two": [["z"]]})
    with pytest.warns(UserWarning, match="reads the sheet 'One', the first of 2; --sheet names another"):
        LABELLED.read(path)
    with pytest.raises(InputError, match="has no sheet 'Three'; it has One, Two"):
        LABELLED.read(path, ReadingOptions(sheet="Three"))
    write_spreadsheet(path, {"One": [], "Two": [["z"]]})
    with pytest.raises(InputError, match="the sheet 'One' is empty; name another of One, Two with --sheet"):
        LABELLED.read(path)
    for source in (tmp_path / "a.csv", [{"text": "a"}]):
        with pytest.raises(ConfigError, match="--sheet is for spreadsheets, and .* is none"):
            LABELLED.read(source, ReadingOptions(sheet="One"))


def test_a_hidden_sheet_is_not_the_first(tmp_path):
    rows = [["text", "label"], ["a", "x"], ["b", "y"]]
    path = write_spreadsheet(tmp_path / "a.xlsx", {"Lists": [["z"]], "Data": rows}, hidden=["Lists"])
    assert len(LABELLED.read(path)) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlsx", b"text,label\na,b\n", "not a readable workbook (.*); save it again, or as CSV"),
        ("a.xlsx", b"PK\x03\x04 cut off", "not a readable workbook"),
        ("a.xlsx", b"\xd0\xcf\x11\xe0" + bytes(600), "a protected or older one.*save it again, or as CSV"),
        ("a.xls", b"", "not a readable workbook"),
    ],
)
def test_a_broken_or_protected_workbook_is_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        LABELLED.read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_passwords_and_bombs_are_one_line(tmp_path, monkeypatch):
    path = write_spreadsheet(tmp_path / "a.ods", {"S": ROWS}, protected=True)
    with pytest.raises(InputError, match="is protected by a password; save it without one, or as CSV"):
        LABELLED.read(path)
    with zipfile.ZipFile(tmp_path / "b.xlsx", "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(2):
            packed.writestr(f"xl/{number}.xml", bytes(3 << 20))
    limits = "import bertsmith.data.reading.document_kinds as k; k._MOST_UNPACKED = 5 << 20; _serve()"
    monkeypatch.setattr(documents, "_COMMAND", documents._COMMAND.replace("_serve()", limits))
    monkeypatch.setattr(documents, "_idle", {})
    with pytest.raises(InputError, match=r"b\.xlsx: unpacks to more than 5 MB; split it"):
        LABELLED.read(tmp_path / "b.xlsx")
    documents._end_readers()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_two_cells_in_opposite_corners_end_nothing(tmp_path):
    """A file of a kilobyte, whose rectangle of cells has no room in any memory."""
    path = write_spreadsheet(tmp_path / "a.xlsx", {"S": [["text"]]})
    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name).decode() for name in packed.namelist()}
    far = '<row r="1048576"><c r="XFD1048576" t="n"><v>1</v></c></row></sheetData>'
    parts["xl/worksheets/1.xml"] = parts["xl/worksheets/1.xml"].replace("</sheetData>", far)
    path.write_bytes(zipped(parts))
    assert path.stat().st_size < 2000
    with pytest.raises(InputError, match=r"a\.xlsx: .*memory; clear cells far from the table, or save it as CSV"):
        LABELLED.read(path)
    assert len(LABELLED.read(write_spreadsheet(tmp_path / "b.xlsx", {"S": ROWS}))) == len(PAIRS)


def test_an_article_a_row_becomes_vocabulary_and_corpus(tmp_path):
    body = [["id", "body"], *[[n, f"Article {n} says yes. It has two sentences."] for n in range(6)]]
    path = write_spreadsheet(tmp_path / "a.xlsx", {"About": [["x"]], "Articles": body})
    how = {"text_field": "body", "sheet": "Articles", "workers": 1}
    bertsmith.learn_vocabulary(path, tmp_path / "v", vocab_size=90, **how)
    for _ in range(2):
        corpus = bertsmith.build_corpus(path, tmp_path / "v", tmp_path / "c", **how)
    assert corpus.metrics["documents"] + corpus.metrics["heldout_documents"] == 6
    (tmp_path / "b.txt").write_text("x")
    with pytest.raises(InputError, match="--sheet is for spreadsheets"):
        bertsmith.learn_vocabulary(tmp_path / "b.txt", tmp_path / "w", sheet="Articles", workers=1)
