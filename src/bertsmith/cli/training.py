"""`bertsmith quickstart`, `pretrain`, `adapt`, `distil`, `compress`, `plan` and `report`: training."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertsmith.cli.options import declares, flag_of

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from bertsmith.journeys.plan import Plan, PlanOptions
    from bertsmith.model.sizes import BatchCosts


@declares("bertsmith.journeys.quickstart.QuickstartOptions")
def quickstart(
    *,
    corpus: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders or globs of text or documents; none: the bundled village."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder; the same command resumes where it stopped.")] = Path(
        "runs/quickstart"
    ),
    **settings: Any,
) -> None:
    """Learn a vocabulary, pre-train a BERT, fill masks and write a report; on the bundled village, fine-tune too."""
    from rich.console import Console

    from bertsmith.journeys.quickstart import quickstart as run_quickstart

    run_quickstart(corpus or [], out, console=Console(), **settings)


@declares(
    "bertsmith.journeys.solve.SolveOptions",
    "bertsmith.finetune.tasks.classify.ClassificationOptions",
    "bertsmith.finetune.datasets.ReadingOptions",
)
def solve(
    train: Annotated[str, typer.Argument(help="Labelled file or URL, as in `bertsmith finetune`.")],
    *,
    dev: Annotated[str | None, typer.Option(help="Used for every choice; default: a part of TRAIN.")] = None,
    test: Annotated[
        str | None, typer.Option(help="Scored once, with the final model; default: a part of TRAIN.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="File, folder or glob of text: adapts the best encoder to it, or pre-trains one; repeatable."
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Encoder to try: a folder, or org/name on the Hub; may be repeated.")
    ] = None,
    unlabelled: Annotated[
        str | None, typer.Option(help="File of rows without labels: those to label next go to OUT/label_next.csv.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder, answer in OUT/model; the same command resumes.")] = Path(
        "runs/solve"
    ),
    **settings: Any,
) -> None:
    """Find the best answer for labelled texts: words, an encoder, or both together."""
    from rich.console import Console

    from bertsmith.journeys.solve import LABEL_NEXT
    from bertsmith.journeys.solve import solve as find
    from bertsmith.journeys.solved import next_command
    from bertsmith.train.monitor import TrainingStopped

    files: dict[str, Any] = {
        "dev": dev,
        "test": test,
        "text": text or [],
        "model": model or [],
        "unlabelled": unlabelled,
    }
    try:
        found = find(train, out, console=Console(), **files, **settings)
    except TrainingStopped as stopped:
        print(stopped)
        return
    name, value = next(iter(found.metrics.items()))
    scored = "held-out rows" if found.details.test is None else "test"
    print(f"{name} {value:.3f} on {scored}; kept in {found.model_folder}")
    if unlabelled is not None:
        print(f"what to label next is in {found.folder / LABEL_NEXT}")
    print(f"report in {found.report}; use it: {next_command(found.details, found.folder)}")


@declares("bertsmith.journeys.adapt.AdaptationOptions")
def adapt(
    *,
    model: Annotated[str, typer.Option(help="Model folder, or org/name on the Hub.")],
    text: Annotated[list[str], typer.Option(help="File, folder or glob of text or documents; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command resumes where it stopped.")],
    **settings: Any,
) -> None:
    """Adapt a model to a domain: vocabulary report, new pieces if asked for, continued pre-training."""
    from rich.console import Console

    from bertsmith.journeys.adapt import adapt as run_adaptation

    run_adaptation(model, text, out, console=Console(), **settings)


@declares("bertsmith.journeys.distil.DistillationOptions")
def distil(
    *,
    teacher: Annotated[str, typer.Option(help="Model folder with a masked-LM head, or org/name on the Hub.")],
    text: Annotated[list[str], typer.Option(help="File, folder or glob of text or documents; may be repeated.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command resumes where it stopped.")],
    **settings: Any,
) -> None:
    """Distil a model into a smaller one on text without labels: some of its layers, or a fresh model of a size."""
    from rich.console import Console

    from bertsmith.journeys.distil import distil as run_distillation

    run_distillation(teacher, text, out, console=Console(), **settings)


@declares(
    "bertsmith.journeys.compress.CompressionOptions",
    "bertsmith.finetune.datasets.ReadingOptions",
)
def compress(
    model: Annotated[str, typer.Argument(help="Model folder, fine-tuned or not, or org/name on the Hub.")],
    out: Annotated[Path, typer.Option(help="Folder of the smaller model.")],
    dev: Annotated[str | None, typer.Option(help="Labelled file or URL; each step is scored on it.")] = None,
    **settings: Any,
) -> None:
    """Make a trained model smaller: fewer layers, heads and pieces, weights in fewer bits; each step is scored."""
    from rich.console import Console

    from bertsmith.journeys.compress import compress as run_compression

    run_compression(model, out, dev=dev, console=Console(), **settings)


@declares(
    "bertsmith.train.recipe.PreTrainingRecipe",
    "bertsmith.train.pretraining.RunOptions",
    "bertsmith.train.tracking.TrackingOptions",
)
def pretrain(
    corpus: Annotated[Path, typer.Option(help="Folder of shards made by `bertsmith corpus`.")],
    tokenizer: Annotated[Path, typer.Option(help="The tokenizer that made them.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command resumes where it stopped.")],
    recipe_file: Annotated[
        Path | None,
        typer.Option("--recipe", help="TOML recipe to start from, as in a run folder; options override it."),
    ] = None,
    **settings: Any,
) -> None:
    """Pre-train a BERT on token shards; interrupted, the same command resumes.

    The run ends with the first of --minutes, --steps, --tokens and --flops. Under torchrun the processes share it.
    """
    from rich.console import Console

    from bertsmith.train.calls import pretrain as run_pretraining
    from bertsmith.train.distributed import connected_ranks
    from bertsmith.train.monitor import TrainingStopped

    with connected_ranks() as (ranks, _):
        try:
            run = run_pretraining(corpus, tokenizer, out, recipe=recipe_file, console=Console(), **settings)
        except TrainingStopped as stopped:
            if ranks.is_first:
                print(stopped)
            return
    if ranks.is_first:
        result = run.details
        figures = ", ".join(f"{name} {value:.3f}" for name, value in result.heldout.items())
        print(f"held out: {figures}; unigram entropy {result.unigram_entropy:.3f} nats; model in {run.model_folder}")
        if result.verdict:
            print(result.verdict)


_WITHOUT_TEXT = "Without --text: the table of sizes"


@declares("bertsmith.journeys.plan.PlanOptions")
def plan(
    *,
    text: Annotated[
        list[str] | None, typer.Option(help="File, folder or glob of text or documents; may be repeated.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Sequences in a batch. Default: 32.", rich_help_panel=_WITHOUT_TEXT)
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens in a sequence. Default: 128.", rich_help_panel=_WITHOUT_TEXT)
    ] = None,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Measure no matmul on this machine.", rich_help_panel=_WITHOUT_TEXT)
    ] = False,
    **settings: Any,
) -> None:
    """Measure text and machine for half a minute; say which size learns most, and what more would gain.

    Without --text: parameters, operations, memory and the speed to expect of model sizes. Under torchrun the processes
    measure together, as they would train.
    """
    from rich.console import Console

    from bertsmith.errors import ConfigError
    from bertsmith.journeys.plan import PlanOptions
    from bertsmith.journeys.plan import plan as make_plan
    from bertsmith.settings import built
    from bertsmith.train.distributed import connected_ranks

    chosen = built(PlanOptions, settings)
    if not text:
        if others := sorted(settings.keys() - {"size", "family", "vocab_size"}):
            raise ConfigError(f"{flag_of(others[0])} is for a plan: name its --text, or leave it out")
        _show_sizes(chosen, 32 if batch is None else batch, 128 if length is None else length, not no_measure)
        return
    if no_measure or (batch, length) != (None, None):
        raise ConfigError("--batch, --length and --no-measure are for the table of sizes, without --text")
    with connected_ranks() as (ranks, device):
        console = Console(quiet=not ranks.is_first)
        with console.status("measuring text and machine"):
            found = make_plan(text, console=console, device=device, ranks=ranks, **settings)
    if ranks.is_first:
        _show(found, console)
        print(_next_command(found, text, chosen, ranks.world_size))


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
            f"{'' if each.measured else '~'}{each.pace.step:.2f}",
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
            f"The forecast was within {found.law.largest_miss:.2f} nats of the English runs it was fitted to; other"
            " text may differ more."
        )
    most = found.law.tokens_per_parameter
    lowest = min((each for each in found.forecasts if each.fits), key=lambda forecast: forecast.loss)
    if lowest is not best and best.tokens <= most * best.parameters:
        print(
            f"{lowest.size} is no choice: it would read {lowest.tokens / lowest.parameters:.0f} tokens a parameter, and"
            f" over {most:.0f}, the most that was measured, the forecast is too optimistic."
        )


def _time(minutes: float) -> str:
    return f"{minutes:g} minutes" if minutes < 120 else f"{round(minutes / 60, 2):,g} hours"


def _next_command(found: Plan, text: list[str], chosen: PlanOptions, processes: int) -> str:
    asked = chosen.reading
    encoding = ["--encoding", asked.encoding] if asked.encoding != "auto" else []
    documents = ["--documents", asked.documents] if asked.documents != "auto" else []
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


def _show_sizes(chosen: PlanOptions, batch: int, length: int, measure: bool) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from bertsmith.kernels.layers import best_compute_dtype, best_device
    from bertsmith.kernels.matmul import measure_matmul_flops
    from bertsmith.model import NAMED_SIZES, family_named
    from bertsmith.model.sizes import BatchCosts

    vocab_size = chosen.vocab_size or 30522
    shape = family_named(chosen.family).config
    configs = [shape.named(name, vocab_size=vocab_size, pad_token_id=0) for name in chosen.sizes or NAMED_SIZES]
    # 同一形状只占一行：tiny 与 2/128 是同一个模型
    costs = {(c.num_hidden_layers, c.hidden_size): BatchCosts(c, batch, length) for c in configs}
    device = best_device()
    dtype = best_compute_dtype(device)

    headers = ["params\n embed.", "encoder", "pooler", "heads", "total", "FLOPs\n infer", "train"]
    headers += ["memory\n weights", "AdamW", "activ."]
    caption = (
        f"{vocab_size:,} pieces, batches of {batch:,} x {length} tokens. FLOPs per token: a multiply-add is two; train"
        " is forward and backward, the last feed-forward layer and the logits at 15 % of the tokens. Memory: weights"
        f" float32; AdamW holds gradients and two moments; activ. is what a step keeps for its backward pass in"
        f" {str(dtype).removeprefix('torch.')}."
    )
    if measure:
        headers += ["tok/s\n infer", "train"]
        caption += (
            " Tokens per second: an upper estimate, from the speed of a matmul of that width on this"
            f" {device.type.upper()} as it is now. Norms, softmax, dropout and the optimizer take time too: a run"
            " reaches a part of it, the smaller the model the less."
        )
    columns = [Column(header, justify="right", no_wrap=True, vertical="bottom") for header in headers]
    first = [Column(header, no_wrap=True, vertical="bottom") for header in ("size", "L/H")]
    table = Table(*first, *columns, box=None, padding=(0, 1, 0, 0), pad_edge=False, caption=caption)
    table.header_style, table.caption_style, table.caption_justify = "bold", "dim", "left"

    names = {shape: name for name, shape in NAMED_SIZES.items()}
    speeds: dict[int, float] = {}
    for (layers, hidden), cost in costs.items():
        if measure and hidden not in speeds:
            speeds[hidden] = measure_matmul_flops(hidden, cost.num_tokens, dtype, device)
        cells = _cells(cost, dtype, speeds.get(hidden))
        table.add_row(names.get((layers, hidden), ""), f"{layers}/{hidden}", *cells)
    console = Console()
    # 不是终端时 rich 只给 80 列：表格需要多宽就给多宽，数字绝不截断
    unbounded = console.options.update(max_width=1000)
    console.width = max(console.width, console.measure(table, options=unbounded).maximum)
    console.print(table)


def _cells(cost: BatchCosts, dtype: torch.dtype, flops_per_second: float | None) -> list[str]:
    from bertsmith.model.sizes import ParameterCounts

    counts = ParameterCounts.of(cost.config)
    parameters = (counts.embeddings, counts.encoder, counts.pooler, counts.heads, counts.total)
    flops = (cost.inference_flops / cost.num_tokens, cost.training_flops / cost.num_tokens)
    memory = (cost.weight_bytes, cost.optimizer_bytes, cost.activation_bytes(dtype))
    cells = [*map(_short, (*parameters, *flops)), *(f"{_short(value)}B" for value in memory)]
    return cells if flops_per_second is None else [*cells, *(_short(flops_per_second / value) for value in flops)]


def _short(value: float) -> str:
    """Writes three digits and a power of ten: 109482240 is `109M`, 9 is `9.00`."""
    for prefix in ("", "K", "M", "G", "T"):
        if value < 999.5:
            return f"{value:#.3g}".rstrip(".") + prefix
        value /= 1000
    return f"{value:,.0f}P"


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several of `bertsmith pretrain` are overlaid.")],
    out: Annotated[
        Path | None, typer.Option(help="HTML file; default: report.html in the run folder, or here for several.")
    ] = None,
) -> None:
    """Write report.html: figures, curves and settings of one run or several, at any time."""
    from bertsmith.errors import ConfigError
    from bertsmith.finetune.report import write_report
    from bertsmith.journeys.source import write_report as write_run_report

    fine_tuned = [run for run in runs if (run / "finetune.json").exists() or (run / "search.json").exists()]
    if not fine_tuned:
        print(f"written: {write_run_report(runs, out)}")
        return
    if len(fine_tuned) < len(runs) or out is not None:
        raise ConfigError(f"{fine_tuned[0]}: a fine-tuning run has a page of its own; leave out --out and other runs")
    for run in fine_tuned:
        print(f"written: {write_report(run)}")
