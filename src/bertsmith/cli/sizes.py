"""`bertsmith sizes`: what each size costs, and what this machine could make of it, before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

    from bertsmith.model.sizes import BatchCosts


def sizes(
    size: Annotated[
        list[str] | None, typer.Argument(help="Names or L/H such as 6/384; default: all names.", show_default=False)
    ] = None,
    family: Annotated[str, typer.Option(help="Architecture: bert, roberta, modernbert and others.")] = "bert",
    vocab_size: Annotated[int, typer.Option(help="Pieces in the vocabulary.")] = 30522,
    batch: Annotated[int, typer.Option(help="Sequences in a batch.")] = 32,
    length: Annotated[int, typer.Option(help="Tokens in a sequence, at most 512.")] = 128,
    published: Annotated[bool, typer.Option("--all", help="Add the 24 small published models.")] = False,
    measure: Annotated[bool, typer.Option(help="Measure the matmul speed of this machine.")] = True,
) -> None:
    """Show parameters, operations, memory and the speed to expect of model sizes."""
    from rich.console import Console
    from rich.table import Column, Table

    from bertsmith.kernels.layers import best_compute_dtype, best_device
    from bertsmith.kernels.speed import measure_matmul_flops
    from bertsmith.model import NAMED_SIZES, family_named
    from bertsmith.model.sizes import PUBLISHED_SHAPES, BatchCosts

    asked = list(size or ([] if published else NAMED_SIZES))
    asked += [f"{layers}/{hidden}" for layers, hidden in PUBLISHED_SHAPES] if published else []
    shape = family_named(family).config
    configs = [shape.named(name, vocab_size=vocab_size, pad_token_id=0) for name in asked]
    # 同一形状只占一行：tiny 与 2/128 是同一个模型
    costs = {(c.num_hidden_layers, c.hidden_size): BatchCosts(c, batch, length) for c in configs}
    device = best_device()
    dtype = best_compute_dtype(device)

    headers = ["params\n embed.", "encoder", "pooler", "heads", "total", "FLOPs\n infer", "train"]
    headers += ["memory\n weights", "AdamW", "activ."]
    caption = (
        f"{vocab_size:,} pieces, batches of {batch:,} x {length} tokens. FLOPs per token: a multiply-add is two; train"
        " is forward and backward, logits at 15 % of the tokens. Memory: weights float32; AdamW holds gradients and"
        f" two moments; activ. is what a step keeps for its backward pass in {str(dtype).removeprefix('torch.')}."
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
    """Writes the figures of one row, in the order of the columns."""
    from bertsmith.model.sizes import ParameterCounts

    counts = ParameterCounts.of(cost.config)
    parameters = (counts.embeddings, counts.encoder, counts.pooler, counts.heads, counts.total)
    flops = (cost.inference_flops_per_token, cost.training_flops_per_token)
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
