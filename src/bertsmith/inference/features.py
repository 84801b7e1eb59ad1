"""Tagging by a small model over a frozen encoder (Devlin et al. 2019, §5.3): the same pipeline, another network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import CheckpointError
from bertsmith.inference.precision import Precision
from bertsmith.inference.tag import Tag
from bertsmith.inference.task_file import read_task_file, runs_on_of
from bertsmith.model.feature_tagger import BertWithFeatures
from bertsmith.tokenizer import WordPieceTokenizer


def load_feature_tagger(
    folder: str | Path, *, precision: Precision | None = None, device: torch.device | str | None = None
) -> Tag:
    """Returns the tagging pipeline over a folder that `bertsmith finetune features` has written.

    Args:
        folder: the model folder.
        precision: as in `RunsOn`.
        device: likewise.

    Raises:
        CheckpointError: the folder holds no such model.
    """
    values = read_task_file(folder)
    if values.get("task") != "features":
        raise CheckpointError(f"{folder}: was not written by `bertsmith finetune features`; ask for another pipeline")
    model: Any = BertWithFeatures.load(
        folder, values["labels"], values["layers"], values["top"], int(values["top_size"])
    )
    runs_on = runs_on_of(folder, precision=precision, device=device)
    return Tag(model, WordPieceTokenizer.load(folder), runs_on)
