"""Imitation: the text has no targets of its own; a model learns what a teacher's states are (`--teacher`).

For teachers without a masked-LM head, such as sentence encoders: MiniLM's relations need none (Wang et al. 2020).
Nothing is hidden, so teacher and student read the text as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.kernels.cross_entropy import PieceScores
from bertsmith.model import Backbone, ModelConfig, PreTrainingOutput
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.objectives.loss_term import LossTerm, Titled
from bertsmith.objectives.pretraining import LanguageModel, PreTrainingObjective, register


class NoLoss(LossTerm):
    """Of an objective that predicts no pieces; there is nothing to measure."""

    name, title = "imitation", "imitation"


@dataclass(frozen=True)
class Imitation(PreTrainingObjective):
    """A network without heads; every loss comes from the teacher."""

    @property
    def heads(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def terms(self) -> Sequence[Titled]:
        """None of its own."""
        return []

    def build_model(self, config: ModelConfig) -> Backbone:  # type: ignore[override]
        """Returns a fresh network of a shape."""
        return config.family.backbone(config, need_pooler=False)

    def load_model(self, folder: str | Path, **changes: Any) -> Backbone:  # type: ignore[override]
        """Returns the network of a folder."""
        return Backbone.from_pretrained(folder, need_pooler=False, **changes)

    def total_loss(self, figures: Mapping[str, float]) -> float:  # noqa: ARG002
        """Returns 0: nothing is learned from the text itself."""
        return 0.0

    def guessing_loss(self, num_pieces: int) -> float:  # noqa: ARG002
        """Returns 0."""
        return 0.0

    def run(self, model: nn.Module, batch: PreTrainingBatch) -> PreTrainingOutput:
        """Returns the states of a batch, and the scores of no piece at no place."""
        encoded = model(batch.tokens)
        nothing = encoded.hidden_states[:0]
        return PreTrainingOutput(PieceScores(nothing, nothing, nothing.new_empty(0)), None, None, encoded)

    def measure(self, output: PreTrainingOutput, batch: PreTrainingBatch) -> LossOutput:  # noqa: ARG002
        """Returns no loss and no figures."""
        return LossOutput(torch.zeros((), device=output.encoded.hidden_states.device), {})


register(Imitation("imitation", LanguageModel(NoLoss(), targets="nothing")))
