"""`bertsmith inspect`: looking at what the model is given.

`inspect tokens` shows how a text is cut into pieces, `inspect coverage` how well a vocabulary suits a text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Look at the input of a model.", no_args_is_help=True)


@app.command("tokens")
def inspect_tokens(
    text: Annotated[str, typer.Argument(help="The text to look at.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder or vocab.txt of the tokenizer.")],
    pair: Annotated[str | None, typer.Option(help="A second text.")] = None,
    special: Annotated[bool, typer.Option("--special", help="Read special tokens such as [MASK] in the text.")] = False,
) -> None:
    """Show the pieces of a text with their ids, places and words."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from bertsmith.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    encoding = loaded(text, pair, parse_special=special)
    table = Table("#", "piece", "id", "characters", "written", "word", "segment", box=None, header_style="bold")
    for number, (index, (start, end), word, segment) in enumerate(
        zip(
            encoding["input_ids"],
            encoding["offsets"],
            encoding["word_ids"],
            encoding["token_type_ids"],
            strict=True,
        )
    ):
        source = text if segment == 0 or pair is None else pair
        inside = word >= 0
        # 相邻的词换色，一眼看出词的边界；未知词标红
        style = "red" if index == loaded.unk_token_id else ("cyan", "green")[word % 2] if inside else "dim"
        table.add_row(
            str(number),
            Text(loaded.vocab[index], style),
            str(index),
            f"{start}-{end}" if inside else "",
            Text(source[start:end].__repr__() if inside else "", style),
            str(word) if inside else "",
            str(segment),
        )
    Console().print(table)


@app.command("coverage")
def inspect_coverage(
    text: Annotated[list[str], typer.Argument(help="File, folder or glob of .txt or .txt.gz.")],
    tokenizer: Annotated[str, typer.Option(help="Model or tokenizer folder, or org/name on the Hub.")],
    words: Annotated[int, typer.Option(min=0, help="Number of words to list, the costliest first.")] = 20,
    encoding: Annotated[str, typer.Option(help="Encoding: auto, or a codec such as iso-8859-1.")] = "auto",
) -> None:
    """Show what the words of a text cost in pieces of a vocabulary, and which cost most."""
    from rich.console import Console

    from bertsmith.quickstart.coverage_report import report_coverage
    from bertsmith.tokenizer import load_tokenizer

    report_coverage(Console(), load_tokenizer(tokenizer), text, encoding=encoding, words=words)
