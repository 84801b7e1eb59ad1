"""`bertsmith plan` without text: the table of sizes, as a user reads it."""

import re

import pytest

from typed_command import typed


def of(*sizes):
    return [word for size in sizes for word in ("--size", size)]


def rows(text):
    """The cells of every row, by its L/H."""
    lines = [line.split() for line in text.splitlines()]
    found = {}
    for cells in lines:
        place = next((n for n, cell in enumerate(cells[:2]) if re.fullmatch(r"\d+/\d+", cell)), None)
        if place is not None:
            found[cells[place]] = cells
    return found


def test_every_name_has_a_row_with_the_published_count(capsys):
    table = typed(capsys, "plan", "--family", "bert", "--no-measure")
    found = rows(table)
    assert [cells[0] for cells in found.values()] == ["tiny", "mini", "small", "medium", "base", "large"]
    # 109,482,240 without the heads, 110,106,428 with them, in float32
    assert found["12/768"][:7] == ["base", "12/768", "23.8M", "85.1M", "591K", "624K", "110M"]
    assert found["12/768"][9:11] == ["440MB", "1.32GB"]
    assert "30,522 pieces, batches of 32 x 128 tokens" in table
    assert "tok/s" not in table


def test_any_size_once_with_the_options_applied(capsys):
    words = [*of("tiny", "3/192", "2/128"), "--vocab-size", 1000, "--batch", 4, "--length", 512]
    table = typed(capsys, "plan", "--family", "bert", *words, "--no-measure")
    assert list(rows(table)) == ["2/128", "3/192"]
    assert "1,000 pieces, batches of 4 x 512 tokens" in table
    # (1000 + 512 + 2 + 2) x 128
    assert rows(table)["2/128"][2] == "194K"


def test_speeds_are_shown_and_called_an_upper_estimate(capsys):
    table = typed(capsys, "plan", "--family", "bert", *of("1/64", "tiny"), "--batch", 2, "--length", 16)
    assert "tok/s" in table
    assert "an upper estimate" in " ".join(table.split())
    found = rows(table)
    assert len(found["1/64"]) == len(found["2/128"]) - 1 == 13


@pytest.mark.parametrize("columns", [40, 100, 140])
def test_the_table_is_plain_and_whole_where_there_is_no_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    table = typed(capsys, "plan", "--family", "bert", *of("tiny", "large", "1/64"), "--batch", 1, "--length", 8)
    assert "\x1b" not in table
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "huge"], "'huge' is unknown"),
        (["--size", "tiny", "--size", "2/100"], "multiple of 64"),
        (["--vocab-size", 0], "--vocab-size"),
        (["--batch", 0], "batch_size is 0"),
        (["--length", 0], "sequence_length is 0"),
        (["--length", 600], "sequence_length is 600, but the model has 512 positions"),
        (["--batch", "many"], "--batch"),
        (["--minutes", 5], "--minutes is for a plan: name its --text"),
        (["--text", "a.txt", "--batch", 8], "without --text"),
    ],
)
def test_impossible_requests_end_with_one_line(capsys, words, message):
    lines = typed(capsys, "plan", "--family", "bert", *words, code=2).strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]
