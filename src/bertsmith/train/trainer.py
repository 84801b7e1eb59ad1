"""`BertTrainer`: forward, backward, clip, step, in plain sight.

- it keeps no random state: dropout is seeded anew at every step from (seed, step), so a resumed run draws what an
  undisturbed one draws
- a batch whose loss or gradient is not finite, or whose loss is absurd, is skipped: the weights stay as they are, the
  step counts; too many of them end the run
- on a GPU a step reads nothing back: whether a batch is skipped is decided and counted there, and told when somebody
  asks (`read_skips`); the host meanwhile draws the next batches
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError, TrainingError
from bertsmith.kernels.processor import ASYNCHRONOUS
from bertsmith.objectives import Figure, LossOutput, RunningAverages
from bertsmith.seeding import torch_seed
from bertsmith.settings import Checked, option
from bertsmith.train.distributed import Ranks
from bertsmith.train.optimizer import Schedule, build_optimizer, learning_rate_at, optimizer_named

ModelT = TypeVar("ModelT", bound=nn.Module)
Objective = Callable[[Any, Any], LossOutput]
"""Maps a model and a batch to a loss and figures."""

MOST_STEPS = 10**9
"""A run of more would take years at a thousand steps a minute."""


class Batch(Protocol):
    """What every objective's batch can do."""

    def to(self, device: torch.device | str) -> Any:
        """Returns the same batch on another device."""


@dataclass(frozen=True)
class TrainerSettings(Checked):
    """How a model is trained."""

    panel: ClassVar[str] = "Training"

    total_steps: int = option(
        0,
        name="steps",
        min=1,
        max=MOST_STEPS,
        help="End: steps; also the length of the schedule, after which the rate is 0.",
    )
    learning_rate: float = option(1e-3, above=0, shown_default="by size", help="Peak learning rate.")
    warmup_share: float = option(0.1, min=0, max=1, in_file_only=True, help="Share of the steps for the warm-up.")
    weight_decay: float = option(
        0.01, min=0, in_file_only=True, help="Decoupled weight decay, not of biases and norms; 0.01 in the paper."
    )
    epsilon: float = option(
        1e-6, above=0, in_file_only=True, help="Added to the root of the second moment; 1e-6 in the released BERT."
    )
    clip_norm: float = option(1.0, above=0, in_file_only=True, help="Gradients are scaled down to this global norm.")
    optimizer: str = option(
        "adamw",
        shown_default="by family",
        help="Optimizer: adamw, muon, lamb for batches of thousands, or plain sgd.",
    )
    matrix_rate: float = option(
        0.02,
        above=0,
        help="Muon: peak rate of the weight matrices whose outputs are hidden states.",
    )
    schedule: Schedule = option("linear", help="Learning rate after the warm-up: linear, cosine or trapezoid.")
    skips_in_a_row: int = option(20, min=1, help="Give up after this number of batches in a row without a finite loss.")
    skipped_share: float = option(0.05, min=0.0, max=1.0, help="Give up after this share of all steps was skipped.")
    layer_decay: float = 1.0

    def _check_together(self) -> None:
        optimizer_named(self.optimizer)


class BertTrainer(Generic[ModelT]):
    """Trains a model on batches.

    Attributes:
        step: steps taken, those with a skipped batch included; part of the saved state, as are `skipped` and the next.
        skipped_in_a_row: batches skipped since the last one that was learned from.
        reads_late: whether steps are taken without waiting for the device; `skipped` and `skipped_in_a_row` are then
            those of the last `read_skips`.
    """

    def __init__(
        self,
        model: ModelT,
        objective: Objective,
        settings: TrainerSettings,
        *,
        seed: int = 0,
        loss_limit: float = math.inf,
        device: torch.device | str = "cpu",
        ranks: Ranks | None = None,
    ) -> None:
        """Prepares the training of a model.

        Args:
            objective: what it is trained for. Where a batch comes in parts or shares, their losses must add up to that
                of the batch; one that divides by counts has to know those of the whole batch.
            loss_limit: a batch with a larger loss counts as exploded and is skipped.
            ranks: the processes that train together; None is this one alone.
        """
        if settings.total_steps < 1:
            raise ConfigError(f"total steps {settings.total_steps} must be at least 1")
        self.model: ModelT = model.to(device)
        self.objective = objective
        self.settings = settings
        self.seed, self.loss_limit = seed, loss_limit
        self.device = torch.device(device)
        self.ranks = ranks or Ranks()
        self.optimizer = build_optimizer(
            model,
            weight_decay=settings.weight_decay,
            layer_decay=settings.layer_decay,
            kind=settings.optimizer,
            epsilon=settings.epsilon,
            matrix_factor=settings.matrix_rate / settings.learning_rate,
        )
        self.step = self.skipped = self.skipped_in_a_row = 0
        # 每步都问 GPU 有没有跳过，会让两边互相等：在那里晚些再读
        self.reads_late = self.device.type in ASYNCHRONOUS
        self._unread: Tensor | None = None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._with_loss = self.ranks.parallel(_ModelWithLoss(self.model, objective), self.device)

    def learning_rate_of(self, step: int) -> float:
        """Returns the rate with which a step, counted from 0, is taken."""
        settings = self.settings
        return learning_rate_at(
            step,
            peak=settings.learning_rate,
            warmup_steps=round(settings.warmup_share * settings.total_steps),
            total_steps=settings.total_steps,
            schedule=settings.schedule,
        )

    def train_batch(self, *parts: Batch) -> LossOutput:
        """Takes one step; returns the loss and figures of the whole batch, over all parts and ranks, before the step.

        Figures of a skipped batch are left out or 0.

        Args:
            *parts: a batch as the objective understands it, or the parts of one (of this rank's share), whose gradients
                are added up.

        Raises:
            TrainingError: too many batches were skipped; the weights are as before the step.
        """
        self.model.train()
        # 每一步重设 dropout 的种子：断点续训不需要保存任何随机状态，也能逐位一致；各进程的种子不同
        shard = (self.ranks.rank,) if self.ranks.rank else ()
        torch.manual_seed(torch_seed(self.seed, "train/dropout", self.step, *shard))
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate_of(self.step) * group["rate_factor"]
        self.optimizer.zero_grad(set_to_none=True)
        outputs = [self._backward(part, last=number == len(parts)) for number, part in enumerate(parts, start=1)]
        norm = nn.utils.get_total_norm(self._gradients())
        output = self._summed(outputs)
        self.step += 1
        if self.reads_late:
            return self._step_unread(output, norm)
        # 先检查再更新：坏的梯度绝不能进入权重，否则存下的状态也坏了；各进程的损失与梯度相同，判断必然一致
        if not torch.isfinite(norm) or not output.loss <= self.loss_limit:
            self.skipped += 1
            self.skipped_in_a_row += 1
            what = f" (loss {float(output.loss):.4g}, gradient norm {float(norm):.4g})"
            self._end_after_too_many(self.skipped_in_a_row, what)
            return LossOutput(output.loss, {})
        # 范数没超过上限就不动梯度：乘以 1 也要把所有梯度读写一遍
        if norm > self.settings.clip_norm:
            nn.utils.clip_grads_with_norm_(self._parameters, self.settings.clip_norm, norm)
        self.optimizer.step()
        self.skipped_in_a_row = 0
        return output

    def _step_unread(self, output: LossOutput, norm: Tensor) -> LossOutput:
        """Moves the weights, or not, as the device decides; nothing is read back."""
        learned = torch.isfinite(norm) & (output.loss <= self.loss_limit)
        nn.utils.clip_grads_with_norm_(self._parameters, self.settings.clip_norm, norm)
        # 各优化器都认 found_inf：它为 1 时，权重与矩都原样不动（与 torch 混合精度的约定相同）
        self.optimizer.found_inf = (~learned).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self._count_unread(learned)
        if self.step % self.settings.skips_in_a_row == 0:
            self.read_skips()
        # 跳过的一步不记数：不是有限的数会毁掉平均
        sums = output.sums.items()
        return LossOutput(output.loss, {name: (_only_if(learned, a), _only_if(learned, b)) for name, (a, b) in sums})

    def _count_unread(self, learned: Tensor) -> None:
        """Counts a step on the device: [3] int64, batches skipped, those in a row up to now, and the longest row."""
        if self._unread is None:
            # 用填充而不是拷贝造张量：从主机拷贝会等设备
            row = torch.full((), self.skipped_in_a_row, dtype=torch.int64, device=self.device)
            self._unread = torch.stack([torch.zeros_like(row), row, row])
        skipped, row, most = self._unread.unbind()
        row = torch.where(learned, 0, row + 1)
        self._unread = torch.stack([skipped + ~learned, row, torch.maximum(most, row)])

    def read_skips(self) -> None:
        """Learns of the batches that a GPU skipped since the last time, waiting for it; `TrainingError` if too many."""
        if self._unread is None:
            return
        skipped, self.skipped_in_a_row, most_in_a_row = self._unread.tolist()
        self._unread = None
        self.skipped += skipped
        if skipped:
            self._end_after_too_many(most_in_a_row, "")

    def _gradients(self) -> list[Tensor]:
        """Returns the gradients; of a table with sparse ones, those of the rows that were read."""
        found = []
        for parameter in self._parameters:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                # 同一行可能读了多次：先加起来，范数才对
                parameter.grad = parameter.grad.coalesce()
            found.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
        return found

    def _backward(self, part: Batch, *, last: bool) -> LossOutput:
        """Adds a part's gradient; the last part's backward pass also exchanges it with the other ranks."""
        with nullcontext() if last else self.ranks.without_exchange(self._with_loss):
            output: LossOutput = self._with_loss(part.to(self.device))
            # DDP 对各进程的梯度取平均；乘以进程数就成了求和，与单进程的整批相同
            (output.loss * self.ranks.world_size).backward()
        return LossOutput(output.loss.detach(), output.sums)

    def _summed(self, outputs: list[LossOutput]) -> LossOutput:
        if len(outputs) == 1 and self.ranks.world_size == 1:
            return outputs[0]
        running = RunningAverages()
        for output in outputs:
            running.add(output.sums)
        # 在损失所在的设备上求和：GPU 之间走 NCCL，主机不必等
        flat = torch.stack([output.loss for output in outputs]).double().sum()[None]
        for total in running.totals.values():
            flat = torch.cat([flat, *(flat.new_ones(1) * each for each in total)])
        summed = self.ranks.all_reduce(flat)
        _, *rest = summed.unbind() if self.reads_late else summed.tolist()
        sums = {name: (rest[2 * i], rest[2 * i + 1]) for i, name in enumerate(running.totals)}
        return LossOutput(summed[0].float(), sums)

    def _end_after_too_many(self, in_a_row: int, what: str) -> None:
        settings = self.settings
        most = max(settings.skips_in_a_row, settings.skipped_share * settings.total_steps)
        if in_a_row >= settings.skips_in_a_row or self.skipped > most:
            rates = f"the learning rate ({settings.learning_rate:g})"
            if optimizer_named(settings.optimizer).takes_matrices:
                rates += f" or the matrix rate ({settings.matrix_rate:g})"
            raise TrainingError(
                f"step {self.step}: the loss or its gradient was not finite, or exploded, in {self.skipped} batches,"
                f" {in_a_row} of them in a row{what}; lower {rates}"
            )

    @torch.inference_mode()
    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Returns the figures averaged over batches, without dropout or learning; the ranks share the same batches."""
        self.model.eval()
        own, everyone = RunningAverages(), RunningAverages()
        for number, batch in enumerate(batches):
            if number % self.ranks.world_size == self.ranks.rank:
                own.add(self.objective(self.model, batch.to(self.device)).sums)
        for totals in self.ranks.gather(own.read()):
            everyone.add(totals)
        return everyone.averages()


class _ModelWithLoss(nn.Module):
    """A model together with its objective: what DistributedDataParallel runs."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Any) -> LossOutput:
        return self.objective(self.model, batch)


def _only_if(learned: Tensor, value: Figure) -> Tensor:
    """Returns a figure of a step, 0 where the weights did not move."""
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=torch.float64, device=learned.device)
    return torch.where(learned, value, 0)
