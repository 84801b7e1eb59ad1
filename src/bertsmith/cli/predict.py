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
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to classify.")] = None,
    *,
    model: ModelOption,
    file: Annotated[Path | None, typer.Option("--file", help="Text file: one text a line.")] = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="Each text is two, with a tab between.")] = False,
    out: Annotated[Path | None, typer.Option(help="TSV to write instead of printing.")] = None,
) -> None:
    """Classify texts with a fine-tuned model; prints label, probability and text."""
    from bertsmith.data.decoding import read_lines
    from bertsmith.errors import InputError
    from bertsmith.files import write_text
    from bertsmith.inference import load_pipeline

    chosen = list(texts or [])
    if file is not None:
        if not file.is_file():
            raise InputError(f"{file}: no such file")
        chosen += [line.strip() for line in read_lines(file) if line.strip()]
    if not chosen:
        raise InputError("no text to classify; give texts, or --file with one text a line")
    firsts, seconds = chosen, None
    if pairs:
        lacking = next((text for text in chosen if text.count("\t") != 1), None)
        if lacking is not None:
            raise InputError(f"{lacking[:60]!r} is not two texts with a tab between, as --pairs wants it")
        firsts, seconds = [list(column) for column in zip(*(text.split("\t") for text in chosen), strict=True)]
    predictions = load_pipeline("classify", model)(firsts, seconds)
    lines = [
        f"{prediction.label}\t{prediction.probabilities[prediction.label]:.4f}\t{text}"
        for prediction, text in zip(predictions, chosen, strict=True)
    ]
    if out is None:
        print("\n".join(lines))
    else:
        write_text(out, "\n".join(lines) + "\n")
        print(f"{len(lines)} predictions in {out}")


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
