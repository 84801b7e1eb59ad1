"""`bertsmith import`: from a foreign checkpoint to a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_model(
    source: Annotated[
        Path, typer.Argument(help="Folder with bert_model.ckpt.* and vocab.txt, or with pytorch_model.bin.")
    ],
    out: Annotated[Path, typer.Option(help="Model folder; empty or not there yet.")],
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--no-lowercase",
            help="Lower-case the text; default: by its files, folder name or vocabulary.",
        ),
    ] = None,
) -> None:
    """Turn a TensorFlow checkpoint or pickled PyTorch weights into a model folder."""
    from bertsmith.interop import import_checkpoint

    found = import_checkpoint(source, out, lowercase=lowercase)
    config = found.config
    shape = f"{config.num_hidden_layers} layers of {config.hidden_size}, {config.vocab_size:,} pieces"
    print(f"{found.kind}: {found.architecture}, {shape}, {found.num_tensors} tensors in {out}")
    if found.lowercase is None:
        print(f"no tokenizer written: {found.lowercase_reason}")
    else:
        print(f"the tokenizer {'lower-cases' if found.lowercase else 'keeps capitals'}: {found.lowercase_reason}")
