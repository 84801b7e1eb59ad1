"""The losses of fine-tuning, over rows of scores that compete for one answer.

Whole texts (Devlin et al. 2019, §4.1): one class, several labels, or a number. Every word: a tag (§5.3). Every token:
where an answer starts and ends (§4.2, §4.3). Several texts: which choice is right (§4.4). A student learns the rows of
a teacher by `imitation`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.errors import ConfigError
from bertsmith.model import (
    ModelForMultipleChoice,
    ModelForQuestionAnswering,
    ModelForSequenceClassification,
    ModelForTokenClassification,
)
from bertsmith.objectives.pretraining import LossOutput, figure

TEMPERATURE = 2.0
"""By which the scores of student and teacher are divided before they are compared (Hinton et al. 2015, §2)."""


@dataclass(frozen=True)
class LabelledBatch:
    """N sequences and their `labels`, as the objective reads them.

    Whole texts may have `weights` [N] of mean 1; where labels are of tokens [T], `weights` are so, too.
    """

    tokens: RaggedBatch
    labels: Tensor
    weights: Tensor | None = None

    def to(self, device: torch.device | str) -> LabelledBatch:
        """Returns the same batch on another device."""
        weights = None if self.weights is None else self.weights.to(device)
        return LabelledBatch(self.tokens.to(device), self.labels.to(device), weights)

    @property
    def reduction(self) -> str:
        """How torch reduces the losses of the batch before `mean_of`."""
        return "mean" if self.weights is None else "none"

    def mean_of(self, losses: Tensor) -> Tensor:
        """Returns the mean of losses [N, ...], each text times its weight; without weights it was taken already."""
        # 除以条数而不是本批权重之和：否则一条一批时，权重就没有了作用
        return losses if self.weights is None else (losses.reshape(len(self.weights), -1).mean(1) * self.weights).mean()


class LabelledObjective(ABC):
    """A loss over rows of scores; the scores of a row compete for one answer."""

    @abstractmethod
    def rows(self, model: Any, batch: LabelledBatch) -> Tensor:
        """Returns what a model says of a batch: [R, C] float32, minus infinity where a row is shorter than others."""

    @abstractmethod
    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Returns the loss of `rows` and its sums: `loss` and, where there is a right answer, `accuracy`."""

    def __call__(self, model: Any, batch: LabelledBatch) -> LossOutput:
        """Measures a model on a batch."""
        return self.measure(self.rows(model, batch), batch)

    def imitation(self, rows: Tensor, taught: Tensor) -> Tensor:
        """Returns T² · KL(teacher ‖ student), averaged over the rows, in nats."""
        real = torch.isfinite(taught)
        # 老师认为“也有几分像”的答案，是硬标签里没有的知识；温度让这几分看得见
        own, other = ((scores / TEMPERATURE).log_softmax(-1).masked_fill(~real, 0.0) for scores in (rows, taught))
        divergence = (F.kl_div(own, other, reduction="none", log_target=True) * real).sum()
        return divergence * TEMPERATURE**2 / max(1, len(rows))


class _TextObjective(LabelledObjective):
    """A loss over whole texts: a row for each."""

    def rows(self, model: ModelForSequenceClassification, batch: LabelledBatch) -> Tensor:
        logits: Tensor = model(batch.tokens).float()
        return logits


class ClassificationObjective(_TextObjective):
    """Mean of -log p(true class), in nats, with accuracy.

    Args:
        class_weights: of each class, positive; the mean is then over weights, not texts. None for all alike.
    """

    def __init__(self, class_weights: Sequence[float] | None = None) -> None:
        if class_weights is not None and not all(weight > 0 for weight in class_weights):
            raise ConfigError(f"class weights {list(class_weights)} must be positive")
        self.class_weights = None if class_weights is None else torch.tensor(class_weights)

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures logits [N, K] against labels [N] int64."""
        # 论文的损失：log softmax(C Wᵀ) 在正确类别上的值；加权让少见的类别不被淹没
        weights = None if self.class_weights is None else self.class_weights.to(rows.device)
        losses = F.cross_entropy(rows, batch.labels, weight=weights, reduction=batch.reduction)
        if weights is not None and batch.weights is not None:
            losses = losses / weights[batch.labels].mean()
        return _measured(batch.mean_of(losses), len(batch.labels), rows.detach().argmax(-1) == batch.labels)


class MultiLabelObjective(_TextObjective):
    """Binary cross-entropy of every label by itself, in nats, averaged over texts and labels."""

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures logits [N, K] against labels [N, K], 0 or 1."""
        # 标签互不排斥：每个标签各做一次是非判断，用 sigmoid 而不是 softmax
        losses = F.binary_cross_entropy_with_logits(rows, batch.labels.float(), reduction=batch.reduction)
        return _measured(batch.mean_of(losses), len(batch.labels))

    def imitation(self, rows: Tensor, taught: Tensor) -> Tensor:
        """Compares every label by itself: yes against no."""
        # sigmoid(z) 就是 (z, 0) 的 softmax：每个标签自成一行
        own, other = (torch.stack([scores, torch.zeros_like(scores)], -1).flatten(0, 1) for scores in (rows, taught))
        return super().imitation(own, other)


class RegressionObjective(_TextObjective):
    """Mean squared error of the model's one output; with standardised labels, guessing their mean gives 1."""

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures numbers [N, 1] against labels [N] float."""
        losses = F.mse_loss(rows.squeeze(-1), batch.labels.float(), reduction=batch.reduction)
        return _measured(batch.mean_of(losses), len(batch.labels))

    def imitation(self, rows: Tensor, taught: Tensor) -> Tensor:
        """Returns the mean squared difference: numbers do not compete."""
        return F.mse_loss(rows, taught)


class TaggingObjective(LabelledObjective):
    """Mean of -log p(true tag) over words, read at first pieces, in nats; labels are [T], elsewhere `NO_LABEL`."""

    def rows(self, model: ModelForTokenClassification, batch: LabelledBatch) -> Tensor:
        """Returns a row for each word."""
        # 先挑出词首再算损失：续接词片和特殊符号没有标签，不必算它们的 logits 损失
        words = (batch.labels != NO_LABEL).nonzero().squeeze(-1)
        logits: Tensor = model(batch.tokens).index_select(0, words).float()
        return logits

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures logits [W, K] of the words against their labels, by word."""
        read = batch.labels != NO_LABEL
        labels = batch.labels[read]
        losses = F.cross_entropy(rows, labels, reduction="sum" if batch.weights is None else "none")
        total = losses if batch.weights is None else (losses * batch.weights[read]).sum()
        return _measured(total / max(1, len(labels)), len(labels), rows.detach().argmax(-1) == labels)


class SpanObjective(LabelledObjective):
    """Mean of -log p(start) and -log p(end), in nats; the probabilities are over the tokens of a sequence.

    Labels are [N, 2] int64: the first and last token of the answer, counted within the sequence; both 0, the `[CLS]`,
    where it holds no answer. The accuracy is the share of sequences with start and end both right.
    """

    def rows(self, model: ModelForQuestionAnswering, batch: LabelledBatch) -> Tensor:
        """Returns [2 N, S]: a row for the start in each sequence, then one for each end."""
        # 起点和终点各是一次“在所有词元里选一个”的分类；没有答案时两者都指向 [CLS]
        scores = (part.float().unsqueeze(-1) for part in model(batch.tokens))
        return torch.cat([batch.tokens.pad(each, fill=-torch.inf).squeeze(-1) for each in scores])

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures the scores of starts and ends."""
        start, end = rows.chunk(2)
        losses = F.cross_entropy(start, batch.labels[:, 0]) + F.cross_entropy(end, batch.labels[:, 1])
        predicted = torch.stack([start.detach().argmax(-1), end.detach().argmax(-1)], 1)
        return _measured(losses / 2, len(batch.labels), (predicted == batch.labels).all(1))


class ChoiceObjective(LabelledObjective):
    """Mean of -log p(right choice), in nats, with accuracy; the softmax is over the choices of a question.

    Labels are [Q] int64, the right choice, where all questions have equally many; or [Q, 2], how many choices there are
    and which is right.
    """

    def rows(self, model: ModelForMultipleChoice, batch: LabelledBatch) -> Tensor:
        """Returns a row for each question."""
        # 各选项与题目分别成句，各得一个分数，再在同一题的选项之间做 softmax：头只要一个向量
        scores = model(batch.tokens, 1).float().squeeze(-1)
        equal = batch.tokens.num_sequences // len(batch.labels)
        # 选项数不同的题补成矩形：负无穷的空位在 softmax 里概率为零，也没有梯度
        rows = scores.split(equal if batch.labels.dim() == 1 else batch.labels[:, 0].tolist())
        return pad_sequence(list(rows), batch_first=True, padding_value=-torch.inf)

    def measure(self, rows: Tensor, batch: LabelledBatch) -> LossOutput:
        """Measures the scores of choices, by question."""
        right = batch.labels if batch.labels.dim() == 1 else batch.labels[:, 1]
        return _measured(F.cross_entropy(rows, right), len(right), rows.detach().argmax(-1) == right)


def _measured(loss: Tensor, count: int, hits: Tensor | None = None) -> LossOutput:
    """Returns a mean loss over `count` items, with `hits` [count] bool where there is a right answer."""
    accuracy = {} if hits is None else {"accuracy": (figure(hits.sum()), count)}
    return LossOutput(loss, {"loss": (figure(loss) * count, count), **accuracy})
