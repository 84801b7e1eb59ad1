"""`DistilledObjective`: masked LM, and a teacher's view of the same masks (Hinton et al. 2015; Sanh et al. 2019).

    loss = 2 · masked LM + Σ weight · what each distillation loss says

The teacher reads the batch that the student reads, without dropout and without gradients. It is no part of what is
trained: states and model folders hold the student alone, and a resumed run loads the teacher again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.settings import StreamNeeds
from bertsmith.errors import ConfigError
from bertsmith.model import ModelConfig, PretrainedModel, PreTrainingOutput
from bertsmith.model.folder import stored_heads
from bertsmith.objectives.distillation.loss import (
    DistillationLoss,
    Seen,
    distillation_loss_named,
    distillation_losses,
    recorded_qkv,
)
from bertsmith.objectives.loss_output import LossOutput, figure
from bertsmith.objectives.loss_term import Titled
from bertsmith.objectives.pretraining import LanguageModel, PreTrainingObjective
from bertsmith.options import option

HARD_WEIGHT = 2.0
"""Of the true pieces, as in DistilBERT's released training; of the others see `DistillationLoss.weight`."""


@dataclass(frozen=True)
class TeacherSettings:
    """Whose predictions are learned besides the text."""

    panel: ClassVar[str] = "Distillation"

    folder: str = option("", name="teacher", help="Also learn from this larger model: a folder, or org/name.")
    losses: tuple[str, ...] = option(
        (),
        name="teacher_loss",
        shown_default="soft where both predict pieces; states where both are equally wide, else relations",
        help="Distillation loss: soft, states or relations; once for each.",
    )
    temperature: float = option(2.0, name="teacher_temperature", help="Temperature of the soft targets, above 0.")
    weights: str = option("", name="teacher_weights", in_file_only=True, help="Fingerprint of the teacher's weights.")

    def __post_init__(self) -> None:
        """Checks names and ranges."""
        for name in self.losses:
            distillation_loss_named(name)
        if len(set(self.losses)) < len(self.losses):
            raise ConfigError("a teacher loss is named twice; name each once")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"teacher temperature {self.temperature} must be a number over 0")
        if self.losses and not self.folder:
            raise ConfigError("a teacher loss needs a --teacher")


@dataclass(frozen=True)
class DistilledObjective:
    """An objective over masked pieces, and what a teacher makes of them; an `Objective`.

    Attributes:
        base: what the text teaches.
        teacher: what else is learned, and from whom.
    """

    base: PreTrainingObjective
    teacher: TeacherSettings

    def __post_init__(self) -> None:
        """Checks that teacher and student read alike."""
        if not isinstance(self.base, PreTrainingObjective) or self.base.language_model.is_causal:
            raise ConfigError(f"--teacher does not go with {self.base.name}; use mlm, or imitation")

    @property
    def name(self) -> str:
        """That of the base: a recipe says the teacher beside it."""
        return self.base.name

    @property
    def language_model(self) -> LanguageModel:
        """The base's."""
        return self.base.language_model

    @property
    def needs(self) -> StreamNeeds:
        """What the base asks of the stream."""
        return self.base.needs

    @property
    def heads(self) -> tuple[str, ...]:
        """The base's."""
        return self.base.heads

    @property
    def folders(self) -> tuple[str, ...]:
        """The student's alone."""
        return self.base.folders

    @property
    def terms(self) -> Sequence[Titled]:
        """The base's, and what a teacher may be asked."""
        return [*self.base.terms, *distillation_losses().values()]

    @property
    def predicts(self) -> bool:
        """Whether both models predict pieces."""
        return self.base.language_model.targets == "masked"

    @property
    def perplexity_of(self) -> str:
        """The base's."""
        return self.base.perplexity_of

    def for_masking(self, kind: str) -> DistilledObjective:
        """Returns the objective over the base that suits a kind of masking."""
        return replace(self, base=self.base.for_masking(kind))

    def networks(self, config: ModelConfig) -> tuple[ModelConfig, ...]:
        """The student; what the teacher computes besides is not counted."""
        return self.base.networks(config)

    def build_model(self, config: ModelConfig) -> nn.Module:
        """Returns a fresh student."""
        return self.base.build_model(config)

    def load_model(self, folder: str | Path, **changes: Any) -> nn.Module:
        """Returns the student of a folder."""
        return self.base.load_model(folder, **changes)

    def models(self, model: Any) -> Mapping[str, PretrainedModel]:
        """The student alone is saved."""
        return self.base.models(model)

    def total_loss(self, figures: Mapping[str, float]) -> float:
        """Returns the weighted sum of the figures; NaN without them."""
        own = {f"{term.name}_loss": figures.get(f"{term.name}_loss", math.nan) for term in self.base.terms}
        total = HARD_WEIGHT * self.base.total_loss(own)
        for loss in distillation_losses().values():
            total += loss.weight * figures.get(f"{loss.name}_loss", 0.0)
        return total

    def guessing_loss(self, num_pieces: int) -> float:
        """Returns what guessing costs: log V a weight at most, and the bounds of the others."""
        soft = distillation_loss_named("soft").weight * self.teacher.temperature**2
        return HARD_WEIGHT * self.base.guessing_loss(num_pieces) + soft * math.log(num_pieces) + 2.0

    @cached_property
    def network(self) -> PretrainedModel:
        """The teacher, loaded when it is first asked.

        Raises:
            CheckpointError: the folder is unusable.
            ConfigError: it has no masked-LM head, and that is asked.
        """
        folder = self.teacher.folder
        if self.predicts and "masked_lm" not in stored_heads(folder):
            raise ConfigError(
                f"{folder}: the teacher has no masked-LM head; let its states teach: --objective imitation"
            )
        # 句对头不参与比较：老师没有它也行
        network = replace(self.base, pair_task=None).load_model(folder)
        return network.eval().requires_grad_(False)

    def losses(self, student: ModelConfig) -> list[DistillationLoss]:
        """Returns what a student of a shape is compared by.

        Raises:
            ConfigError: a loss compares what the two do not have, or have in unequal width.
        """
        widths = student.hidden_size, self.network.config.hidden_size
        usual = ("soft",) * self.predicts + ("states" if widths[0] == widths[1] else "relations",)
        found = [distillation_loss_named(name) for name in self.teacher.losses or usual]
        for loss in found:
            if loss.is_of_masks and not self.predicts:
                raise ConfigError(f"--teacher-loss {loss.name} compares predictions; {self.base.name} makes none")
            if loss.is_equally_wide and widths[0] != widths[1]:
                raise ConfigError(
                    f"--teacher-loss {loss.name} compares states of equal width; the student has {widths[0]} and the"
                    f" teacher {widths[1]}: use relations"
                )
        return found

    def __call__(self, model: PretrainedModel, batch: PreTrainingBatch) -> LossOutput:
        """Returns the weighted loss and all figures.

        Args:
            model: the student.
            batch: as the base wants it.
        """
        (output, student), losses = self._seen(model, batch), self.losses(model.config)
        hard = self.base.measure(output, batch)
        device = batch.tokens.input_ids.device
        with torch.no_grad():
            # 老师看同一批、同样的掩码；不求梯度、不用 dropout：它的话每一步都一样
            _, teacher = self._seen(self.network.to(device), batch)
        loss, sums = HARD_WEIGHT * hard.loss, dict(hard.sums)
        for term in losses:
            value, count = term(student, teacher, self.teacher.temperature)
            # 除以全局批次的个数：各份的损失加起来正是整批的
            whole = batch.global_masked if term.is_of_masks else batch.global_tokens
            loss = loss + term.weight * value / max(1, whole)
            sums[f"{term.name}_loss"] = (figure(value), count)
        return LossOutput(loss, sums)

    def _seen(self, model: PretrainedModel, batch: PreTrainingBatch) -> tuple[PreTrainingOutput, Seen]:
        attention = model.backbone.encoder.blocks[-1].attention
        with recorded_qkv(model.backbone) as recorded:
            output = self.base.run(model, batch)
        qkv = recorded[-1].view(-1, 3, attention.num_heads, attention.head_size)
        return output, Seen(output.mlm_logits, output.encoded.hidden_states, qkv, list(batch.tokens.lengths))
