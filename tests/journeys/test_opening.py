"""Every journey over text begins with what it read, and says how many documents that is."""

import io
import re
from html import unescape

import pytest
from rich.console import Console

from bertsmith import adapt, distil, quickstart
from bertsmith.data.corpus.shards import HELDOUT, TRAIN
from bertsmith.journeys.plan import plan
from bertsmith.journeys.source import counted, own_text, shards_of
from typed_command import typed


class HasBegun(Exception):
    """Ends a journey once it has said what it read."""


@pytest.fixture
def texts(tmp_path):
    """Four text files and a Markdown file of two sentences each, and a table."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"Satz Nummer {number} steht schön hier. Er ist kurz.", encoding="utf-8")
    (folder / "3.txt").write_bytes("Der letzte Satz steht schön hier. Er ist kurz.".encode("latin-1"))
    (folder / "4.md").write_text("Hier steht ein Satz. Er ist kurz.")
    (folder / "5.csv").write_text("a,b\n")
    return folder


LINE = "{}: 4 .txt, 1 .md; 0.0 MB; utf-8 4, iso-8859-1 1; documents: a file is one"
LEFT_OUT = "left out 1 file(s): 1 .csv (tables: write their texts to .txt files)"


@pytest.mark.parametrize(
    ("place", "begin"),
    [
        ("quickstart.learn_vocabulary", lambda text, out, **how: quickstart(text, out, minutes=1, **how)),
        ("adapt.model_folder", lambda text, out, **how: adapt("village", text, out, **how)),
        ("distil.load_tokenizer", lambda text, out, **how: distil("village", text, out, keep_layers="0", **how)),
        ("plan._sample", lambda text, out, **how: plan(text, minutes=1, **how)),
    ],
)
def test_a_journey_begins_with_what_it_read(texts, tmp_path, monkeypatch, place, begin):
    def stop(*_, **__):
        raise HasBegun

    monkeypatch.setattr(f"bertsmith.journeys.{place}", stop)
    screen = Console(file=io.StringIO(), width=60)
    with pytest.warns(UserWarning, match=re.escape(LEFT_OUT)), pytest.raises(HasBegun):
        begin(texts, tmp_path / "out", console=screen)
    assert LINE.format(texts) in [line.strip() for line in screen.file.getvalue().splitlines()[:2]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("unhurried")
def test_the_report_of_a_quickstart_shows_what_was_read_and_what_was_dropped(texts, tmp_path):
    for number in range(30):
        (texts / f"more{number}.txt").write_text(f"Am Tag {number} kam ein Brief [SEP]. Er war kurz.", encoding="utf-8")
    screen = Console(file=io.StringIO(), width=200)
    quickstart(texts, tmp_path / "out", size="1/64", minutes=0.05, console=screen)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    first, rest = page.split("<h2>")[1:3]
    assert first.startswith("What was read</h2>")
    assert rest.startswith("Figures</h2>")
    cells = [unescape(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", first)]
    opening = LINE.format(texts).replace("4 .txt", "34 .txt").replace("utf-8 4", "utf-8 34")
    assert cells[:4] == ["text", opening, "note", LEFT_OUT]
    assert cells[4:6] == ["note", "30 special tokens stand in the text as words: plain characters"]
    assert f"    {opening}\n" in screen.file.getvalue()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "begin",
    [
        lambda text, out: adapt("village", text, out, minutes=0.05, sequence_length=32),
        lambda text, out: distil("village", text, out, minutes=0.05, keep_layers="0"),
    ],
    ids=["adapt", "distil"],
)
def test_the_report_of_a_run_on_text_shows_what_was_read_whenever_it_is_written(texts, tmp_path, capsys, begin):
    for number in range(30):
        (texts / f"more{number}.txt").write_text(f"Am Tag {number} kam ein Brief [SEP]. Er war kurz.", encoding="utf-8")
    report = begin(texts, tmp_path / "out").report
    opening = LINE.format(texts).replace("4 .txt", "34 .txt").replace("utf-8 4", "utf-8 34")
    for _ in range(2):
        first, rest = report.read_text(encoding="utf-8").split("<h2>")[1:3]
        assert first.startswith("What was read</h2>")
        assert rest.startswith("Figures</h2>")
        cells = [unescape(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", first)]
        assert cells[:4] == ["text", opening, "note", LEFT_OUT]
        assert "30 special tokens stand in the text as words: plain characters" in cells
        report.unlink()
        typed(capsys, "report", tmp_path / "out")


@pytest.mark.filterwarnings("ignore")
def test_many_names_are_counted_and_so_are_documents(texts, tmp_path, village_small):
    files = sorted(texts.glob("*.txt"))
    source = own_text(files, documents="auto", encoding="auto", leave_out=tmp_path / "out")
    assert source.name == f"{files[0]}, {files[1]}, {files[2]} and 1 more"
    _, tokenizer = village_small
    corpus = shards_of(source, tokenizer, tmp_path / "corpus", keep_duplicates=True)
    train, heldout = corpus.counts[TRAIN], corpus.counts[HELDOUT]
    assert (train.documents + heldout.documents, train.sentences + heldout.sentences) == (4, 8)
    assert counted(corpus) == (
        f"{train.documents} documents, {train.sentences} sentences, {train.tokens} tokens"
        f" (+ {heldout.documents} documents held out)"
    )
