"""`bertsmith plan`: what an amount of time would bring, told before it is spent."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from rich.console import Console

    from bertsmith.quickstart.options import PlanOptions
    from bertsmith.quickstart.planning import Plan


@declares(options="bertsmith.quickstart.options.PlanOptions")
def plan(
    *,
    text: Annotated[list[str], typer.Option(help="File, folder or glob of .txt or .txt.gz; may be repeated.")],
    options: Given[PlanOptions],
) -> None:
    """Measure text and machine for half a minute; say which size learns most, and what more would gain.

    Under torchrun the processes measure together, as they would train.
    """
    from rich.console import Console

    from bertsmith.quickstart.calls import plan as make_plan
    from bertsmith.train.distributed import connected_ranks

    with connected_ranks() as (ranks, device):
        console = Console(quiet=not ranks.is_first)
        with console.status("measuring text and machine"):
            found = make_plan(text, device=device, ranks=ranks, **options.values)
    if ranks.is_first:
        _show(found, console)
        print(_next_command(found, text, options.build(), ranks.world_size))


def _show(found: Plan, console: Console) -> None:
    from rich.table import Column, Table

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
            f"{'' if each.measured else '~'}{each.seconds_per_step:.2f}",
            *(
                (f"{each.steps:,}", f"{each.tokens / 1e6:.2f} M", f"{each.passes:.1f}", f"{each.loss:.2f}")
                if each.fits
                else ("too slow",)
            ),
        )
    console.print(table)
    if not all(each.measured for each in found.forecasts):
        print("~: guessed from the next smaller size, by the operations of a step")
    best = found.best
    print(
        f"{best.size} learns most in {_time(found.minutes)}: {best.loss:.2f} nats.\nTwice the time:"
        f" {best.loss_of_twice_the_time:.2f}; twice the text: {best.loss_of_twice_the_text:.2f}."
    )
    if best.doubts:
        print(f"This is a guess: {'; '.join(best.doubts)}.")
    else:
        print(
            f"The runs on English prose behind this lie within {found.law.largest_miss:.2f} of the law; other text may"
            " lie farther."
        )
    most = found.law.tokens_per_parameter
    lowest = min((each for each in found.forecasts if each.fits), key=lambda forecast: forecast.loss)
    if lowest is not best and best.tokens <= most * best.parameters:
        print(
            f"{lowest.size} is no choice: it would read {lowest.tokens / lowest.parameters:.0f} tokens a parameter, and"
            f" over {most:.0f}, the most that was measured, the law promises too much."
        )


def _time(minutes: float) -> str:
    """Returns a time in words."""
    return f"{minutes:g} minutes" if minutes < 120 else f"{minutes / 60:.3g} hours"


def _next_command(found: Plan, text: list[str], chosen: PlanOptions, processes: int) -> str:
    """Returns what to type to get the model of the plan."""
    encoding = ["--encoding", chosen.encoding] if chosen.encoding != "auto" else []
    documents = ["--documents", chosen.documents] if chosen.documents != "auto" else []
    what = f"--family {chosen.family} --size {found.best.size} --minutes {found.minutes:g} --out runs/mine"
    if processes == 1:
        pieces = ["--vocab-size", str(chosen.vocab_size)] if chosen.vocab_size else []
        return f"bertsmith quickstart {shlex.join([*text, *documents, *encoding, *pieces])} {what}"
    # 词表和语料先由一个进程做好，训练才分给各进程
    own = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    nodes = f" --nnodes {processes // own}" * (processes > own)
    return (
        f"bertsmith vocab {shlex.join([*text, *encoding])} --vocab-size {found.vocab_size} --out runs/tokenizer\n"
        f"bertsmith corpus {shlex.join([*text, *documents, *encoding])} --tokenizer runs/tokenizer --out runs/shards\n"
        f"torchrun{nodes} --nproc-per-node {own} -m bertsmith pretrain --corpus runs/shards --tokenizer runs/tokenizer"
        f" --objective mlm {what}"
    )
