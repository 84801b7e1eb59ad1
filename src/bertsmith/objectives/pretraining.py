"""What pre-training learns: masked LM and next sentence (Devlin et al. 2019, §3.1), and the tasks that came after.

    mlm+nsp    masked LM and next sentence: the paper
    mlm        masked LM alone (§5.1, "no NSP"; Liu et al. 2019)
    mlm+sop    masked LM and sentence order (Lan et al. 2020)
    ltr        left-to-right LM (§5.1, "LTR & no NSP")
    ltr+nsp    left-to-right LM and next sentence, read from the last token
    rtd        replaced-token detection (Clark et al. 2020): `replaced_tokens`
    imitation  a teacher's states alone (Wang et al. 2020): `distillation`

An objective of another shape, such as two networks, is a class that changes methods of `PreTrainingObjective`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.data.stream.stream import Pairs, StreamNeeds, Targets
from bertsmith.errors import ConfigError
from bertsmith.kernels.cross_entropy import PieceScores, cross_entropy
from bertsmith.kernels.processor import ASYNCHRONOUS
from bertsmith.model import ModelConfig, ModelForPreTraining, PretrainedModel, PreTrainingOutput
from bertsmith.model.folder import stored_heads
from bertsmith.settings import named

Figure: TypeAlias = "float | Tensor"
"""A number, or a scalar on a GPU that nobody has read yet: reading makes the host wait for the device."""


@dataclass(frozen=True)
class LossOutput:
    """The loss to differentiate, and `sums` for exact averages: figure → (sum over items, number of items)."""

    loss: Tensor
    sums: Mapping[str, tuple[Figure, Figure]]


class LossTerm(nn.Module):
    """Mean of -log p(true class) over predictions with a label, in nats; its figures: `NAME_loss`, `NAME_accuracy`."""

    name: ClassVar[str]
    title: ClassVar[str]

    def forward(self, scores: Tensor | PieceScores, labels: Tensor, *, total: int | None = None) -> LossOutput:
        """Returns the loss of predictions, 0 without any label, with its sums.

        Args:
            scores: [M, V] or [N, 2], of any float dtype.
            labels: [M] or [N] int64, the true classes; -100 where there is none.
            total: labels of the whole batch, where these are a share of it: the losses of the shares then add up to the
                mean over the batch. None where this is all.
        """
        count = figure((labels != NO_LABEL).sum())
        labelled = count if total is None else total
        # 一批中没有任何标签时损失为 0，而不是 NaN
        divisor = labelled.clamp(min=1) if isinstance(labelled, Tensor) else max(1, labelled)
        loss, nats, hits = cross_entropy(scores, labels, divisor=divisor)
        sums = {f"{self.name}_loss": (figure(nats), count), f"{self.name}_accuracy": (figure(hits), count)}
        return LossOutput(loss, sums)


# 双向编码器若预测每个词，词会通过上层“看见自己”；只预测被遮住的 15%，左右两边的上下文才能同时用上
class MaskedLMLoss(LossTerm):
    """Task 1: -log p of the M hidden pieces, predicted from both sides (Devlin et al. 2019, §3.1); mean, in nats."""

    name, title = "mlm", "masked-LM"


# 语言模型学不到句与句的关系，而问答、推理都靠它：用 [CLS] 的状态判断 B 是不是 A 的下文
class NSPLoss(LossTerm):
    """Does B, where there is one, follow A (class 0), or is it random (1)? (§3.1.) Mean in nats; chance is log 2."""

    name, title = "nsp", "next-sentence"


# 随机的 B 换了话题，凭话题就能答对 NSP；这里两段出自同一处，只有连贯性能说明次序
class SOPLoss(LossTerm):
    """Do two consecutive segments stand in order (class 0), or swapped (1)? (Lan et al. 2020, §3.1.) Chance: log 2."""

    name, title = "sop", "sentence-order"


# 单向的对照：每个词都能学，但只看得见左边；论文用它说明双向上下文的价值
class CausalLMLoss(LossTerm):
    """-log p(next piece) of all tokens that have one, `[SEP]` too (the ablation of §5.1); mean, in nats."""

    name, title = "ltr", "left-to-right"


# 要从两端的词猜出片段内部，模型必须把整段的意思汇聚到边界上：问答的答案正是这样的片段
class SpanBoundaryLoss(LossTerm):
    """-log p of the M hidden pieces by the tokens around their span and their place in it (Joshi et al. 2020, §3.2)."""

    name, title = "sbo", "span-boundary"


@dataclass(frozen=True)
class LanguageModel:
    """The part of an objective that predicts pieces: its loss, and which pieces it predicts."""

    loss: LossTerm
    targets: Targets

    @property
    def is_causal(self) -> bool:
        """Whether tokens must not see what comes after them."""
        return self.targets == "next_token"


@dataclass(frozen=True)
class PairTask:
    """The part of an objective that judges pairs of segments: its loss, and which pairs it reads."""

    loss: LossTerm
    pairs: Pairs


@dataclass(frozen=True)
class PreTrainingObjective:
    """A language model and, optionally, a task over pairs; their losses are added up (appendix A.2).

    What a run knows of its objective are these fields and methods, and `folders`: the model folders that come of it, by
    their paths in the run's `model` folder; the first is `""`, itself.

    A batch that is a share of a larger one (of another rank's, or of several parts) is divided by the counts of the
    larger one: the losses of the shares, and their gradients, then add up to those of the whole.
    """

    name: str
    language_model: LanguageModel
    pair_task: PairTask | None = None
    span_boundary: SpanBoundaryLoss | None = None

    folders: ClassVar[tuple[str, ...]] = ("",)

    def __call__(self, model: nn.Module, batch: PreTrainingBatch) -> LossOutput:
        """Returns the summed loss and the figures of all parts."""
        return self.measure(self.run(model, batch), batch)

    def run(self, model: nn.Module, batch: PreTrainingBatch, *, need_states: bool = False) -> PreTrainingOutput:
        """Returns what a model makes of a batch; with the states of all tokens where they are needed."""
        spans = batch.masked_spans if self.span_boundary else None
        places = batch.masked_positions
        output: PreTrainingOutput = model(batch.tokens, places, masked_spans=spans, need_states=need_states)
        return output

    def measure(self, output: PreTrainingOutput, batch: PreTrainingBatch) -> LossOutput:
        """Returns the summed loss and the figures of what a model made of a batch."""
        # 除以全局批次的个数，而不是这一份的：各份的掩码数不同，先各自平均再平均会偏重遮得少的那份
        masked, labelled = batch.global_masked, batch.global_labelled
        parts: list[LossOutput] = [self.language_model.loss(output.mlm, batch.masked_labels, total=masked)]
        if self.pair_task is not None:
            parts.append(self.pair_task.loss(output.nsp_logits, batch.next_sentence_labels, total=labelled))
        if self.span_boundary is not None:
            parts.append(self.span_boundary(output.sbo, batch.masked_labels, total=masked))
        # 各部分已是各自的平均，直接相加即论文的损失（附录 A.2），不另设权重
        loss = parts[0].loss
        for part in parts[1:]:
            loss = loss + part.loss
        return LossOutput(loss, {name: value for part in parts for name, value in part.sums.items()})

    @property
    def reads_all_states(self) -> bool:
        """Whether it reads the last layer's states of all tokens: spans are predicted from the tokens around them."""
        return self.span_boundary is not None

    @property
    def needs(self) -> StreamNeeds:
        """What it asks of the stream."""
        return StreamNeeds(self.pair_task.pairs if self.pair_task else "none", self.language_model.targets)

    @property
    def heads(self) -> tuple[str, ...]:
        """The kinds of heads that stay in the model's folder, as `Family.heads` names them."""
        return ("masked_lm", "next_sentence") if self.pair_task else ("masked_lm",)

    @property
    def terms(self) -> Sequence[Any]:
        """The losses that are shown: `NAME_loss` and, of predictions, `NAME_accuracy`; their titles are for people."""
        return [self.language_model.loss, *([self.pair_task.loss] if self.pair_task else [])]

    @property
    def perplexity_of(self) -> str:
        """The figure whose exponential is the perplexity."""
        return f"{self.language_model.loss.name}_loss"

    def for_masking(self, kind: str) -> PreTrainingObjective:
        """Returns the objective that suits a kind of masking: spans bring the span boundary loss with them."""
        if kind != "span":
            return replace(self, span_boundary=None)
        if self.language_model.targets != "masked":
            raise ConfigError(f"{self.name} hides no spans; the span boundary objective goes with mlm")
        return replace(self, span_boundary=SpanBoundaryLoss())

    def networks(self, config: ModelConfig) -> tuple[ModelConfig, ...]:
        """Returns the shapes of what a step runs: first what predicts pieces, then what judges every token."""
        return (config,)

    def build_model(self, config: ModelConfig) -> nn.Module:
        """Returns a fresh model of a shape."""
        # 单向与否写进模型自己的配置：微调、生成、别的工具读这个文件夹时，看到的与训练时相同
        config = config.changed(is_decoder=self.language_model.is_causal)
        return self._complete(ModelForPreTraining(config, pair_head=self.pair_task is not None))

    def load_model(self, folder: str | Path, **changes: Any) -> nn.Module:
        """Returns the model of a folder, with fields of its configuration changed; heads that it lacks are fresh."""
        missing = set(self.heads) - stored_heads(folder)
        changes["is_decoder"] = self.language_model.is_causal
        pair_head = self.pair_task is not None
        return self._complete(
            ModelForPreTraining.from_pretrained(folder, new_heads=missing, pair_head=pair_head, **changes)
        )

    def models(self, model: Any) -> Mapping[str, PretrainedModel]:
        """Returns the models inside what is trained, by the `folders` they are saved to."""
        return {"": model}

    def total_loss(self, figures: Mapping[str, float]) -> float:
        """Returns the sum of the losses among figures; NaN without any."""
        losses = [value for name, value in figures.items() if name.endswith("_loss")]
        return sum(losses) if losses else math.nan

    def guessing_loss(self, num_pieces: int) -> float:
        """Returns log V of the pieces and log 2 of the pairs."""
        return math.log(num_pieces) + math.log(2)

    def _complete(self, model: ModelForPreTraining) -> ModelForPreTraining:
        """Adds the head that exists for the time of training; `save_pretrained` leaves it out."""
        if self.span_boundary:
            model.add_span_boundary()
        return model


Objective: TypeAlias = PreTrainingObjective
"""What a pre-training run is given."""

_REGISTERED: dict[str, Objective] = {}


def register(objective: Objective) -> None:
    """Makes an objective known by its name."""
    _REGISTERED[objective.name] = objective


def objective_named(name: str) -> Objective:
    """Returns an objective; raises `ConfigError` where there is none of that name."""
    return named(name, _REGISTERED, "objective")


MASKED_LM = LanguageModel(MaskedLMLoss(), targets="masked")
CAUSAL_LM = LanguageModel(CausalLMLoss(), targets="next_token")
NEXT_SENTENCE = PairTask(NSPLoss(), pairs="next_sentence")

register(PreTrainingObjective("mlm+nsp", MASKED_LM, NEXT_SENTENCE))
register(PreTrainingObjective("mlm", MASKED_LM))
register(PreTrainingObjective("mlm+sop", MASKED_LM, PairTask(SOPLoss(), pairs="sentence_order")))
register(PreTrainingObjective("ltr", CAUSAL_LM))
register(PreTrainingObjective("ltr+nsp", CAUSAL_LM, NEXT_SENTENCE))


def figure(value: Tensor) -> Figure:
    """Returns a scalar to report: on CUDA unread, in float64, elsewhere as a number."""
    return value.detach().double() if value.device.type in ASYNCHRONOUS else float(value.detach())


@dataclass
class RunningAverages:
    """Adds up the sums of many batches."""

    totals: Mapping[str, tuple[Figure, Figure]] = field(default_factory=dict)

    def add(self, sums: Mapping[str, tuple[Figure, Figure]]) -> None:
        """Adds one batch."""
        # 加总“和”与“个数”，最后才相除：各批大小不同，平均数的平均会偏
        totals = dict(self.totals)
        for name, (value, count) in sums.items():
            old_value, old_count = totals.get(name, (0.0, 0))
            totals[name] = (old_value + value, old_count + count)
        self.totals = totals

    def read(self) -> dict[str, tuple[float, int]]:
        """Returns the totals as numbers, and keeps them so; waits for the device once where they lie there."""
        unread = [each for pair in self.totals.values() for each in pair if isinstance(each, Tensor)]
        # 叠成一个张量再取：有多少个数也只等一次
        numbers = iter(torch.stack([each.double() for each in unread]).tolist() if unread else ())
        found = {}
        for name, pair in self.totals.items():
            value, count = (next(numbers) if isinstance(each, Tensor) else each for each in pair)
            found[name] = (float(value), round(count))
        self.totals = found
        return found

    def averages(self) -> dict[str, float]:
        """Returns figure → average; figures without any item are left out."""
        return {name: value / count for name, (value, count) in self.read().items() if count}


def average_of(measures: Iterable[LossOutput]) -> dict[str, float]:
    """Returns the averages over all items of all batches."""
    running = RunningAverages()
    for measure in measures:
        running.add(measure.sums)
    return running.averages()
