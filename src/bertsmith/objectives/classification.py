"""The losses over whole texts: one class, several labels, or a number (Devlin et al. 2019, §4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.model import ModelForSequenceClassification
from bertsmith.objectives.labelled import LabelledBatch, LabelledObjective
from bertsmith.objectives.loss_output import LossOutput, figure


class ClassificationObjective(LabelledObjective):
    """Mean of -log p(true class), in nats, with accuracy."""

    def __init__(self, class_weights: Sequence[float] | None = None) -> None:
        """Weighs the classes.

        Args:
            class_weights: of each class, positive; the mean is then over weights, not texts. None for all alike.

        Raises:
            ConfigError: a weight is not positive.
        """
        if class_weights is not None and not all(weight > 0 for weight in class_weights):
            raise ConfigError(f"class weights {list(class_weights)} must be positive")
        self.class_weights = None if class_weights is None else torch.tensor(class_weights)

    def rows(self, model: ModelForSequenceClassification, batch: LabelledBatch) -> Tensor:
        """Returns a row for each text."""
        logits: Tensor = model(batch.tokens).float()
        return logits

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures logits [N, K] against labels [N] int64; sums `loss` and `accuracy`."""
        # 论文的损失：log softmax(C Wᵀ) 在正确类别上的值；加权让少见的类别不被淹没
        weights = None if self.class_weights is None else self.class_weights.to(rows.device)
        loss = F.cross_entropy(rows, batch.labels, weight=weights)
        count = len(batch.labels)
        hits = figure((rows.detach().argmax(-1) == batch.labels).sum())
        return LossOutput(loss, {"loss": (figure(loss) * count, count), "accuracy": (hits, count)})


class MultiLabelObjective(LabelledObjective):
    """Binary cross-entropy of every label by itself, in nats, averaged over texts and labels."""

    def rows(self, model: ModelForSequenceClassification, batch: LabelledBatch) -> Tensor:
        """Returns a row for each text."""
        logits: Tensor = model(batch.tokens).float()
        return logits

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures logits [N, K] against labels [N, K], 0 or 1; sums `loss`."""
        # 标签互不排斥：每个标签各做一次是非判断，用 sigmoid 而不是 softmax
        loss = F.binary_cross_entropy_with_logits(rows, batch.labels.float())
        return LossOutput(loss, {"loss": (figure(loss) * len(batch.labels), len(batch.labels))})

    def imitation(self, rows: Tensor, taught: Tensor) -> Tensor:
        """Compares every label by itself: yes against no."""
        # sigmoid(z) 就是 (z, 0) 的 softmax：每个标签自成一行
        own, other = (torch.stack([scores, torch.zeros_like(scores)], -1).flatten(0, 1) for scores in (rows, taught))
        return super().imitation(own, other)


class RegressionObjective(LabelledObjective):
    """Mean squared error of the model's one output; with standardised labels, guessing their mean gives 1."""

    def rows(self, model: ModelForSequenceClassification, batch: LabelledBatch) -> Tensor:
        """Returns a row of one number for each text."""
        logits: Tensor = model(batch.tokens).float()
        return logits

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures numbers [N, 1] against labels [N] float; sums `loss`."""
        loss = F.mse_loss(rows.squeeze(-1), batch.labels.float())
        return LossOutput(loss, {"loss": (figure(loss) * len(batch.labels), len(batch.labels))})

    def imitation(self, rows: Tensor, taught: Tensor) -> Tensor:
        """Returns the mean squared difference: numbers do not compete."""
        return F.mse_loss(rows, taught)
