"""Tagging by a small model over a frozen encoder (Devlin et al. 2019, §5.3): the same pipeline, another network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bertsmith.errors import CheckpointError
from bertsmith.inference.tag import Tag
from bertsmith.inference.task_file import TaskFile, read_settings
from bertsmith.model import ModelConfig
from bertsmith.model.feature_tagger import FeatureTagger, Top


@dataclass(frozen=True)
class FeatureSettings(TaskFile):
    """What `task.json` says of the network.

    Attributes:
        labels: the tags, in the order of the outputs.
        layers: which states of the encoder are its features, as in `LayerFeatures`.
        tagger_head: what reads them.
        tagger_head_size: width of each direction of a BiLSTM.
    """

    required: ClassVar[tuple[str, ...]] = (*TaskFile.required, "labels", "layers", "tagger_head", "tagger_head_size")

    labels: tuple[str, ...] = ()
    layers: str | int = ""
    tagger_head: Top = "linear"
    tagger_head_size: int = 0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: there is no label in a file, or a BiLSTM has no width.
        """
        super().__post_init__()
        if self.task and not self.labels:
            raise ValueError("labels is empty")
        if self.tagger_head_size < (self.tagger_head == "bilstm"):
            raise ValueError(f"tagger_head {self.tagger_head!r} and tagger_head_size {self.tagger_head_size}")


class FeatureTag(Tag, name="features"):
    """Tags words as `Tag` does, in a folder that `bertsmith finetune features` has written."""

    architectures = (FeatureTagger,)

    @classmethod
    def is_for(cls, _architecture: str, _config: ModelConfig) -> bool:
        """Returns False: only `task.json` tells such a folder from that of a bare encoder."""
        return False

    @classmethod
    def model_in(cls, folder: str | Path) -> Any:
        """Loads the encoder, and the network that `task.json` describes."""
        told = read_settings(folder, FeatureSettings, cls.name)
        if told.task != cls.name:
            raise CheckpointError(
                f"{folder}: was not written by `bertsmith finetune features`; ask for another pipeline"
            )
        shape = (told.layers, told.tagger_head, told.tagger_head_size)
        return FeatureTagger.load(folder, told.labels, *shape)  # type: ignore[arg-type]
