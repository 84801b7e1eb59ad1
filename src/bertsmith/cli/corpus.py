"""`bertsmith corpus`: from text files to token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.quickstart import DocumentsOption


def corpus(
    text: Annotated[list[str], typer.Argument(help="Files, folders or globs of .txt or .txt.gz.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder or vocab.txt of the tokenizer.")],
    out: Annotated[Path, typer.Option(help="Folder for the shards.")],
    documents: Annotated[
        DocumentsOption,
        typer.Option(help="One document per file, or per block between blank lines; auto: per file if several."),
    ] = DocumentsOption.auto,
    heldout: Annotated[float, typer.Option(min=0.0001, max=0.5, help="Share of documents held out.")] = 0.02,
    encoding: Annotated[str, typer.Option(help="auto, or a codec such as iso-8859-1.")] = "auto",
) -> None:
    """Turn text into token shards for pre-training."""
    from bertsmith.data.shards import HELDOUT, TRAIN, build_shards
    from bertsmith.data.text import find_text_files, read_documents, resolve_documents
    from bertsmith.tokenizer import WordPieceTokenizer

    files = find_text_files(text)
    rule = resolve_documents(files, documents.value)
    settings = {
        "sources": [[str(file.resolve()), file.stat().st_size] for file in files],
        "documents": rule,
        "encoding": encoding,
    }
    built = build_shards(
        read_documents(files, documents=rule, encoding=encoding),
        WordPieceTokenizer.load(tokenizer),
        out,
        settings=settings,
        heldout_share=heldout,
    )
    for split in (TRAIN, HELDOUT):
        counts = built.counts[split]
        print(f"{split}: {counts.documents:,} documents, {counts.sentences:,} sentences, {counts.tokens:,} tokens")
    print(f"unigram entropy {built.unigram_entropy:.3f} nats; documents: {rule}; in {out}")
