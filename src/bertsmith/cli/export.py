"""`bertsmith export`: from a model folder or an index to what other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Write a model or an index for other tools.", no_args_is_help=True)

ModelArgument = Annotated[Path, typer.Argument(help="Model folder, or org/name of the Hub.")]


@app.command("onnx")
def export_to_onnx(
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(help="NAME.onnx writes that file alone; any other name a new or empty folder."),
    ],
) -> None:
    """Write a model as ONNX, and check that ONNX Runtime computes the same."""
    from bertsmith.interop.onnx import export_onnx

    difference = export_onnx(model, out)
    names = ", ".join(sorted(path.name for path in out.iterdir())) if out.is_dir() else out.name
    print(f"{out}: {names}")
    print(f"ONNX Runtime gives the model's own outputs; largest difference {difference:.1e}")


@app.command("huggingface")
def export_to_huggingface(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(help="Folder to write; empty or not there yet.")],
) -> None:
    """Check that a model folder loads in full, and write a clean copy for transformers."""
    from bertsmith.interop.huggingface import export_huggingface

    left_aside = export_huggingface(model, out)
    print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    if left_aside:
        print(f"left aside, being no part of the architecture that config.json names: {', '.join(left_aside)}")


@app.command("passages")
def export_index(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
) -> None:
    """Write an index's passages and vectors as Parquet, for LanceDB, Qdrant, pgvector or FAISS."""
    from bertsmith.retrieval.parquet import export_passages

    print(f"{out}: {export_passages(index, out):,} passages")
