"""The report that comes before an adaptation: counted by hand on a small text."""

import io

import pytest
from rich.console import Console

from bertsmith.errors import InputError
from bertsmith.journeys.adapt import report_coverage
from bertsmith.tokenizer import WordPieceTokenizer
from typed_command import typed

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "ty", "##ran", "##ny", "."]


@pytest.fixture
def tokenizer():
    return WordPieceTokenizer(PIECES)


@pytest.fixture
def text(tmp_path):
    """Six words of three pieces, five of two, and brackets and `red`, which the vocabulary cannot spell."""
    lines = ["the dogs .", *["Tyranny ."] * 6, *["the dogs"] * 4, "[red] ."]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def report(tokenizer, text, **options):
    shown = io.StringIO()
    coverage = report_coverage(Console(file=shown, width=80), tokenizer, [str(text)], **options)
    return coverage, [line.split() for line in shown.getvalue().splitlines() if line.strip()]


def test_words_and_pieces_are_those_one_counts(tokenizer, text):
    coverage, lines = report(tokenizer, text)
    # 5 × the, 5 × dogs, 6 × tyranny, 8 full stops, and [ red ], of which nothing is known
    assert (coverage.words, coverage.whole, coverage.unknown) == (27, 13, 3)
    assert lines[0] == ["words", "27"]
    assert lines[-3:] == [
        ["word", "times", "pieces"],
        ["tyranny", "6", "ty", "##ran", "##ny"],
        ["dogs", "5", "dog", "##s"],
    ]


def test_no_list_where_none_is_wanted_or_every_word_is_a_piece(tokenizer, text, tmp_path):
    assert report(tokenizer, text, words=0)[1][-1][0] == "words"
    (tmp_path / "whole.txt").write_text("the dog . " * 9, encoding="utf-8")
    assert "pieces" not in [line[-1] for line in report(tokenizer, tmp_path / "whole.txt")[1]]


def test_the_command_prints_it(tokenizer, text, tmp_path, capsys):
    tokenizer.save(tmp_path / "tokenizer")
    shown = typed(capsys, "inspect", "coverage", text / "a.txt", "--tokenizer", tmp_path / "tokenizer", "--words", "1")
    assert "tyranny" in shown
    assert "dogs" not in shown


@pytest.mark.parametrize("content", [None, b"\x00\x01\x02" * 50])
def test_what_cannot_be_read_is_named(tokenizer, tmp_path, content):
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.txt"):
        report(tokenizer, tmp_path / "a.txt")
