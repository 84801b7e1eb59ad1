"""Pipelines as the bytes of a model folder: how an estimator is pickled without a pickled tensor in it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.errors import ConfigError
from bertsmith.inference.embed import Embed
from bertsmith.inference.loading import load_pipeline
from bertsmith.inference.pipeline import Pipeline
from bertsmith.inference.precision import Precision
from bertsmith.inference.sentence_folder import SentenceFolder, write_sentence_folder

WEIGHTS, TEXTS = (".safetensors",), (".json", ".txt", ".model")
"""Endings of what a model folder is made of; anything else in it is left out."""


@dataclass(frozen=True)
class PackedPipeline:
    """A pipeline as its files.

    Attributes:
        name: of the pipeline.
        files: path inside the folder → its bytes: safetensors, JSON and text.
        precision: in which it computes; None for the usual one.
    """

    name: str
    files: Mapping[str, bytes] = field(repr=False)
    precision: Precision | None = None

    @classmethod
    def of(cls, pipeline: Pipeline, texts: Mapping[str, bytes], precision: Precision | None = None) -> PackedPipeline:
        """Packs a pipeline; `texts` are files that the run wrote beside the weights, such as `task.json`."""
        with tempfile.TemporaryDirectory(prefix="bertsmith-") as place:
            write_folder(pipeline, Path(place))
            return cls(pipeline.name, {**texts, **files_in(Path(place))}, precision)

    def unpacked(self) -> Any:
        """Returns the pipeline."""
        with tempfile.TemporaryDirectory(prefix="bertsmith-") as place:
            for name, content in self.files.items():
                path = Path(place) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return load_pipeline(self.name, place, precision=self.precision)


def write_folder(pipeline: Pipeline, folder: Path) -> None:
    """Writes the model and the tokenizer of a live pipeline, and how it pools where it makes vectors.

    Raises:
        ConfigError: the pipeline has no model of its own to save, or pools in a way that no folder can say.
    """
    model = getattr(pipeline.engine, "model", None)
    if model is None or getattr(pipeline.engine, "kind", "torch") != "torch":
        raise ConfigError("the pipeline runs on another engine than torch; load it with engine='torch'")
    model.save_pretrained(folder)
    pipeline.tokenizer.save(folder, model_max_length=pipeline.config.position_limit)
    if isinstance(pipeline, Embed):
        if pipeline.pooling not in ("mean", "cls", "max"):
            raise ConfigError(f"pooling {pipeline.pooling} has no place in a model folder; use mean, cls or max")
        says = SentenceFolder(
            pipeline.pooling,
            pipeline.max_length,
            normalize=pipeline.unit_length,
            prompts=pipeline.prompts,
            default_prompt=pipeline.default_prompt,
            similarity=pipeline.similarity,
        )
        write_sentence_folder(folder, says, pipeline.hidden_size)


def files_in(folder: Path, *, weights: bool = True) -> dict[str, bytes]:
    """Returns the files of a model folder by their paths inside it; with or without the weights."""
    endings = (*TEXTS, *WEIGHTS) if weights else TEXTS
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in endings
    }
