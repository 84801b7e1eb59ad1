"""Files as people have them: tables, folders of everything, names that are not UTF-8."""

import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertsmith
from bertsmith.data.reading.records import read_parquet, read_table
from bertsmith.data.reading.sources import Span, corpus_endings, find_sources, left_out
from bertsmith.data.reading.text import read_documents, read_text
from bertsmith.errors import InputError
from bertsmith.journeys.source import own_text
from bertsmith.tokenizer import WordPieceTokenizer

ROWS = [(n, f"Title {n}", f'Article {n} says "yes". It has two sentences,\n\nand a comma.') for n in range(6)]


def table(separator):
    quoted = ['"' + body.replace('"', '""') + '"' for _, _, body in ROWS]
    rows = [separator.join([str(n), title, body]) for (n, title, _), body in zip(ROWS, quoted, strict=True)]
    return "\n".join([separator.join(["id", "title", "body"]), *rows]) + "\n"


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t"), ("a.csv.gz", ",")])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_row_of_a_table_is_a_text(write, name, separator, encoding):
    path = write(name, table(separator).encode(encoding))
    assert list(read_table(Span(str(path)), "body")) == [body for _, _, body in ROWS]


def test_an_article_a_row_becomes_a_corpus_and_its_commas_and_ids_do_not(write, tmp_path):
    path = write("articles.csv", table(","))
    with pytest.raises(InputError, match=r"no column 'text' \(it has id, title, body\).*such as --text-field 'body'"):
        bertsmith.learn_vocabulary(path, tmp_path / "v", workers=1)
    bertsmith.learn_vocabulary(path, tmp_path / "v", text_field="body", vocab_size=200, workers=1)
    tokenizer = WordPieceTokenizer.load(tmp_path / "v")
    assert not {"title", "id"} & set(tokenizer.vocab)
    with pytest.raises(InputError, match="no column 'text'"):
        bertsmith.build_corpus(path, tmp_path / "v", tmp_path / "c", workers=1)
    corpus = bertsmith.build_corpus(path, tmp_path / "v", tmp_path / "c", text_field="body", workers=1)
    assert corpus.metrics["documents"] + corpus.metrics["heldout_documents"] == len(ROWS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,text\n1,a\n2,b, and more\n", "line 3 has 3 columns, the first has 2; check its separators and quotes"),
        ('id,text\n1,"never closed\n', "line 2 is not valid CSV .*quote that is not closed"),
        ("", "holds no line"),
        ("id\n1\n", r"has no column 'text' \(it has id\)"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_line(write, content, message):
    with pytest.raises(InputError, match=message):
        list(read_table(Span(str(write("a.csv", content))), "text"))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_no_table_is_taken_for_plain_text(write, tmp_path, name):
    path = write(name, "id,text\n1,a\n")
    for read in (
        lambda: list(read_documents([path])),
        lambda: list(read_text([path])),
        lambda: own_text([path], documents="auto", encoding="auto", leave_out=tmp_path / "out"),
    ):
        with pytest.raises(InputError, match="is a table, and plain text is needed"):
            read()


def test_what_a_folder_holds_besides_is_counted_by_kind_with_the_reason(write, tmp_path):
    for name in (
        "t/a.txt",
        "t/b/c.ODT",
        "t/d.odt",
        "t/e.rtf",
        "t/f.csv",
        "t/g.bin",
        "t/h",
        "t/.hidden.pdf",
        "t/i.jsonl",
    ):
        write(name, "x")
    assert left_out([tmp_path / "t"], corpus_endings()) == (
        "left out 6 file(s): 1 .csv (tables: name them, with the column as --text-field);"
        " 2 .odt, 1 .rtf (documents: save them as .docx, .pdf or .txt); 1 .bin, 1 without an ending (not known as text)"
    )
    assert left_out([tmp_path / "t" / "a.txt"], corpus_endings()) == ""
    # a pattern takes the files that it matches, and searches the folders
    assert left_out([tmp_path / "t" / "*"], corpus_endings()) == (
        "left out 1 file(s): 1 .odt (documents: save them as .docx, .pdf or .txt)"
    )
    named = [tmp_path / "t", tmp_path / "t" / "f.csv"]
    assert left_out(named, corpus_endings()).startswith("left out 5 file(s): 2 .odt")


def test_many_kinds_that_are_left_out_are_counted_though_not_all_are_named(write, tmp_path):
    for name in ("a.txt", *(f"b.k{number}" for number in range(8))):
        write(f"t/{name}", "x")
    assert left_out([tmp_path / "t"], corpus_endings()) == (
        "left out 8 file(s): 1 .k0, 1 .k1, 1 .k2, 1 .k3, 1 .k4, 1 .k5 and 2 more (not known as text)"
    )


NESTED = [{"review": {"body": body, "stars": number % 2}} for number, _, body in ROWS]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_what_stands_in_objects_has_a_dotted_name(write, tmp_path, name):
    path = write(name, "\n".join(map(json.dumps, NESTED)) if name == "a.jsonl" else json.dumps(NESTED))
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([*NESTED, {"review": None}]), path, row_group_size=2)
    how = {"text_field": "review.body", "workers": 1}
    bertsmith.learn_vocabulary(path, tmp_path / "v", vocab_size=200, **how)
    corpus = bertsmith.build_corpus(path, tmp_path / "v", tmp_path / "c", **how)
    assert corpus.metrics["documents"] + corpus.metrics["heldout_documents"] == len(ROWS)
    columns = {"text_column": "review.body", "label_column": "review.stars"}
    assert bertsmith.look(path, task="classify", **columns).labels == {"0": 3, "1": 3}


def test_a_field_that_no_struct_has_is_named(tmp_path):
    pq.write_table(pa.Table.from_pylist(NESTED), tmp_path / "a.parquet")
    for field, message in {
        "review.title": r"has no column 'review.title' \(it has review\)",
        "review.body.text": "has no column 'review.body.text'",
        "review.stars": "column 'review.stars' holds int64, not text",
        "review": "column 'review' holds struct",
    }.items():
        with pytest.raises(InputError, match=message):
            list(read_parquet(Span(str(tmp_path / "a.parquet")), field))


@pytest.mark.parametrize("pattern", ["", "*"])
def test_what_a_folder_behind_a_url_holds_besides_is_counted(pattern):
    import fsspec

    for name in ("s/a.txt", "s/b.csv", "s/t/c.log"):
        with fsspec.open(f"memory://besides{len(pattern)}/{name}", "w") as file:
            file.write("x")
    paths = [f"memory://besides{len(pattern)}/{pattern}"]
    assert [source.name.rpartition("/")[2] for source in find_sources(paths)] == ["a.txt"]
    assert left_out(paths, corpus_endings()) == (
        "left out 2 file(s): 1 .csv (tables: name them, with the column as --text-field); 1 .log (not known as text)"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know no such names")
def test_file_names_that_are_not_utf8(tmp_path):
    folder = tmp_path / os.fsdecode(b"texte-\xe9")
    folder.mkdir()
    for number in range(4):
        with open(os.fsencode(folder) + b"/caf\xe9%d.txt" % number, "w") as file:
            file.write(f"The man eats bread number {number}.")
    for _ in range(2):
        bertsmith.learn_vocabulary(folder, tmp_path / "v", vocab_size=80, workers=1)
        corpus = bertsmith.build_corpus(folder, tmp_path / "v", tmp_path / "c", workers=1)
    assert corpus.metrics["documents"] + corpus.metrics["heldout_documents"] == 4
    sources = json.loads((tmp_path / "c" / "manifest.json").read_text(encoding="utf-8"))["settings"]["sources"]
    assert os.fsencode(sources[0][0]).endswith(b"texte-\xe9/caf\xe90.txt")
