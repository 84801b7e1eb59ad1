"""`bertsmith vocab`: from files of text to a vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.data.corpus.vocabulary import VocabularyOptions


@declares(options="bertsmith.data.corpus.vocabulary.VocabularyOptions")
def vocab(
    text: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs or URLs: .txt, .jsonl (also .gz, .zst), .parquet."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the vocabulary and the tokenizer's settings.")],
    options: Given[VocabularyOptions],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that count; all cores if left out.")] = None,
) -> None:
    """Learn a vocabulary from text: WordPiece, byte-level BPE or Unigram."""
    from rich.console import Console

    from bertsmith.data.corpus.calls import learn_vocabulary
    from bertsmith.progress import LiveProgress

    with LiveProgress(Console(stderr=True)) as progress:

        def show(stage: str, done: int, total: int) -> None:
            rate = progress.rate(stage, done) / 1e6
            counted = f"{done / 1e6:,.0f} million characters, {rate:.1f} a second"
            progress.update(stage, done, total, f"{done:,} pieces" if stage == "merging" else counted)

        learned = learn_vocabulary(text, out, workers=workers, on_progress=show, **options.values)
    print(f"{learned.metrics['pieces']:,} pieces from {learned.metrics['files']} file(s) in {out}")
