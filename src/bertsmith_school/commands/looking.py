"""`bertsmith attention`, `attribute` and `probe`: what a model reads, what a prediction goes by, what a model knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertsmith.cli.options import declares

ModelOption = Annotated[Path, typer.Option(help="Model folder, or org/name of the Hub.")]


def attention(
    text: Annotated[str, typer.Argument(help="A text; [MASK] is recognised.")],
    pair: Annotated[str | None, typer.Argument(help="The second text of a pair.")] = None,
    *,
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="Folder for attention.html and head.png.")],
    layer: Annotated[int | None, typer.Option(min=1, help="Layer that is shown first; default: the last.")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Head that is shown first; default: the mean of all.")] = None,
) -> None:
    """Show what every head of a model reads in a text: a page to explore, and a picture."""
    from bertsmith_school.looking.attention import write_attention
    from bertsmith_school.looking.maps import load_for_maps, maps_of

    found = maps_of(*load_for_maps(model), text, pair)
    for note in write_attention(
        found, out, layer=None if layer is None else layer - 1, head=None if head is None else head - 1
    ):
        print(note)


def attribute(
    texts: Annotated[
        list[str], typer.Argument(help="A text or two; for multiple choice, the context and each choice.")
    ],
    *,
    model: ModelOption,
    adapter: Annotated[Path | None, typer.Option(help="Adapter folder to load on top of the model.")] = None,
    target: Annotated[str | None, typer.Option(help="A label, or a choice. Default: what the model predicts.")] = None,
    word: Annotated[str | None, typer.Option(help="Taggers: the word, or its number from 1.")] = None,
    baseline: Annotated[
        str, typer.Option(help="Token of the empty text that integrated gradients start from: mask or pad.")
    ] = "mask",
    out: Annotated[Path | None, typer.Option(help="HTML file to write as well.")] = None,
) -> None:
    """Show which tokens a prediction depends on: coloured text, and a check that the values add up."""
    from rich.console import Console

    from bertsmith_school.looking.attribution import attribute as attribute_tokens
    from bertsmith_school.looking.coloured import terminal_text, write_attribution
    from bertsmith_school.looking.scored import Explainable

    if out is not None and out.suffix.lower() != ".html":
        raise typer.BadParameter(f"{out}: the file must end in .html.", param_hint="--out")
    scored = Explainable.load(model, adapter=adapter).score(texts, target=target, word=word)
    found = attribute_tokens(scored, baseline=baseline)  # type: ignore[arg-type]
    predicts = ["--model", str(model), *(() if adapter is None else ("--adapter", str(adapter)))]
    console = Console(highlight=False)
    console.print(f"{scored.target}: {found.completeness.score:.4f}", markup=False)
    for coloured in terminal_text(found):
        console.print(coloured)
    order = sorted(range(len(found.tokens)), key=lambda place: -abs(found.values[place]))
    strongest = ", ".join(f"{found.tokens[place]} {found.values[place]:+.3f}" for place in order[:10])
    for line in (f"strongest: {strongest}", found.check, scored.note):
        if line:
            console.print(line, markup=False)
    if out is not None:
        write_attribution(found, out, *predicts)
        console.print(f"written to {out}", markup=False)


if TYPE_CHECKING:
    from bertsmith_school.looking.pairs import Blimp
    from bertsmith_school.looking.probes import Probes


@declares("bertsmith.finetune.datasets.ReadingOptions")
def probe(
    model: Annotated[Path, typer.Argument(help="Model folder, or org/name of the Hub.")],
    *,
    pairs: Annotated[
        Path | None, typer.Option(help="Minimal pairs, a line each: right, tab, wrong; default: the village's.")
    ] = None,
    blimp: Annotated[
        Path | None, typer.Option(help="Folder of BLiMP's .jsonl files: score the model on them, and on nothing else.")
    ] = None,
    tagged: Annotated[
        str | None, typer.Option(help="CoNLL or CoNLL-U file of words with tags; default: the village's.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report.html and probe.json.")] = None,
    **settings: Any,
) -> None:
    """Probe a model: grammar by minimal pairs, what each layer knows about words, facts of the village."""
    from bertsmith.errors import ConfigError
    from bertsmith.finetune.datasets import ReadingOptions
    from bertsmith.settings import built
    from bertsmith_school.looking.pairs import judge_blimp
    from bertsmith_school.looking.probes import probe as run_probes
    from bertsmith_school.looking.probes import write_probes

    if blimp is not None and (pairs is not None or tagged is not None):
        raise ConfigError("--blimp scores a model on nothing else; leave out --pairs and --tagged")
    found: Probes | Blimp
    if blimp is not None:
        found = judge_blimp(model, blimp)
    else:
        found = run_probes(model, pairs=pairs, tagged=tagged, reading=built(ReadingOptions, settings))
    print_tables(found)
    if out is not None:
        write_probes(found, out, str(model))
        print(f"report: {out / 'report.html'}")


def print_tables(found: Probes | Blimp) -> None:
    """Prints what probes found."""
    from rich.console import Console

    from bertsmith_school.looking.probes import tables_of

    for one in tables_of(found):
        Console().print(one.for_terminal())
