"""`bertsmith vocab`: from text files to a vocabulary.

Only lines are read here, not documents or sentences: where a text is cut makes no difference to its words.
"""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer


def vocab(
    text: Annotated[list[str], typer.Argument(help="Files, folders or globs of .txt or .txt.gz.")],
    out: Annotated[Path, typer.Option(help="Folder for vocab.txt and the tokenizer's settings.")],
    size: Annotated[int, typer.Option(min=1, help="Most word pieces.")] = 30522,
    min_frequency: Annotated[int, typer.Option(min=1, help="Do not merge pairs seen less often.")] = 2,
    limit_alphabet: Annotated[
        int | None, typer.Option(min=1, help="Keep only this many characters, the most frequent.")
    ] = None,
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    unused: Annotated[int, typer.Option(min=0, help="Reserve this many [unusedN] places.")] = 0,
    token: Annotated[
        list[str] | None, typer.Option(help="A token that is always one piece, such as <url>; may be repeated.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that count; all cores if left out.")] = None,
    encoding: Annotated[str, typer.Option(help="auto, or a codec such as iso-8859-1.")] = "auto",
) -> None:
    """Learn a WordPiece vocabulary from text."""
    from rich.console import Console

    from bertsmith.data.decoding import read_lines
    from bertsmith.data.text import find_text_files
    from bertsmith.progress import LiveProgress
    from bertsmith.tokenizer import WordPieceTokenizer

    files = find_text_files(text)
    # 字节数与字符数只在 ASCII 文本里相等，用来估计进度已经够了
    total_chars = sum(file.stat().st_size for file in files)
    with LiveProgress(Console(stderr=True)) as progress:

        def show(stage: str, done: int, total: int) -> None:
            rate = progress.rate(stage, done) / 1e6
            figures = f"{done:,} pieces" if total else f"{done / 1e6:,.0f} million characters, {rate:.1f} a second"
            progress.update(stage, done, total or total_chars, figures)

        tokenizer = WordPieceTokenizer.train(
            chain.from_iterable(read_lines(file, encoding) for file in files),
            vocab_size=size,
            lowercase=not cased,
            min_frequency=min_frequency,
            limit_alphabet=limit_alphabet,
            num_unused=unused,
            user_tokens=token or (),
            workers=workers or os.cpu_count() or 1,
            on_progress=show,
        )
    tokenizer.save(out)
    print(f"{tokenizer.vocab_size:,} pieces from {len(files)} file(s) in {out}")
