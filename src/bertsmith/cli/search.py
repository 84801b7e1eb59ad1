"""`bertsmith index`, `search` and `mine`: a folder of text, searched; hard negatives and near duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertsmith.cli.options import Given, declares, flag_of
from bertsmith.cli.predict import Precision
from bertsmith.cli.standard_input import PIPE, JsonOption, print_json, require_readable, texts

if TYPE_CHECKING:
    from bertsmith.retrieval import Hit, IndexSettings
    from bertsmith.retrieval.mining import MiningSettings


class ModeOption(str, Enum):
    """What passages are found by."""

    hybrid = "hybrid"
    ranks = "ranks"
    dense = "dense"
    lexical = "lexical"


IndexArgument = Annotated[Path, typer.Argument(help="Folder of an index.")]
MovedModel = Annotated[Path | None, typer.Option(help="Where the model of the index lies now, if it was moved.")]


@declares(settings="bertsmith.retrieval.build.IndexSettings")
def index(
    folder: Annotated[Path, typer.Argument(help="Folder with .txt and .md files, in any subfolders.")],
    model: Annotated[Path, typer.Option(help="Model folder, or org/name of the Hub.")],
    out: Annotated[Path, typer.Option(help="Folder of the index; the same command brings it up to date.")],
    *,
    settings: Given[IndexSettings],
) -> None:
    """Make a folder of text searchable, or bring its index up to date: unchanged passages are not embedded again."""
    from rich.console import Console

    from bertsmith.progress import LiveProgress
    from bertsmith.retrieval.calls import index as make_index

    with LiveProgress(Console(stderr=True)) as progress:

        def show(done: int, total: int) -> None:
            rate = progress.rate("embedding", done)
            figures = f"{done:,} of {total:,} passages" + (f", {rate:,.0f} passages/s" if rate else "")
            progress.update("embedding", done, total, figures)

        found = make_index(folder, model, out, on_progress=show, **settings.values).details
    changes = f"{found.added:,} new, {found.changed:,} changed, {found.deleted:,} deleted"
    print(f"{out}: {found.documents:,} files ({changes}), {found.passages:,} passages, {found.embedded:,} embedded")


def search(
    index: IndexArgument,
    query: Annotated[str | None, typer.Argument(help="A question, or words; - reads lines of standard input.")] = None,
    *,
    k: Annotated[int, typer.Option("-k", min=1, help="Passages to show.")] = 10,
    mode: Annotated[
        ModeOption, typer.Option(help="Search by vectors, by words, or by both, joined by score or by rank.")
    ] = ModeOption.hybrid,
    weight: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Weight of the vectors in hybrid search; default: that of the index."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="FIELD=PATTERN with * and ?; FIELD: file or front matter; may be repeated."),
    ] = None,
    rerank: Annotated[Path | None, typer.Option(help="Cross-encoder that reranks the best passages.")] = None,
    model: MovedModel = None,
    precision: Precision = None,
    as_json: JsonOption = False,
) -> None:
    """Search an index."""
    from dataclasses import asdict

    from bertsmith.retrieval import load_index

    require_readable(*(where or []))
    filters = _filters(where or [])
    queries = texts(query)
    opened = load_index(index, model=model, rerank=rerank, precision=precision.value if precision else None)
    for one in queries:
        hits = opened.search(one.text, k=k, mode=mode.value, weight=weight, where=filters)
        if as_json:
            for hit in hits:
                print_json({"query": one.text, **asdict(hit)})
            continue
        if query is None or query == PIPE:
            print(one.text)
        _print_hits(hits)


def _print_hits(hits: Sequence[Hit]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not hits:
        print("nothing found")
        return
    table = Table()
    table.add_column("score", justify="right")
    # 路径宁可折行，行号不能省略
    table.add_column("place", overflow="fold")
    table.add_column("passage")
    for hit in hits:
        place = f"{hit.file}:{hit.line}" + (f"\n{hit.heading}" if hit.heading else "")
        # 原文里的方括号不是排版标记
        table.add_row(f"{hit.score:.4f}", Text(place), Text(" ".join(hit.text.split())[:300]))
    Console().print(table)


@declares(settings="bertsmith.retrieval.mining.MiningSettings")
def mine(
    file: Annotated[
        Path, typer.Argument(help="Pairs of query and text, a SQuAD file, a BEIR folder, or a text per line.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="JSON Lines to write, which finetune embed reads.")],
    model: Annotated[Path | None, typer.Option(help="Model folder, or org/name of the Hub.")] = None,
    near_duplicates: Annotated[
        float | None, typer.Option(help="Instead: write the pairs of lines whose cosine is at least this.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Name or number (from 0) of the column of queries.")] = None,
    pair_column: Annotated[
        str | None, typer.Option(help="Name or number (from 0) of the column of texts that answer them.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Encoding: auto, or a codec such as gb18030.")] = "auto",
    settings: Given[MiningSettings],
) -> None:
    """Find hard negatives for pairs: texts that look like an answer but are not. Or find near duplicates."""
    from bertsmith.errors import ConfigError
    from bertsmith.finetune.datasets.reader import column_name
    from bertsmith.retrieval import mining
    from bertsmith.retrieval.calls import mine as write_negatives

    columns = {"text_column": text_column, "pair_column": pair_column}
    named: dict[str, Any] = {name: column_name(column) for name, column in columns.items() if column is not None}
    if near_duplicates is None:
        found = write_negatives(file, out, model=model, encoding=encoding, **named, **settings.values).details
        print(
            f"{out}: {found.pairs:,} pairs, {found.negatives:,} negatives out of {found.texts:,} texts,"
            f" {found.without:,} pairs without one"
        )
        return
    unused = [name for name in (*settings.values, *named) if name != "precision"]
    if unused:
        raise ConfigError(f"{flag_of(unused[0])} has no meaning with --near-duplicates; leave it out")
    if model is None:
        raise ConfigError("--near-duplicates compares vectors: name the --model that makes them")
    precision = settings.build().precision
    count = mining.near_duplicates(file, model, out, near_duplicates, precision=precision, encoding=encoding)
    print(f"{out}: {count:,} pairs of lines with a cosine of at least {near_duplicates:g}")


def _filters(given: list[str]) -> dict[str, str]:
    from bertsmith.errors import InputError

    found: dict[str, str] = {}
    for text in given:
        field, separator, pattern = text.partition("=")
        if not separator or not field:
            raise InputError(f"--where {text!r}: write FIELD=PATTERN, such as file=guides/*")
        if field in found:
            raise InputError(f"--where {field}: is given twice; a pattern can hold * and ?")
        found[field] = pattern
    return found
