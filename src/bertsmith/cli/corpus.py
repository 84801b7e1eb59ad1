"""`bertsmith corpus`: from files of text to token shards."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.quickstart import DocumentsOption
from bertsmith.cores import available_cores


class EngineOption(str, Enum):
    """Who does the work."""

    local = "local"
    ray = "ray"


class WordsOption(str, Enum):
    """How the words of Chinese are found."""

    jieba = "jieba"


def corpus(
    text: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs or URLs of .txt, .jsonl (plain, .gz, .zst) or .parquet."),
    ],
    tokenizer: Annotated[Path, typer.Option(help="Folder or vocab.txt of the tokenizer.")],
    out: Annotated[Path, typer.Option(help="Folder for the shards; the same command goes on where it stopped.")],
    documents: Annotated[
        DocumentsOption,
        typer.Option(help="One document per text file, or per block between blank lines; auto: per file if several."),
    ] = DocumentsOption.auto,
    heldout: Annotated[float, typer.Option(min=0.0001, max=0.5, help="Share of documents held out.")] = 0.02,
    encoding: Annotated[str, typer.Option(help="auto, or a codec such as iso-8859-1; of text files.")] = "auto",
    text_field: Annotated[str, typer.Option(help="JSON field or Parquet column that holds the text.")] = "text",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores if left out.")] = None,
    engine: Annotated[
        EngineOption, typer.Option(help="Processes here, or a Ray cluster (RAY_ADDRESS).")
    ] = EngineOption.local,
    shard_tokens: Annotated[int, typer.Option(min=1, help="Ids per shard.")] = 16_000_000,
    keep_duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Keep documents that repeat.")] = False,
    near_duplicates: Annotated[
        float | None, typer.Option(help="Drop documents this similar to an earlier one, such as 0.8.")
    ] = None,
    words: Annotated[
        WordsOption | None, typer.Option(help="Find the words of Chinese, for whole-word masking.")
    ] = None,
) -> None:
    """Turn text into token shards for pre-training."""
    from rich.console import Console

    from bertsmith.data.corpus.build import CorpusOptions, build_corpus
    from bertsmith.data.corpus.shards import HELDOUT, TRAIN
    from bertsmith.progress import LiveProgress
    from bertsmith.tokenizer import WordPieceTokenizer

    options = CorpusOptions(
        documents=documents.value,
        encoding=encoding,
        text_field=text_field,
        heldout_share=heldout,
        shard_tokens=shard_tokens,
        keep_duplicates=keep_duplicates,
        near_duplicates=near_duplicates,
        words=words.value if words else None,
    )
    count = workers if engine is EngineOption.ray else workers or available_cores()
    loaded = WordPieceTokenizer.load(tokenizer)
    with LiveProgress(Console(stderr=True)) as progress:

        def show(done: int, total: int, ids: int) -> None:
            figures = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {ids:,} tokens"
            rate = progress.rate("tokenizing", done)
            progress.update("tokenizing", done, total, figures + (f", {rate / 1e6:.1f} MB/s" if rate else ""))

        built = build_corpus(text, loaded, out, options, engine=engine.value, workers=count, on_progress=show)
    for split in (TRAIN, HELDOUT):
        counts = built.counts[split]
        print(f"{split}: {counts.documents:,} documents, {counts.sentences:,} sentences, {counts.tokens:,} tokens")
    found = json.loads((out / "statistics.json").read_text(encoding="utf-8"))
    exact, near = found["duplicates"]["exact"], found["duplicates"]["near"]
    print(
        f"{found['pieces_per_word']:.3f} pieces per word; [UNK] {100 * found['unknown_rate']:.3f} %; "
        f"dropped {exact:,} duplicates" + (f" and {near:,} near-duplicates" if near_duplicates else "")
    )
    rule = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["settings"]["documents"]
    print(f"unigram entropy {built.unigram_entropy:.3f} nats; documents: {rule}; in {out}")
