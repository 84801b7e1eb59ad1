"""`bertsmith index`, `search`, `topics`, `mine` and `serve`: a folder of text, searched; models over HTTP."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bertsmith.cli.options import declares, flag_of
from bertsmith.cli.predict import Precision
from bertsmith.cli.standard_input import PIPE, JsonOption, print_json, require_readable, texts

IndexArgument = Annotated[Path, typer.Argument(help="Folder of an index.")]
MovedModel = Annotated[Path | None, typer.Option(help="Where the model of the index lies now, if it was moved.")]


@declares("bertsmith.retrieval.build.IndexSettings")
def index(
    folder: Annotated[Path, typer.Argument(help="Folder of text, Markdown, HTML, PDF, Word, …; subfolders too.")],
    model: Annotated[Path, typer.Option(help="Model folder, or org/name of the Hub.")],
    out: Annotated[Path, typer.Option(help="Folder of the index; the same command brings it up to date.")],
    **settings: Any,
) -> None:
    """Make a folder of text searchable, or bring its index up to date: unchanged passages are not embedded again."""
    from rich.console import Console

    from bertsmith.reporting.progress import LiveProgress
    from bertsmith.retrieval.build import index as make_index

    with LiveProgress(Console(stderr=True)) as progress:
        show = progress.counter("embedding", "passages")
        found = make_index(folder, model, out, on_progress=show, on_note=progress.note, **settings).details
    changes = f"{found.added:,} new, {found.changed:,} changed, {found.deleted:,} deleted"
    print(f"{out}: {found.documents:,} files ({changes}), {found.passages:,} passages, {found.embedded:,} embedded")


def search(
    index: IndexArgument,
    query: Annotated[str | None, typer.Argument(help="A question, or words; - reads lines of standard input.")] = None,
    *,
    k: Annotated[int, typer.Option("-k", min=1, help="Passages to show.")] = 10,
    mode: Annotated[
        Literal["hybrid", "ranks", "dense", "lexical"],
        typer.Option(help="Search by vectors, by words, or by both, joined by score or by rank."),
    ] = "hybrid",
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
    opened = load_index(index, model=model, rerank=rerank, precision=precision)
    for one in queries:
        hits = opened.search(one.text, k=k, mode=mode, weight=weight, where=filters)
        rows = None if hits else opened.rows_where(filters)
        nothing = rows is not None and not len(rows)
        if as_json:
            for hit in hits:
                print_json({"query": one.text, **asdict(hit)})
            if nothing:
                warnings.warn("no document is as --where says", stacklevel=2)
            continue
        if query is None or query == PIPE:
            print(one.text)
        if not hits:
            print("nothing found" + ": no document is as --where says" * nothing)
        for number, hit in enumerate(hits, 1):
            # 普通的行：路径与行号可以复制，也不随终端的宽度折断
            print(f"{number}. {hit.place}  {hit.score:.4f}")
            print(
                *(f"   {line}" for line in (" ".join(part.split())[:300] for part in (hit.heading, hit.text)) if line),
                sep="\n",
            )


@declares("bertsmith.retrieval.build.IndexSettings")
def topics(
    folder: Annotated[Path, typer.Argument(help="Folder of text or documents, or of an index, which needs no model.")],
    *,
    model: Annotated[Path | None, typer.Option(help="Model folder, or org/name of the Hub.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.html, topics.json and the index.")] = Path("runs/topics"),
    count: Annotated[int, typer.Option("--topics", min=0, help="Number of topics; 0: the most coherent.")] = 0,
    **settings: Any,
) -> None:
    """Say what a folder of text is about: its topics, the words of each, a map, and counts over time."""
    from rich.console import Console

    from bertsmith.journeys.topics import topics as find
    from bertsmith.reporting.progress import LiveProgress

    with LiveProgress(Console(stderr=True)) as progress:
        show = progress.counter("embedding", "passages")
        found = find(folder, model, out, count=count, on_progress=show, on_note=progress.note, **settings)
    print(found.details.verdict)
    for topic in found.details.topics:
        print(f"{topic.number:3}  {topic.share:6.1%}  {', '.join(topic.words) or '(no word of its own)'}")
    print(f"report in {found.report}; all passages in {out / 'topics.json'}")


@declares("bertsmith.retrieval.mining.MiningSettings")
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
    **settings: Any,
) -> None:
    """Find hard negatives for pairs: texts that look like an answer but are not. Or find near duplicates."""
    from rich.console import Console

    from bertsmith.errors import ConfigError
    from bertsmith.finetune.datasets import column_name
    from bertsmith.retrieval import mining
    from bertsmith.retrieval.mining import mine as write_negatives

    columns = {"text_column": text_column, "pair_column": pair_column}
    named: dict[str, Any] = {name: column_name(column) for name, column in columns.items() if column is not None}
    how: dict[str, Any] = {"encoding": encoding, "console": Console()}
    if near_duplicates is None:
        found = write_negatives(file, out, model=model, **how, **named, **settings).details
        print(
            f"{out}: {found.pairs:,} pairs, {found.negatives:,} negatives out of {found.texts:,} texts,"
            f" {found.without:,} pairs without one"
        )
        return
    unused = [name for name in (*settings, *named) if name != "precision"]
    if unused:
        raise ConfigError(f"{flag_of(unused[0])} has no meaning with --near-duplicates; leave it out")
    if model is None:
        raise ConfigError("--near-duplicates compares vectors: name the --model that makes them")
    precision = settings.get("precision")
    count = mining.near_duplicates(file, model, out, near_duplicates, precision=precision, **how)
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


@declares("bertsmith.serve.settings.ServeSettings")
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model: FOLDER, org/name or NAME=FOLDER; repeat; default: the indexes'."),
    ] = None,
    index: Annotated[
        list[str] | None, typer.Option(help="Index to search at /search: FOLDER or NAME=FOLDER; may be repeated.")
    ] = None,
    **settings: Any,
) -> None:
    """Serve models over HTTP: their own endpoints, and OpenAI's /v1/embeddings; /docs shows them."""
    from bertsmith.errors import ConfigError
    from bertsmith.serve.settings import served
    from bertsmith.settings import changed

    try:
        from bertsmith.serve.run import serve as run
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'bertsmith[serve]'") from None
    run(changed(served(model, index), **settings))
