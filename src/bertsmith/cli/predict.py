"""`bertsmith fill-mask`, `predict` and `embed`: using a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[Path, typer.Option(help="Model folder.")]


def fill_mask(
    text: Annotated[str, typer.Argument(help="A text with one or more [MASK].")],
    model: ModelOption,
    top_k: Annotated[int, typer.Option(min=1, help="Candidates for each mask.")] = 5,
) -> None:
    """Fill the masks in a text."""
    from rich.console import Console
    from rich.table import Table

    from bertsmith.inference import load_pipeline

    for number, candidates in enumerate(load_pipeline("fill-mask", model)(text, top_k=top_k), 1):
        table = Table(title=f"mask {number}", title_justify="left")
        table.add_column("piece")
        table.add_column("probability", justify="right")
        for candidate in candidates:
            table.add_row(candidate.piece, f"{candidate.probability:.1%}")
        Console().print(table)


def predict(
    texts: Annotated[list[str] | None, typer.Argument(help="Inputs; the fields of one with tabs between.")] = None,
    *,
    model: ModelOption,
    adapter: Annotated[Path | None, typer.Option(help="Folder of an adapter over that model.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Text file: one input a line.")] = None,
    pairs: Annotated[
        bool | None, typer.Option("--pairs/--single", help="Two texts in a line, or one; default: as the model says.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write instead of printing: .jsonl with all details, otherwise TSV.")
    ] = None,
) -> None:
    """Predict with a fine-tuned model; prints the prediction, its probability and the input.

    A line is a text or two (classify, multilabel, regress), a text (tag), a question and its passage (answer), a
    context and its choices (choose), a query and a text (rank), with tabs between.
    """
    import json
    from itertools import chain

    from bertsmith.data.decoding import read_lines
    from bertsmith.errors import InputError
    from bertsmith.files import atomic_path
    from bertsmith.finetune.predict import Predictor, as_line

    if file is not None and not file.is_file():
        raise InputError(f"{file}: no such file")
    from_file = (line.strip() for line in read_lines(file)) if file is not None else iter(())
    predictor = Predictor.load(model, adapter=adapter, pairs=pairs)
    records = predictor.predict_lines(chain(texts or [], (line for line in from_file if line)))
    first = next(records, None)
    if first is None:
        raise InputError("nothing to predict; give texts, or --file with one input a line")
    if out is None:
        for record in chain([first], records):
            print(as_line(record))
        return
    count = 0
    with atomic_path(out) as temporary, temporary.open("w", encoding="utf-8") as handle:
        for record in chain([first], records):
            line = json.dumps(record, ensure_ascii=False) if out.suffix == ".jsonl" else as_line(record)
            handle.write(line + "\n")
            count += 1
    print(f"{count} predictions in {out}")


def embed(
    file: Annotated[Path, typer.Argument(help="Text file: one text a line.")],
    model: ModelOption,
    out: Annotated[Path, typer.Option(help="NumPy file to write: [N, H] float32, unit length.")],
) -> None:
    """Turn every line of a file into a vector."""
    import numpy as np

    from bertsmith.data.decoding import read_lines
    from bertsmith.errors import InputError
    from bertsmith.files import atomic_path
    from bertsmith.inference import load_pipeline

    if not file.is_file():
        raise InputError(f"{file}: no such file")
    texts = [line.strip() for line in read_lines(file) if line.strip()]
    if not texts:
        raise InputError(f"{file}: holds no text")
    vectors = load_pipeline("embed", model)(texts)
    with atomic_path(out) as temporary, temporary.open("wb") as handle:
        np.save(handle, vectors)
    print(f"{vectors.shape[0]} vectors of {vectors.shape[1]} numbers in {out}")
