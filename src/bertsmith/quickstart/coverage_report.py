"""What a vocabulary makes of a text, printed: the figures, and the words that a piece of their own would help most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from bertsmith.data.reading.finding import find_text_files
from bertsmith.data.reading.text import read_text
from bertsmith.tokenizer import Tokenizer
from bertsmith.tokenizer.coverage import Coverage, measure_coverage

LEAST_OFTEN = 5
"""A word seen less often gets no piece: its vector would not be learned."""

_ROWS: dict[str, Callable[[Coverage], str]] = {
    "words": lambda each: f"{each.words:,}",
    "pieces a word": lambda each: f"{each.pieces_per_word:.3f}",
    "words in one piece": lambda each: f"{each.whole / max(1, each.words):.1%}",
    "words it cannot spell": lambda each: f"{each.unknown / max(1, each.words):.2%}",
}


def show_coverage(console: Console, *columns: tuple[str, Coverage]) -> None:
    """Prints the figures, a column each.

    Args:
        console: where to.
        *columns: name and figures.
    """
    names = [name for name, _ in columns]
    table = Table("", *names, box=None, header_style="bold", show_header=any(names))
    for title, cell in _ROWS.items():
        table.add_row(title, *(cell(coverage) for _, coverage in columns))
    console.print(table)


def report_coverage(
    console: Console, tokenizer: Tokenizer, text: Sequence[str], *, encoding: str = "auto", words: int = 20
) -> Coverage:
    """Reads text, and prints its figures and its costliest words with their pieces.

    Args:
        console: where to.
        tokenizer: any.
        text: files, folders or globs.
        encoding: `auto` or a codec.
        words: how many are listed.

    Raises:
        InputError: a path is missing, holds no text file, or cannot be read.
    """
    coverage = measure_coverage(tokenizer, read_text(find_text_files(text), encoding))
    show_coverage(console, ("", coverage))
    table = Table("word", Column("times", justify="right"), "pieces", box=None, header_style="bold")
    # 拿 次数 ×（片数 - 1）排序：一个词自成一片能省多少，才值不值得加
    for word in coverage.costliest(words, min_frequency=LEAST_OFTEN):
        times, _ = coverage.costly[word]
        table.add_row(Text(word), f"{times:,}", Text(" ".join(tokenizer.tokenize(word))))
    if table.row_count:
        console.print()
        console.print(table)
    return coverage
