"""`bertsmith plan`: what an amount of time would bring, told before it is spent."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.quickstart.options import PlanOptions


@declares(options="bertsmith.quickstart.options.PlanOptions")
def plan(
    *,
    text: Annotated[list[str], typer.Option(help="File, folder or glob of .txt or .txt.gz; may be repeated.")],
    options: Given[PlanOptions],
) -> None:
    """Measure text and machine for half a minute; say which size learns most, and what more would gain."""
    from rich.console import Console
    from rich.table import Column, Table

    from bertsmith.quickstart.calls import plan as make_plan
    from bertsmith.train.forecast import TOKENS_PER_PARAMETER

    chosen, console = options.build(), Console()
    with console.status("measuring text and machine"):
        found = make_plan(text, **options.values)
    print(
        f"{found.text_bytes / 1e6:.1f} MB of text: about {found.text_tokens / 1e6:.2f} M tokens of {found.vocab_size:,}"
        f" pieces; unigram entropy {found.unigram_entropy:.2f} nats"
    )
    headings = ("size", "batch", "seconds\na step", "steps", "tokens", "passes", "loss\nexpected")
    table = Table(*(Column(heading, justify="right", vertical="bottom") for heading in headings), box=None)
    for each in found.forecasts:
        table.add_row(
            each.size,
            str(each.batch_size),
            f"{each.seconds_per_step:.2f}",
            f"{each.steps:,}",
            f"{each.tokens / 1e6:.2f} M",
            f"{each.passes:.1f}",
            f"{each.loss:.2f}",
        )
    console.print(table)
    best = found.best
    doubt = "; fewer or more tokens than was ever measured, so a guess" if found.beyond else ""
    print(
        f"{best.size} learns most in {chosen.minutes:g} minutes: {best.loss:.2f} nats, give or take {found.spread:.2f}"
        f"{doubt}.\nTwice the time: {best.loss_of_twice_the_time:.2f};"
        f" twice the text: {best.loss_of_twice_the_text:.2f}."
    )
    lowest = min(found.forecasts, key=lambda forecast: forecast.loss)
    if lowest is not best:
        print(
            f"{lowest.size} is no choice: it would read {lowest.tokens / lowest.parameters:.0f} tokens a parameter, and"
            f" over {TOKENS_PER_PARAMETER} the law promises too much."
        )
    given = {"--documents": (chosen.documents, "auto"), "--encoding": (chosen.encoding, "auto")}
    asked = [word for name, (value, usual) in given.items() if value != usual for word in (name, value)]
    asked += ["--vocab-size", str(chosen.vocab_size)] if chosen.vocab_size else []
    words = shlex.join([*text, *asked])
    print(
        f"bertsmith quickstart {words} --family {chosen.family} --size {best.size} --minutes {chosen.minutes:g}"
        " --out runs/mine"
    )
