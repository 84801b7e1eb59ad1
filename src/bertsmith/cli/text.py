"""`bertsmith vocab`, `corpus` and `inspect`: what a model reads, from files of text to pieces and token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bertsmith.cli.options import declares

Engine = Annotated[Literal["local", "ray"], typer.Option(help="Processes here, or a Ray cluster (RAY_ADDRESS).")]
Texts = Annotated[list[str], typer.Argument(help="Files, folders, globs or URLs of text, documents, .jsonl, .parquet.")]


@declares("bertsmith.data.corpus.vocabulary.VocabularyOptions")
def vocab(
    text: Texts,
    out: Annotated[Path, typer.Option(help="Folder for the vocabulary and the tokenizer's settings.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that count; all cores if left out.")] = None,
    **settings: Any,
) -> None:
    """Learn a vocabulary from text: WordPiece, byte-level BPE or Unigram."""
    from rich.console import Console

    from bertsmith.data.corpus.vocabulary import learn_vocabulary
    from bertsmith.reporting.progress import LiveProgress

    with LiveProgress(Console(stderr=True)) as progress:

        def show(stage: str, done: int, total: int) -> None:
            rate = progress.rate(stage, done) / 1e6
            counted = f"{done / 1e6:,.0f} million characters, {rate:.1f} a second"
            progress.update(stage, done, total, f"{done:,} pieces" if stage == "merging" else counted)

        learned = learn_vocabulary(text, out, workers=workers, on_progress=show, on_note=progress.note, **settings)
    print(f"{learned.metrics['pieces']:,} pieces from {learned.metrics['files']} file(s) in {out}")


@declares("bertsmith.data.corpus.plan.CorpusOptions")
def corpus(
    text: Texts,
    tokenizer: Annotated[Path, typer.Option(help="Folder or vocab.txt of the tokenizer.")],
    out: Annotated[Path, typer.Option(help="Folder for the shards; the same command resumes where it stopped.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; all cores if left out.")] = None,
    engine: Engine = "local",
    **settings: Any,
) -> None:
    """Turn text into token shards for pre-training."""
    from rich.console import Console

    from bertsmith.data.corpus.build import build_corpus
    from bertsmith.data.corpus.commit import read_statistics
    from bertsmith.data.corpus.manifest import HELDOUT, TRAIN, read_manifest
    from bertsmith.data.corpus.statistics import remarks_on
    from bertsmith.reporting.progress import LiveProgress

    with LiveProgress(Console(stderr=True)) as progress:

        def show(done: int, total: int, ids: int) -> None:
            figures = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, {ids:,} tokens"
            rate = progress.rate("tokenizing", done)
            progress.update("tokenizing", done, total, figures + (f", {rate / 1e6:.1f} MB/s" if rate else ""))

        built = build_corpus(
            text, tokenizer, out, engine=engine, workers=workers, on_progress=show, on_note=progress.note, **settings
        )
    for split in (TRAIN, HELDOUT):
        counts = built.details.counts[split]
        print(f"{split}: {counts.documents:,} documents, {counts.sentences:,} sentences, {counts.tokens:,} tokens")
    found = built.metrics
    print(
        f"{found['pieces_per_word']:.3f} pieces per word; [UNK] {100 * found['unknown_rate']:.3f} %, with "
        f"{100 * found['unknown_characters']:.3f} % of the characters"
    )
    for remark in remarks_on(read_statistics(out)):
        print(remark)
    rule = read_manifest(out).settings["documents"]
    print(f"unigram entropy {found['unigram_entropy']:.3f} nats; documents: {rule}; in {out}")


inspect = typer.Typer(help="Look at the input of a model.", no_args_is_help=True)


@inspect.command("tokens")
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


@inspect.command("coverage")
def inspect_coverage(
    text: Annotated[list[str], typer.Argument(help="File, folder or glob of text or documents.")],
    tokenizer: Annotated[str, typer.Option(help="Model or tokenizer folder, or org/name on the Hub.")],
    words: Annotated[int, typer.Option(min=0, help="Number of words to list, the costliest first.")] = 20,
    encoding: Annotated[str, typer.Option(help="Encoding: auto, or a codec such as iso-8859-1.")] = "auto",
) -> None:
    """Show what the words of a text cost in pieces of a vocabulary, and which cost most."""
    from rich.console import Console

    from bertsmith.journeys.adapt import report_coverage
    from bertsmith.tokenizer import load_tokenizer

    report_coverage(Console(), load_tokenizer(tokenizer), text, encoding=encoding, words=words)
