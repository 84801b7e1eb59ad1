"""`bertsmith corpus`: from files of text to token shards."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.data.corpus.options import CorpusOptions


class EngineOption(str, Enum):
    """Who does the work."""

    local = "local"
    ray = "ray"


@declares(options="bertsmith.data.corpus.options.CorpusOptions")
def corpus(
    text: Annotated[
        list[str],
        typer.Argument(help="Files, folders, globs or URLs: .txt, .jsonl (also .gz, .zst), .parquet."),
    ],
    tokenizer: Annotated[Path, typer.Option(help="Folder or vocab.txt of the tokenizer.")],
    out: Annotated[Path, typer.Option(help="Folder for the shards; the same command goes on where it stopped.")],
    options: Given[CorpusOptions],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores if left out.")] = None,
    engine: Annotated[
        EngineOption, typer.Option(help="Processes here, or a Ray cluster (RAY_ADDRESS).")
    ] = EngineOption.local,
) -> None:
    """Turn text into token shards for pre-training."""
    from rich.console import Console

    from bertsmith.data.corpus.calls import build_corpus
    from bertsmith.data.corpus.manifest import HELDOUT, TRAIN, read_manifest
    from bertsmith.progress import LiveProgress

    with LiveProgress(Console(stderr=True)) as progress:

        def show(done: int, total: int, ids: int) -> None:
            figures = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {ids:,} tokens"
            rate = progress.rate("tokenizing", done)
            progress.update("tokenizing", done, total, figures + (f", {rate / 1e6:.1f} MB/s" if rate else ""))

        built = build_corpus(
            text, tokenizer, out, engine=engine.value, workers=workers, on_progress=show, **options.values
        )
    for split in (TRAIN, HELDOUT):
        counts = built.details.counts[split]
        print(f"{split}: {counts.documents:,} documents, {counts.sentences:,} sentences, {counts.tokens:,} tokens")
    found = built.metrics
    exact, near = found["exact_duplicates"], found["near_duplicates"]
    looked_for_near = "near_duplicates" in options.values
    print(
        f"{found['pieces_per_word']:.3f} pieces per word; [UNK] {100 * found['unknown_rate']:.3f} %; "
        f"dropped {exact:,} duplicates" + (f" and {near:,} near-duplicates" if looked_for_near else "")
    )
    rule = read_manifest(out).settings["documents"]
    print(f"unigram entropy {found['unigram_entropy']:.3f} nats; documents: {rule}; in {out}")
