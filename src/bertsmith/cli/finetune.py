"""`bertsmith finetune`: from a pre-trained model and a labelled file to a model for one task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Fine-tune a model on labelled files.", no_args_is_help=True)


@app.callback()
def tasks() -> None:
    """Fine-tune a model on labelled files."""


@app.command("classify")
def classify(
    model: Annotated[Path, typer.Option(help="Model folder to start from.")],
    train: Annotated[Path, typer.Option(help="TSV: text TAB label, or with a header.")],
    dev: Annotated[Path, typer.Option(help="The same, to choose the best epoch by.")],
    out: Annotated[Path, typer.Option(help="Output folder; the model goes to OUT/model.")],
    text_column: Annotated[str | None, typer.Option(help="Name or number (from 0) of the text's column.")] = None,
    pair_column: Annotated[str | None, typer.Option(help="Name or number of the second text's column.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Name or number of the label's column.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training file.")] = 3,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts in a step.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate; tiny and mini models: about 3e-4.")] = 5e-5,
    max_length: Annotated[int, typer.Option(min=0, help="Most pieces of a text; 0: what the model reads.")] = 0,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    encoding: Annotated[str, typer.Option(help="Of the files: auto, or a codec such as gb18030.")] = "auto",
) -> None:
    """Train a classifier of texts, or of pairs of texts."""
    from rich.console import Console

    from bertsmith.finetune.classify import FineTuningSettings, fine_tune_classifier
    from bertsmith.finetune.readers import Columns, read_labelled_tsv
    from bertsmith.model.layers import best_device

    columns = Columns(_column(text_column), _column(pair_column), _column(label_column))
    settings = FineTuningSettings(
        epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, max_length=max_length, seed=seed
    )
    scores = fine_tune_classifier(
        model,
        read_labelled_tsv(train, columns, encoding=encoding),
        read_labelled_tsv(dev, columns, encoding=encoding),
        out,
        settings,
        console=Console(),
        device=best_device(),
    )
    per_class = ", ".join(f"{label} {value:.3f}" for label, value in scores.f1.items())
    print(
        f"dev: accuracy {scores.accuracy:.3f}, macro F1 {scores.macro_f1:.3f} ({per_class}); model in {out / 'model'}"
    )


def _column(value: str | None) -> str | int | None:
    return int(value) if value is not None and value.isdecimal() and value.isascii() else value
