"""The losses over whole texts: one class, several labels, or a number (Devlin et al. 2019, §4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from bertsmith.errors import ConfigError
from bertsmith.model import ModelForSequenceClassification
from bertsmith.objectives.labelled import LabelledBatch
from bertsmith.objectives.loss_output import LossOutput


class ClassificationObjective:
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

    def __call__(self, model: ModelForSequenceClassification, batch: LabelledBatch) -> LossOutput:
        """Measures a classifier on a batch with labels [N] int64; sums `loss` and `accuracy`."""
        # 论文的损失：log softmax(C Wᵀ) 在正确类别上的值；加权让少见的类别不被淹没
        logits = model(batch.tokens).float()
        weights = None if self.class_weights is None else self.class_weights.to(logits.device)
        loss = F.cross_entropy(logits, batch.labels, weight=weights)
        count = len(batch.labels)
        hits = int((logits.detach().argmax(-1) == batch.labels).sum())
        return LossOutput(loss, {"loss": (float(loss.detach()) * count, count), "accuracy": (hits, count)})


class MultiLabelObjective:
    """Binary cross-entropy of every label by itself, in nats, averaged over texts and labels."""

    def __call__(self, model: ModelForSequenceClassification, batch: LabelledBatch) -> LossOutput:
        """Measures a multi-label classifier on a batch with labels [N, K], 0 or 1; sums `loss`."""
        # 标签互不排斥：每个标签各做一次是非判断，用 sigmoid 而不是 softmax
        loss = F.binary_cross_entropy_with_logits(model(batch.tokens).float(), batch.labels.float())
        return LossOutput(loss, {"loss": (float(loss.detach()) * len(batch.labels), len(batch.labels))})


class RegressionObjective:
    """Mean squared error of the model's one output; with standardised labels, guessing their mean gives 1."""

    def __call__(self, model: ModelForSequenceClassification, batch: LabelledBatch) -> LossOutput:
        """Measures a regressor on a batch with labels [N] float; sums `loss`."""
        loss = F.mse_loss(model(batch.tokens).float().squeeze(-1), batch.labels.float())
        return LossOutput(loss, {"loss": (float(loss.detach()) * len(batch.labels), len(batch.labels))})
