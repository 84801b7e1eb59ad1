"""`bertsmith corpus`: from files of text to token shards."""

from __future__ import annotations

import json
import os
import time
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from bertsmith.cli.quickstart import DocumentsOption


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
    from bertsmith.data.build import CorpusOptions, build_corpus
    from bertsmith.data.shards import HELDOUT, TRAIN
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
    count = workers if engine is EngineOption.ray else workers or os.cpu_count() or 1
    loaded = WordPieceTokenizer.load(tokenizer)
    with _BuildingProgress() as progress:
        built = build_corpus(
            text, loaded, out, options, engine=engine.value, workers=count, on_progress=progress.update
        )
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


class _BuildingProgress:
    """A bar on a terminal, a plain line now and then elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._started = self._last_line = time.monotonic()
        self._first: int | None = None
        self._bar = Progress(
            TextColumn("[bold]tokenizing"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:.0f} %  {task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, figures="")

    def __enter__(self) -> _BuildingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, done: int, total: int, tokens: int) -> None:
        """Shows how far the building is, in bytes of text."""
        now = time.monotonic()
        # 速率只算这一次做的：接着做时，先前完成的不算
        first = self._first = done if self._first is None else self._first
        rate = (done - first) / max(now - self._started, 1e-9)
        figures = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {tokens:,} tokens"
        figures += f", {rate / 1e6:.1f} MB/s" if rate else ""
        self._bar.update(self._task, completed=done, total=total, figures=figures)
        if not self._console.is_terminal and now - self._last_line >= 10:
            self._last_line = now
            self._console.print(figures, highlight=False)
