"""Documents of every kind: what is read of each, and that no bad one is more than a line."""

import io
import os
import re
import subprocess
import sys
import time
import warnings
import zipfile
from importlib import import_module

import pytest

import bertsmith
from bertsmith.data.reading import documents as module
from bertsmith.data.reading.document_kinds import Block
from bertsmith.data.reading.documents import (
    lines_of,
    read_blocks,
    readable_files,
    readable_sources,
    text_bytes,
    without_unreadable,
)
from bertsmith.data.reading.sources import find_text_files, left_out, text_endings
from bertsmith.errors import InputError
from bertsmith.journeys.plan import plan
from bertsmith.journeys.source import own_text
from bertsmith_school.study.run import StudyOptions, run_study
from made_documents import epub, mail, pdf, word, zipped


@pytest.fixture
def blocks(write):
    """Reads a document of a name and a content: (text, level, place), with `code` behind what is aside."""

    def read(name, content):
        found, _ = read_blocks(write(name, content))
        return [tuple(block[:3]) + ("aside",) * block.aside for block in found]

    return read


MARKDOWN = """---
lang: en
---
# The *first* [title](https://x.org)

Some **bold** and `code`,
and a [link](https://x.org/very/long) ![badge](b.svg).<br/>Next &amp; last \\* star.

- one
- two

| a | b |
|---|---|
| **1** | 2 |

```python
print("**kept**")
```

Underlined
----------
> quoted

<div align="center">in <b>HTML</b></div>
"""


def test_markdown_becomes_clean_text_with_its_lines(blocks):
    assert blocks("a.md", MARKDOWN) == [
        ("The first title", 1, 4),
        ("Some bold and code,\nand a link .\nNext & last * star.", 0, 6),
        ("one", 0, 9),
        ("two", 0, 10),
        ("a | b", 0, 12),
        ("1 | 2", 0, 14),
        ('print("**kept**")', 0, 17, "aside"),
        ("Underlined", 2, 20),
        ("quoted", 0, 22),
        ("in HTML", 0, 24),
    ]


@pytest.mark.parametrize(
    ("content", "texts", "fields"),
    [
        ("---\nText under a rule.\n\n---\nMore.\n", ["Text under a rule.", "More."], {}),
        ("---\n- a list\n\n---\nMore.\n", ["a list", "More."], {}),
        ("---\n \n---\nMore.\n", ["More."], {}),
        ("---\ntitle: [a\nlang: en\n---\nMore.\n", ["More."], {"title": "[a", "lang": "en"}),
    ],
)
def test_what_stands_under_a_rule_is_front_matter_only_if_it_has_fields(write, content, texts, fields):
    found, metadata = read_blocks(write("a.md", content))
    assert ([block.text for block in found], metadata) == (texts, fields)


def test_who_learns_from_text_sees_no_code_and_no_marks(write):
    path = write("a.md", "# Title\nA **bold** word.\n\n    code\n\nMore.\n")
    assert list(lines_of(path)) == ["Title", "A bold word.", "", "More.", ""]
    assert text_bytes(path) == len("Title\nA bold word.\n\nMore.\n\n")


PAGE = """<!doctype html><html><head><title>Shop</title><style>p{}</style><script>var x</script></head><body>
<nav><a href=/>Home</a></nav>
<h2>Our <em>bread</em></h2><div>Fresh
 every&nbsp;day<p>Rye<br>Wheat</p>tail</div>
<table><tr><th>Kind</th><th>Price</th></tr><tr><td>Rye</td><td>3 &euro;</td></tr></table>
<pre>a
  b</pre><ul><li>one</li><li>two</li></ul><p hidden>no</p><footer>Imprint</footer></body></html>"""


def test_html_is_read_block_by_block_without_menus_and_scripts(blocks):
    assert blocks("a.html", PAGE) == [
        ("Shop", 1, 0),
        ("Our bread", 2, 0),
        ("Fresh every day", 0, 0),
        ("Rye\nWheat", 0, 0),
        ("tail", 0, 0),
        ("Kind | Price", 0, 0),
        ("Rye | 3 €", 0, 0),
        ("a\n  b", 0, 0, "aside"),
        ("one", 0, 0),
        ("two", 0, 0),
    ]
    only_main = "<title>T</title><div>Around</div><main><h1>Head</h1><p>Body</p></main>"
    assert blocks("b.htm", only_main) == [("Head", 1, 0), ("Body", 0, 0)]
    assert blocks("c.html", "<main></main><p>Body&#1;7&#5;x</p>") == [("Body7", 0, 0), ("x", 0, 0)]


@pytest.mark.parametrize(
    ("head", "codec"),
    [
        ("", "utf-8"),
        ("", "utf-8-sig"),
        ("", "utf-16"),
        ("<meta charset=iso-8859-1>", "cp1252"),
        ('<?xml version="1.0" encoding="gb2312"?>', "gb18030"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">', "cp1251"),
        ("<meta charset=ascii>", "utf-8"),
        ("<meta charset=ISO-8859-15>", "iso-8859-15"),
        ("<meta charset=iso-2022-jp>", "iso-2022-jp"),
        # of these two, one is a whole number of UTF-16 units
        ('<?xml version="1.0" encoding="utf-16"?>', "utf-8"),
        ('<?xml version="1.0" encoding="utf-16" ?>', "utf-8"),
    ],
)
def test_a_page_is_decoded_as_it_says_or_as_it_is(blocks, head, codec):
    word = {
        "gb18030": "面包",
        "cp1251": "хлеб",
        "cp1252": "pâté “x”",
        "iso-8859-15": "5 €",
        "iso-2022-jp": "日本語",
    }.get(codec, "pâté 面包")
    assert blocks("a.html", f"{head}<p>{word}</p>".encode(codec)) == [(word, 0, 0)]


def test_a_word_parted_at_a_line_end_is_joined_and_a_compound_keeps_its_hyphen(blocks):
    lines = "more infor-\nmation on COVID-\n19 by Smith-\nJones, a well-\nknown and long-\nterm study of re-\nuse"
    (found,) = blocks("a.pdf", pdf(lines, "The well-known one, and a Reuse of it. Longterm is no word."))[:1]
    assert found[0] == "more information on COVID-19 by Smith-Jones, a well-known and longterm study of reuse"


def test_a_pdf_knows_its_pages_and_bookmarks_and_loses_running_lines(blocks):
    pages = [f"My report\nPart {n} tells of number {n}.\n{n} of 5" for n in range(1, 6)]
    pages[1] = "My report\nEnd of one.\nSecond part\nMore.\n2 of 5"
    marks = [(0, 0, "All"), (1, 1, "Second part"), (3, 0, "Not in the text")]
    assert blocks("a.pdf", pdf(*pages, bookmarks=marks)) == [
        ("All", 1, 1, "aside"),
        ("My report\nPart 1 tells of number 1.", 0, 1),
        ("End of one.", 0, 2),
        ("Second part", 2, 2, "aside"),
        ("Second part\nMore.", 0, 2),
        ("Part 3 tells of number 3.", 0, 3),
        ("Not in the text", 1, 4, "aside"),
        ("Part 4 tells of number 4.", 0, 4),
        ("Part 5 tells of number 5.", 0, 5),
    ]


def test_pages_of_one_line_and_numbers_that_are_no_page_numbers_are_kept(blocks):
    assert blocks("a.pdf", pdf(*(f"Slide {n}" for n in range(6)))) == [(f"Slide {n}", 0, n + 1) for n in range(6)]
    bills = [f"Invoice {3 * n}\nBread\nSum {5 * n * n}" for n in range(1, 7)]
    assert [text for text, *_ in blocks("b.pdf", pdf(*bills))] == bills


def test_word_keeps_headings_and_tables(blocks):
    made = word((0, "Report"), (1, "One"), "A paragraph.", [["a", "b"], ["c", "d"]], (2, "Two"), "", "End.")
    assert blocks("a.docx", made) == [
        ("Report", 1, 0),
        *[("One", 2, 0), ("A paragraph.", 0, 0), ("a | b", 0, 0), ("c | d", 0, 0)],
        *[("Two", 3, 0), ("End.", 0, 0)],
    ]


CELL = "<w:tc><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:tc>"
CONTROL = "<w:sdt><w:sdtPr><w:text/></w:sdtPr><w:sdtContent>{}</w:sdtContent></w:sdt>"


def test_word_is_read_with_all_changes_accepted_and_what_stands_in_controls(blocks):
    def run(text):
        return f"<w:r><w:t>{text}</w:t></w:r>"

    inside = "<w:p>" + run("Chosen.") + "</w:p><w:tbl><w:tr>" + CELL.format("in a control") + "</w:tr></w:tbl>"
    made = word(
        f"<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr>{run('One')}<w:ins>{run(' two')}</w:ins><w:del><w:r>"
        f"<w:delText> lost</w:delText><w:t> lost</w:t></w:r></w:del>{CONTROL.format(run(' three'))}<w:hyperlink>"
        f"{run(' four')}</w:hyperlink><w:r><w:tab/><w:t>five</w:t><w:br/><w:t>six</w:t><w:pict><w:txbxContent><w:p>"
        f"{run('box')}</w:p></w:txbxContent></w:pict></w:r></w:p>",
        CONTROL.format(inside),
        "End.",
    )
    assert [text for text, *_ in blocks("a.docx", made)] == [
        "One two three four\tfive\nsix",
        "Chosen.",
        "in a control",
        "End.",
    ]


def test_word_keeps_equal_cells_and_tables_in_cells_and_says_merged_ones_once(blocks):
    merged = CELL.format("Both").replace("<w:tc>", '<w:tc><w:tcPr><w:gridSpan w:val="2"/></w:tcPr>')
    nested = f"<w:tbl><w:tr>{CELL.format('in')}{CELL.format('side')}</w:tr></w:tbl><w:p/>"
    rows = [merged + CELL.format("c"), CELL.format("out").replace("</w:tc>", f"{nested}</w:tc>") + CELL.format("d")]
    made = word(
        [["Q1", "5", "5", "10"]],
        "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in [*rows, CONTROL.format(CELL.format("e"))]) + "</w:tbl>",
    )
    assert [text for text, *_ in blocks("a.docx", made)] == [
        "Q1 | 5 | 5 | 10",
        *("Both | c", "out | d", "in | side", "e"),
    ]


def test_an_epub_is_read_in_the_order_of_its_spine(blocks):
    first, second = "<html><title>x</title><h1>One</h1><p>First.</p></html>", "<h1>Two</h1><p>Second.</p>"
    assert [text for text, *_ in blocks("a.epub", epub(first, second))] == ["One", "First.", "Two", "Second."]


def test_an_email_is_read_under_its_subject(write):
    head = {"Subject": "Grüße", "From": "Ada <ada@x.org>", "To": "b@x.org"}
    found, metadata = read_blocks(write("a.eml", mail("Hällo,\n\nbye\n", "<p>no</p>", **head)))
    assert [block.text for block in found] == ["Grüße", "Hällo,", "bye"]
    assert metadata == {"from": "Ada <ada@x.org>", "to": "b@x.org", "subject": "Grüße"}
    page, _ = read_blocks(write("b.eml", mail(None, "<title>t</title><h1>Big</h1><p>Text</p>", **head)))
    assert page == [Block("Grüße", 1), Block("Big", 2), Block("Text")]


HTML_MAIL = "Content-Type: text/html; charset={}\nContent-Transfer-Encoding: 8bit\n\n{}"
TWO_PARTS = """Content-Type: multipart/alternative; boundary=x

--x
Content-Type: text/plain

{}
--x
Content-Type: text/html

<p>Body</p>
--x--
"""


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (HTML_MAIL.format("utf-8", "<meta charset=iso-8859-1><p>café</p>").encode(), ["café"]),
        ("Content-Type: text/html\n\n<meta charset=iso-8859-15><p>5 €</p>".encode("iso-8859-15"), ["5 €"]),
        ("\ncafé\n\n面包".encode(), ["café", "面包"]),
        (b"\ncaf\xe9 \x93x\x94", ["café “x”"]),
        (b"Content-Type: text/plain; charset=iso-8859-1\n\ncaf\xe9 \x93x\x94", ["café “x”"]),
        ("Content-Type: text/plain; charset=iso-2022-jp\n\n日本語".encode("iso-2022-jp"), ["日本語"]),
        ("Content-Type: text/plain; charset=nonsense\n\ncafé".encode(), ["café"]),
        (TWO_PARTS.format("").encode(), ["Body"]),
        (TWO_PARTS.format("Plain").encode(), ["Plain"]),
    ],
)
def test_an_email_is_decoded_as_it_says_or_as_it_is(blocks, content, texts):
    assert [text for text, *_ in blocks("a.eml", b"Subject: S\n" + content)] == ["S", *texts]


def test_packed_documents_are_read(blocks):
    assert blocks("a.html.gz", b"<p>Bread</p>") == [("Bread", 0, 0)]


BAD = {
    "scan.pdf": (pdf(""), "no text: scanned"),
    "locked.pdf": (pdf("secret", password="user"), "protected by a password"),
    "cut.pdf": (pdf("text")[:200], "damaged; export it again"),
    "cut.docx": (word("text")[:200], "damaged; export it again"),
    "old.docx": (b"\xd0\xcf\x11\xe0" + bytes(600), "protected by a password, or of an old format"),
    "other.docx": (zipped({"a.txt": "x"}), "damaged"),
    "bomb.docx": (zipped({"word/document.xml": "\0" * 5_000_000}), "unpacks to more than"),
    "empty.docx": (word(), "holds no text"),
    "other.epub": (zipped({"a.txt": "x"}), "damaged: no list of chapters"),
    "drm.epub": (epub("<p>x</p>", encryption='<x URI="OEBPS/text/c 0.xhtml"/>'), "protected against copying"),
    "frames.html": (b"<html><frameset><frame src=a.html></frameset></html>", "frames only"),
    "wrong.html": (b"<meta charset=utf-8><p>caf\xe9</p>", "is not utf-8, as it says"),
    "unsaid.eml": (b"Subject: S\n\ncaf\xc3 \x81", "is not UTF-8; save it as UTF-8"),
    "unsaid.html": (b"<p>\xd0\xcf caf\xe9</p>", "does not say its encoding"),
    "binary.md": (bytes(range(256)) * 9, "looks binary"),
    "empty.html": (b"", "holds no text"),
    "large.html.gz": (b"<p>" + b"x" * 3_000_000, "larger than"),
}


@pytest.fixture
def small_limits(monkeypatch):
    """Limits that small files exceed; readers of this test alone, which know them."""
    source = module._COMMAND.replace(
        "import _serve;", "import _serve; from bertsmith.data.reading import document_kinds as k;"
    )
    monkeypatch.setattr(
        module, "_COMMAND", source.replace("_serve()", "k.MOST_BYTES = k._MOST_UNPACKED = 1 << 21; _serve()")
    )
    monkeypatch.setattr(module, "_idle", {})
    yield
    module._end_readers()


def test_bad_documents_are_left_out_each_with_its_reason(write, tmp_path, small_limits):
    for name, (content, _) in BAD.items():
        write(f"t/{name}", content)
    write("t/good.html", "<p>Bread</p>")
    os.symlink(tmp_path / "t", tmp_path / "t" / "circle")
    os.mkfifo(tmp_path / "t" / "pipe.pdf")
    found = find_text_files([tmp_path / "t"], text_endings())
    kept, faults, _ = without_unreadable([*found, tmp_path / "gone.pdf"])
    assert [file.name for file in kept] == ["good.html"]
    said = {name.rpartition("/")[2]: fault for name, fault in faults.items()}
    assert [name for name, fault in said.items() if not has_way_out(fault)] == []
    assert said.pop("pipe.pdf").startswith("is no regular file")
    assert said.pop("gone.pdf").startswith("cannot be read (No such file or directory)")
    assert said.keys() == BAD.keys()
    assert [name for name, (_, fault) in BAD.items() if not said[name].startswith(fault)] == []
    line = left_out([tmp_path / "t"], text_endings(), faults)
    assert line.startswith("left out 19 file(s): 1 .docx (damaged")
    assert "\n" not in line


def without_page(made, number):
    """A PDF whose list of pages names something else than this page."""
    kids = re.search(rb"/Kids \[(.*?)\]", made, re.DOTALL)[1]
    pages = re.findall(rb"\d+ 0 R", kids)
    pages[number] = b"0" * len(pages[number].split()[0]) + b" 0 R"
    return made.replace(kids, b" ".join(pages).ljust(len(kids)), 1)


def without_chapter(made, named):
    """An EPUB of which a chapter is gone, or is not even in the list of its files."""
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != "OEBPS/text/c 1.xhtml"}
    if not named:
        files["OEBPS/book.opf"] = files["OEBPS/book.opf"].replace(b'id="c1"', b'id="other"')
    return zipped(files)


THREE = ("<p>One.</p>", "<p>Two.</p>", "<p>Three.</p>")
IN_PART = {
    "a.pdf": (pdf("One.", "", "Three.", "", ""), "3 page(s) without text, scanned? (a.pdf)"),
    "b.pdf": (without_page(pdf("One.", "Two.", "Three."), 1), "1 damaged page(s) (b.pdf)"),
    "c.epub": (without_chapter(epub(*THREE), named=True), "1 missing chapter(s) (c.epub)"),
    "d.epub": (without_chapter(epub(*THREE), named=False), "1 missing chapter(s) (d.epub)"),
    "e.pdf": (pdf("One.", "Two.", "Three."), ""),
}


@pytest.mark.parametrize("name", IN_PART)
def test_what_is_missing_of_a_document_is_counted_and_the_rest_is_read(write, name):
    content, said = IN_PART[name]
    path = write(name, content)
    _, note = readable_sources([path])
    assert note == (f"left out of files that are read: {said}" if said else "")
    texts = [block.text for block in read_blocks(path)[0]]
    assert (texts[0], texts[-1], "Two." in texts) == ("One.", "Three.", name == "e.pdf")


def test_what_is_missing_is_counted_over_all_documents_behind_what_is_left_out(write, tmp_path):
    for name in "abc":
        write(f"t/{name}.pdf", pdf("One.", "", ""))
    write("t/d.epub", IN_PART["c.epub"][0])
    write("t/scan.pdf", pdf(""))
    line = (
        "left out 1 file(s): 1 .pdf (no text: scanned? run OCR over it, such as ocrmypdf: scan.pdf); left out of files"
        " that are read: 1 missing chapter(s) (d.epub), 6 page(s) without text, scanned? (a.pdf, b.pdf and 1 more)"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(line)}$"):
        assert len(readable_files([tmp_path / "t"])) == 4


def has_way_out(fault):
    """Whether a reason is followed by what to do, or names the command that helps."""
    return "; " in fault or "pip install" in fault or "ocrmypdf" in fault


READS = """
import sys
from pathlib import Path
from bertsmith.data.reading.documents import without_unreadable
print(*without_unreadable([Path(name) for name in sys.argv[1:]])[1].items())
"""


def test_a_document_without_permission_is_left_out(write, run_without_rights):
    path, good = write("a.html", "<p>x</p>"), write("b.html", "<p>x</p>")
    path.chmod(0)
    fault = "cannot be read (Permission denied); check the file and its rights"
    ended = run_without_rights(READS, path, good)
    assert ended.stdout.strip() == str((str(path), fault)), ended.stderr


def test_a_pdf_of_ten_thousand_pages_is_read_in_the_time_that_it_has(write):
    pages = [f"Page {n} tells of bread." for n in range(1, 10_001)]
    found, _ = read_blocks(write("a.pdf", pdf(*pages)))
    assert [(block.text, block.place) for block in found] == [(page, n) for n, page in enumerate(pages, 1)]


def test_nothing_that_can_be_read_is_one_line(write):
    with pytest.raises(InputError, match=r"scan\.pdf: no text: scanned.*; and 1 other document"):
        without_unreadable([write("scan.pdf", pdf("")), write("cut.pdf", b"x")])


def stuck(statement, monkeypatch):
    """Makes new readers do something instead of reading HTML."""
    source = module._COMMAND.removesuffix("_serve()").replace("; ", "\n")
    source += f"import bertsmith.data.reading.document_kinds as k\n{statement}\n_serve()"
    monkeypatch.setattr(module, "_COMMAND", source)
    monkeypatch.setattr(module, "_idle", {})


def test_a_stuck_reader_is_killed_and_the_next_file_read(write, monkeypatch):
    endless = "def f(content):\n  while b'stick' in content: pass\n  return [k.Block('read')]\nk._READERS['.html'] = f"
    stuck(endless, monkeypatch)
    monkeypatch.setattr(module, "SECONDS", 3.0)
    begun = time.monotonic()
    files = [write("a.html", "stick"), write("b.html", "x")]
    kept, faults, _ = without_unreadable(files)
    assert (kept, list(faults.values())) == ([files[1]], ["took longer than 3 seconds; split it"])
    assert faults[str(files[0])].startswith(module.PASSING)
    # 第二次问同一个文件，不再等一次
    with pytest.raises(InputError, match="took longer"):
        read_blocks(files[0])
    assert time.monotonic() - begun < 30
    module._end_readers()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(
    ("statement", "fault", "is_passing"),
    [
        ("k._READERS['.html'] = lambda content: bytearray(5 << 30)", "needs more than 4 GiB of memory", True),
        ("import os; k._READERS['.html'] = lambda content: os.abort()", "its reader died", True),
        ("import sys; sys.modules['selectolax.lexbor'] = None", r"reads it \(selectolax.lexbor is missing\)", True),
        ("k._READERS['.html'] = lambda content: 1 / 0", r"damaged \(ZeroDivisionError\)", False),
        ("k._READERS['.html'] = lambda content: print('noise') or 1 / 0", "damaged", False),
        ("del k._READERS['.html']; import sys; sys.modules['selectolax'] = None", "damaged", False),
        ("import bertsmith.data.reading.documents as d; d.MOST_CHARACTERS = 0", "holds more than 0 characters", False),
    ],
)
def test_what_a_reader_does_ends_nothing(write, monkeypatch, statement, fault, is_passing):
    stuck(statement, monkeypatch)
    path = write("a.html", "<p>x</p>")
    with pytest.raises(InputError, match=fault) as caught:
        read_blocks(path)
    said = str(caught.value).removeprefix(f"{path}: ")
    assert (said.startswith(module.PASSING), has_way_out(said)) == (is_passing, True)
    module._end_readers()


def test_no_module_of_the_current_folder_is_run(write, tmp_path, monkeypatch):
    write("email.py", "raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_idle", {})
    assert read_blocks(write("a.html", "<p>x</p>"))[0] == [Block("x")]
    module._end_readers()


def test_a_relative_name_is_read_wherever_the_program_has_gone(write, tmp_path, monkeypatch):
    for folder in ("one", "two"):
        write(f"{folder}/a.html", f"<p>{folder}</p>")
        monkeypatch.chdir(tmp_path / folder)
        assert read_blocks("a.html")[0] == [Block(folder)]


def test_what_was_read_outlives_the_workers_and_goes_with_the_process(write, tmp_path):
    path = write("a.html", "<p>Bread</p>")
    script = f"""
import os
from pathlib import Path
from bertsmith.data.reading import documents
documents.without_unreadable([Path({str(path)!r})])
if os.fork() == 0:
    raise SystemExit
os.wait()
assert list(documents._kept().iterdir())
Path({str(path)!r}).write_text("changed")
assert documents.read_blocks({str(path)!r})[0][0].text == "changed"
print(documents._kept())
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert not os.path.exists(done.stdout.strip())


def mixed(write, folder="t"):
    text = "The man eats bread number {}. The woman reads a book."
    for number, (ending, make) in enumerate(
        {"txt": str, "md": str, "html": "<p>{}</p>".format, "pdf": pdf, "docx": word, "epub": epub, "eml": mail}.items()
    ):
        write(f"{folder}/{number}.{ending}", make(text.format(number)))
    write(f"{folder}/scan.pdf", pdf(""))
    write(f"{folder}/b.csv", "a,b")


NOTE = (
    "left out 2 file(s): 1 .csv (tables: name them, with the column as --text-field); "
    "1 .pdf (no text: scanned? run OCR over it, such as ocrmypdf: scan.pdf)"
)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_of_everything_becomes_a_vocabulary_and_a_corpus(write, tmp_path, workers):
    mixed(write)
    notes = []
    options = {"workers": workers, "on_note": notes.append}
    bertsmith.learn_vocabulary(tmp_path / "t", tmp_path / "v", vocab_size=100, **options)
    for _ in range(2):
        found = bertsmith.build_corpus(tmp_path / "t", tmp_path / "v", tmp_path / "c", **options)
        assert found.metrics["documents"] + found.metrics["heldout_documents"] == 7
        assert found.metrics["unknown_rate"] == 0
    assert notes[1::2] == [NOTE] * 3
    kinds = ", ".join(f"1 .{ending}" for ending in ("txt", "md", "html", "pdf", "docx", "epub", "eml"))
    opening = rf"{re.escape(str(tmp_path / 't'))}: {re.escape(kinds)}; 0\.\d MB; utf-8"
    documents = "; documents: a file is one"
    assert all(map(re.fullmatch, [opening, opening + documents, opening + documents], notes[::2])), notes


def test_the_text_of_a_journey_is_the_same_and_its_size_that_of_the_text(write, tmp_path):
    mixed(write)
    with pytest.warns(UserWarning, match=r"left out 2 file.*scan\.pdf"):
        source = own_text([tmp_path / "t"], documents="auto", encoding="auto", leave_out=tmp_path / "out")
    assert [file.name for file in source.files][-1] == "6.eml"
    assert len(source.files) == 7
    assert source.bytes == pytest.approx(7 * 57, abs=40)


class HasRead(Exception):
    """Ends a journey once its text is read."""


@pytest.mark.parametrize(
    ("place", "begin"),
    [
        ("bertsmith.journeys.quickstart", lambda text, out: bertsmith.quickstart(text, out, minutes=1)),
        ("bertsmith.journeys.adapt", lambda text, out: bertsmith.adapt("model", text, out)),
        ("bertsmith.journeys.distil", lambda text, out: bertsmith.distil("model", text, out, keep_layers="0")),
        ("bertsmith.journeys.plan", lambda text, out: plan(text, minutes=1)),
        ("bertsmith_school.study.run", lambda text, out: run_study("masking", [text], [], out, StudyOptions(), None)),
    ],
)
def test_every_journey_reads_all_kinds_of_documents(write, tmp_path, monkeypatch, place, begin):
    def read(*given, **how):
        found = own_text(*given, **how)
        raise HasRead(*(file.name for file in found.files))

    mixed(write)
    monkeypatch.setattr(import_module(place), "own_text", read)
    with pytest.warns(UserWarning, match=r"left out 2 file.*scan\.pdf"), pytest.raises(HasRead) as caught:
        begin(tmp_path / "t", tmp_path / "out")
    assert caught.value.args == ("0.txt", "1.md", "2.html", "3.pdf", "4.docx", "5.epub", "6.eml")


def test_plan_measures_text_and_not_the_size_of_a_pdf(write, tmp_path):
    text = "The man eats bread number {}. The woman reads an old book, and sings. " * 40
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(20):
            write(f"p/{number}.pdf", pdf(text.format(*[number] * 40)))
            write(f"q/{number}.txt", text.format(*[number] * 40))
        two = [plan(tmp_path / folder, minutes=1, size="1/64") for folder in "pq"]
    assert two[0].text_tokens == pytest.approx(two[1].text_tokens, rel=0.1)


def test_without_the_extra_the_line_says_what_to_install(write, tmp_path, monkeypatch):
    mixed(write)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "markdown_it" or None)
    assert left_out([tmp_path / "t"], text_endings()) == (
        "left out 7 file(s): 1 .csv (tables: write their texts to .txt files); "
        "1 .docx, 1 .eml, 1 .epub, 1 .html, 2 .pdf (pip install 'bertsmith[documents]' reads them)"
    )
    assert [file.name for file in find_text_files([tmp_path / "t"], text_endings())] == ["0.txt", "1.md"]


def test_a_folder_of_documents_alone_says_what_to_install(write, tmp_path, monkeypatch):
    write("t/a.pdf", "x")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "markdown_it" or None)
    with pytest.raises(InputError, match=r"holds no \.txt, \.md, .*1 \.pdf \(pip install 'bertsmith"):
        find_text_files([tmp_path / "t"], text_endings())


def test_a_named_document_without_its_library_says_what_to_install(write, monkeypatch):
    source = module._COMMAND.replace("_serve()", "sys.modules['pypdfium2'] = None; _serve()")
    monkeypatch.setattr(module, "_COMMAND", source)
    monkeypatch.setattr(module, "_idle", {})
    with pytest.raises(InputError, match=r"a\.pdf: pip install 'bertsmith\[documents\]' reads it"):
        read_blocks(write("a.pdf", pdf("x")))
    module._end_readers()
