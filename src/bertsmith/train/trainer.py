"""`BertTrainer`: forward, backward, clip, step, in plain sight.

The trainer knows models and objectives in general; pre-training and fine-tuning both run on it. It keeps no random
state: dropout is seeded anew at every step from (seed, step), so a resumed run draws what an undisturbed one draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn

from bertsmith.errors import ConfigError, TrainingError
from bertsmith.objectives.measure import Measure, RunningAverages, average_of
from bertsmith.seeding import torch_seed
from bertsmith.train.optimizer import build_optimizer, learning_rate_at

ModelT = TypeVar("ModelT", bound=nn.Module)
Objective = Callable[[Any, Any], Measure]
"""Maps a model and a batch to a loss and figures."""


class Batch(Protocol):
    """What every objective's batch can do."""

    def to(self, device: torch.device | str) -> Any:
        """Returns the same batch on another device."""


@dataclass(frozen=True)
class TrainerSettings:
    """How a model is trained.

    Attributes:
        total_steps: length of the schedule; the rate is 0 after it.
        learning_rate: its peak.
        warmup_share: share of the steps in which the rate rises, in [0, 1].
        weight_decay: decoupled decay of matrices; 0.01 in the paper.
        clip_norm: gradients are scaled down to this global norm.
        layer_decay: the rate of each layer is that of the layer above times this, see `parameter_groups`.
        rates: factors on the rate by glob pattern of parameter names, see there.
        seed: of dropout.
    """

    total_steps: int
    learning_rate: float
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    layer_decay: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.total_steps < 1:
            raise ConfigError(f"total steps {self.total_steps} must be at least 1")
        if not 0.0 <= self.warmup_share <= 1.0:
            raise ConfigError(f"warm-up share {self.warmup_share} is outside [0, 1]")
        if self.learning_rate <= 0 or self.clip_norm <= 0:
            raise ConfigError("learning rate and clipping norm must be positive")


class BertTrainer(Generic[ModelT]):
    """Trains a model on batches.

    Attributes:
        step: number of steps taken; part of the saved state.
    """

    def __init__(
        self,
        model: ModelT,
        objective: Objective,
        settings: TrainerSettings,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.model: ModelT = model.to(device)
        self.objective = objective
        self.settings = settings
        self.device = torch.device(device)
        self.optimizer = build_optimizer(
            model, weight_decay=settings.weight_decay, layer_decay=settings.layer_decay, rates=settings.rates
        )
        self.step = 0
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    @property
    def learning_rate(self) -> float:
        """The rate of the coming step."""
        settings = self.settings
        return learning_rate_at(
            self.step,
            peak=settings.learning_rate,
            warmup_steps=round(settings.warmup_share * settings.total_steps),
            total_steps=settings.total_steps,
        )

    def train_batch(self, batch: Batch) -> Measure:
        """Takes one step.

        Args:
            batch: what the objective understands.

        Returns:
            The batch's measure before the step.

        Raises:
            TrainingError: the loss or its gradient is not finite; the weights are as before the step.
        """
        self.model.train()
        # 每一步重设 dropout 的种子：断点续训不需要保存任何随机状态，也能逐位一致
        torch.manual_seed(torch_seed(self.settings.seed, "train/dropout", self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * group["rate_factor"]
        measure = self.objective(self.model, batch.to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        measure.loss.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self.settings.clip_norm)
        # 先检查再更新：坏的梯度绝不能进入权重，否则存下的状态也坏了
        if not torch.isfinite(norm) or not torch.isfinite(measure.loss):
            raise TrainingError(
                f"step {self.step}: the loss or its gradient is not finite; lower the learning rate, or use float32"
            )
        self.optimizer.step()
        self.step += 1
        return measure

    def train_epoch(
        self, batches: Iterable[Batch], *, after_step: Callable[[Measure], None] | None = None
    ) -> dict[str, float]:
        """Takes a step on every batch, or until the schedule ends.

        Args:
            batches: one pass over the data.
            after_step: called with each step's measure, for progress and checkpoints.

        Returns:
            The figures averaged over the pass.
        """
        running = RunningAverages()
        for batch in batches:
            measure = self.train_batch(batch)
            running.add(measure.sums)
            if after_step is not None:
                after_step(measure)
            if self.step >= self.settings.total_steps:
                break
        return running.averages()

    @torch.inference_mode()
    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Returns the figures averaged over batches, without dropout and without learning."""
        self.model.eval()
        return average_of(self.objective(self.model, batch.to(self.device)) for batch in batches)
