"""Tagging by a small model over a frozen encoder (Devlin et al. 2019, §5.3): the same pipeline, another network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import torch

from bertsmith.errors import CheckpointError
from bertsmith.inference.precision import Precision
from bertsmith.inference.tag import Tag
from bertsmith.inference.task_file import inference_config_of, task_values
from bertsmith.model.feature_tagger import FeatureTagger, Top
from bertsmith.tokenizer import WordPieceTokenizer


def load_feature_tagger(
    folder: str | Path, *, precision: Precision | None = None, device: torch.device | str | None = None
) -> Tag:
    """Returns the tagging pipeline over a folder that `bertsmith finetune features` has written.

    Args:
        folder: the model folder.
        precision: as in `InferenceConfig`.
        device: likewise.

    Raises:
        CheckpointError: the folder holds no such model.
    """
    with task_values(folder) as values:
        if values.get("task") != "features":
            raise CheckpointError(
                f"{folder}: was not written by `bertsmith finetune features`; ask for another pipeline"
            )
        labels, layers, top, size = values["labels"], values["layers"], values["top"], int(values["top_size"])
        if not isinstance(layers, str | int) or top not in get_args(Top) or size < (top == "bilstm"):
            raise ValueError(f"layers {layers!r}, top {top!r} and top_size {size}")
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"labels {labels!r}")
    model: Any = FeatureTagger.load(folder, labels, layers, top, size)  # type: ignore[arg-type]
    inference = inference_config_of(folder, precision=precision, device=device)
    return Tag(model, WordPieceTokenizer.load(folder), inference)
