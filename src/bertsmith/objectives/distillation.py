"""Learning from a larger model: masked LM, and a teacher's view of the same masks (Hinton et al. 2015).

    loss = 2 · masked LM + Σ weight · what each distillation loss says

The teacher reads the batch that the student reads, without dropout and without gradients. It is no part of what is
trained: states and model folders hold the student alone, and a resumed run loads the teacher again. `Imitation` is the
objective for teachers without a masked-LM head, such as sentence encoders: nothing is hidden, the states alone teach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.errors import ConfigError
from bertsmith.kernels.cross_entropy import PieceScores
from bertsmith.model import Backbone, ModelConfig, PretrainedModel, PreTrainingOutput
from bertsmith.model.folder import stored_heads
from bertsmith.objectives.pretraining import (
    LanguageModel,
    LossOutput,
    LossTerm,
    PreTrainingObjective,
    figure,
    register,
)
from bertsmith.settings import Checked, named, option


@dataclass(frozen=True)
class Seen:
    """What a model made of a batch.

    Attributes:
        logits: [M, V] of the pieces at the masks.
        states: [T, H] of the last layer.
        qkv: [T, 3, A, D], queries, keys and values of the last layer, before any rotation.
    """

    logits: Tensor
    states: Tensor
    qkv: Tensor
    lengths: list[int]


@dataclass(frozen=True)
class DistillationLoss:
    """Compares a student with its teacher; the figure is `NAME_loss`.

    Attributes:
        compare: gives, of student and teacher, the sum over items, float32, and how many items there are.
        is_of_masks: whether its items are the masks, and both models must predict pieces; else the tokens.
    """

    name: str
    title: str
    compare: Callable[[Seen, Seen, float], tuple[Tensor, int]]
    weight: float = 1.0
    is_equally_wide: bool = False
    is_of_masks: bool = False

    def __call__(self, student: Seen, teacher: Seen, temperature: float) -> tuple[Tensor, int]:
        """Returns the sum and the number of its items."""
        return self.compare(student, teacher, temperature)


@contextmanager
def recorded_qkv(backbone: Backbone) -> Iterator[list[Tensor]]:
    """Yields a list that ends with the output [T, 3 A D] of the last block's projection."""
    seen: list[Tensor] = []

    def keep(_module: Any, _given: Any, output: Tensor) -> None:
        # 不求梯度时旋转就地改写它：老师的要先另存，才和学生的一样是旋转之前的
        seen.append(output if output.requires_grad else output.clone())

    # 共享权重的家族里“最后一块”会跑 L 次：取最后一次
    handle = backbone.encoder.blocks[-1].attention.qkv.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def relation_loss(student: Seen, teacher: Seen, _temperature: float) -> tuple[Tensor, int]:
    """KL(teacher ‖ student) of softmax(X Xᵀ / √D) for X in queries, keys and values of the last layer, in nats.

    Heads are joined and cut anew into as many relation heads as divide both widths, at most 12: teacher and student may
    differ in heads and width (Wang et al. 2021). Averaged over the three kinds and the heads, for every token.
    """
    heads = relation_heads(student, teacher)
    own, other = (relations(seen, heads) for seen in (student, teacher))
    real = torch.isfinite(other)  # [3, N, R, S, S]
    # 填充的键概率为零，log 为 -inf：0 · -inf 不是数，先换成同一个有限值
    own, other = (table.masked_fill(~real, 0.0) for table in (own, other))
    loss = (F.kl_div(own, other, reduction="none", log_target=True) * real).sum()
    return loss / (3 * heads), sum(student.lengths)


def relation_heads(student: Seen, teacher: Seen) -> int:
    """Returns how many heads the relations have."""
    widths = [seen.qkv.shape[2] * seen.qkv.shape[3] for seen in (student, teacher)]
    return max(heads for heads in range(1, 13) if math.gcd(*widths) % heads == 0)


def relations(seen: Seen, heads: int) -> Tensor:
    """Returns [3, N, R, S, S], the log-probabilities with which each token relates to each; -inf beyond the text."""
    rows = pad_sequence(list(seen.qkv.float().split(seen.lengths)), batch_first=True)  # [N, S, 3, A, D]
    count, longest = rows.shape[:2]
    rows = rows.view(count, longest, 3, heads, -1).permute(2, 0, 3, 1, 4)  # [3, N, R, S, D]
    scores = rows @ rows.transpose(-1, -2) / math.sqrt(rows.shape[-1])  # [3, N, R, S, S]
    places = torch.arange(longest, device=scores.device)
    is_real = places < torch.tensor(seen.lengths, device=scores.device)[:, None]  # [N, S]
    logs = scores.masked_fill(~is_real[:, None, None, :], -torch.inf).log_softmax(-1)
    return logs.masked_fill(~is_real[:, None, :, None], -torch.inf)


def soft_target_loss(student: Seen, teacher: Seen, temperature: float) -> tuple[Tensor, int]:
    """T² · KL(teacher ‖ student) of the pieces at the masks, in nats."""
    # 词表相同，行数却可能补到了整数倍：补的行不是词，不比
    pieces = min(seen.logits.shape[1] for seen in (student, teacher))
    # 温度越高，老师的分布越平：次优的词也分到看得见的概率
    own, other = (seen.logits[:, :pieces].float().div(temperature).log_softmax(-1) for seen in (student, teacher))
    loss = F.kl_div(own, other, reduction="sum", log_target=True)
    return loss * temperature**2, len(own)


def state_loss(student: Seen, teacher: Seen, _temperature: float) -> tuple[Tensor, int]:
    """1 − cosine of the last states of every token, in [0, 2]; the widths are equal (Sanh et al. 2019)."""
    own, other = (seen.states.float() for seen in (student, teacher))
    return (1 - F.cosine_similarity(own, other, dim=-1)).sum(), len(own)


LOSSES: dict[str, DistillationLoss] = {
    "relations": DistillationLoss("relations", "relation", relation_loss),
    # 权重同 DistilBERT 公布的训练
    "soft": DistillationLoss("soft", "soft-target", soft_target_loss, weight=5.0, is_of_masks=True),
    "states": DistillationLoss("states", "last-state", state_loss, is_equally_wide=True),
}


def distillation_loss_named(name: str) -> DistillationLoss:
    """Returns a loss; raises `ConfigError` where there is none of that name."""
    return named(name, LOSSES, "teacher loss")


HARD_WEIGHT = 2.0
"""Of the true pieces, as in DistilBERT's released training; of the others see `DistillationLoss.weight`."""


@dataclass(frozen=True)
class TeacherSettings(Checked):
    """Whose predictions are learned besides the text."""

    panel: ClassVar[str] = "Distillation"

    folder: str = option("", name="teacher", help="Also learn from this larger model: a folder, or org/name.")
    losses: tuple[str, ...] = option(
        (),
        name="teacher_loss",
        shown_default="soft where both predict pieces; states where both are equally wide, else relations",
        help="Distillation loss: soft, states or relations; once for each.",
    )
    temperature: float = option(2.0, name="teacher_temperature", above=0, help="Temperature of soft targets, above 0.")
    weights: str = option("", name="teacher_weights", in_file_only=True, help="Fingerprint of the teacher's weights.")

    def _check_together(self) -> None:
        for name in self.losses:
            distillation_loss_named(name)
        if len(set(self.losses)) < len(self.losses):
            raise ConfigError("a teacher loss is named twice; name each once")
        if self.losses and not self.folder:
            raise ConfigError("a teacher loss needs a --teacher")


@dataclass(frozen=True)
class DistilledObjective:
    """An objective over masked pieces, and what a teacher makes of them; only the student is saved and counted."""

    base: PreTrainingObjective
    teacher: TeacherSettings

    def __post_init__(self) -> None:
        if self.base.needs.draws or self.base.language_model.is_causal:
            raise ConfigError(f"--teacher does not go with {self.base.name}; use mlm, or imitation")

    def __getattr__(self, name: str) -> Any:
        # 其余都是原目标的：数据流、头、模型和保存的文件夹，老师都不改变
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.base, name)

    @property
    def terms(self) -> Sequence[Any]:
        """The base's, and what a teacher may be asked."""
        return [*self.base.terms, *LOSSES.values()]

    @property
    def reads_all_states(self) -> bool:
        """True: they are compared with the teacher's."""
        return True

    @property
    def predicts(self) -> bool:
        """Whether both models predict pieces."""
        return self.base.language_model.targets == "masked"

    def for_masking(self, kind: str) -> DistilledObjective:
        """Returns the objective over the base that suits a kind of masking."""
        return replace(self, base=self.base.for_masking(kind))

    def total_loss(self, figures: Mapping[str, float]) -> float:
        """Returns the weighted sum of the figures; NaN without them."""
        taught = {f"{loss.name}_loss": loss.weight for loss in LOSSES.values()}
        own = {name: value for name, value in figures.items() if name not in taught}
        return HARD_WEIGHT * self.base.total_loss(own) + sum(
            weight * figures.get(name, 0.0) for name, weight in taught.items()
        )

    def guessing_loss(self, num_pieces: int) -> float:
        """Returns what guessing costs: log V a weight at most, and the bounds of the others."""
        soft = distillation_loss_named("soft").weight * self.teacher.temperature**2
        return HARD_WEIGHT * self.base.guessing_loss(num_pieces) + soft * math.log(num_pieces) + 2.0

    @cached_property
    def network(self) -> PretrainedModel:
        """The teacher, loaded when it is first asked."""
        folder = self.teacher.folder
        if self.predicts and "masked_lm" not in stored_heads(folder):
            raise ConfigError(
                f"{folder}: the teacher has no masked-LM head; let its states teach: --objective imitation"
            )
        # 句对头不参与比较：老师没有它也行
        network = replace(self.base, pair_task=None).load_model(folder)
        assert isinstance(network, PretrainedModel)
        return network.eval().requires_grad_(False)

    def losses(self, student: ModelConfig) -> list[DistillationLoss]:
        """Returns what a student of a shape is compared by."""
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
        """Returns the weighted loss and all figures."""
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
            output = self.base.run(model, batch, need_states=True)
        qkv = recorded[-1].view(-1, 3, attention.num_heads, attention.head_size)
        return output, Seen(output.mlm_logits, output.encoded.hidden_states, qkv, list(batch.tokens.lengths))


class NoLoss(LossTerm):
    """Of an objective that predicts no pieces; there is nothing to measure."""

    name, title = "imitation", "imitation"


@dataclass(frozen=True)
class Imitation(PreTrainingObjective):
    """A network without heads; every loss comes from the teacher."""

    heads = ()
    terms = ()
    reads_all_states = True

    def build_model(self, config: ModelConfig) -> Backbone:
        """Returns a fresh network of a shape."""
        return config.family.backbone(config, need_pooler=False)

    def load_model(self, folder: str | Path, **changes: Any) -> Backbone:
        """Returns the network of a folder."""
        return Backbone.from_pretrained(folder, need_pooler=False, **changes)

    def total_loss(self, figures: Mapping[str, float]) -> float:  # noqa: ARG002
        """Returns 0: nothing is learned from the text itself."""
        return 0.0

    def guessing_loss(self, num_pieces: int) -> float:  # noqa: ARG002
        """Returns 0."""
        return 0.0

    def run(self, model: nn.Module, batch: PreTrainingBatch, *, need_states: bool = True) -> PreTrainingOutput:  # noqa: ARG002
        """Returns the states of a batch, and the scores of no piece at no place."""
        encoded = model(batch.tokens)
        nothing = encoded.hidden_states[:0]
        return PreTrainingOutput(PieceScores(nothing, nothing, nothing.new_empty(0)), None, None, encoded)

    def measure(self, output: PreTrainingOutput, batch: PreTrainingBatch) -> LossOutput:  # noqa: ARG002
        """Returns no loss and no figures."""
        return LossOutput(torch.zeros((), device=output.encoded.hidden_states.device), {})


register(Imitation("imitation", LanguageModel(NoLoss(), targets="nothing")))
