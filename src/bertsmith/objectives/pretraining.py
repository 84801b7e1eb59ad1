"""What a pre-training objective is, and the registry in which each is found by its name.

    mlm+nsp    masked LM and next sentence: the paper
    mlm        masked LM alone (§5.1, "no NSP"; Liu et al. 2019)
    mlm+sop    masked LM and sentence order (Lan et al. 2020)
    ltr        left-to-right LM (§5.1, "LTR & no NSP")
    ltr+nsp    left-to-right LM and next sentence, read from the last token
    rtd        replaced-token detection (Clark et al. 2020); see `replaced_tokens.py`

An objective says what it asks of the stream, which model it trains, its loss and its figures: `Objective`. Most are a
`PreTrainingObjective`, registered by the file of the term that makes it; another kind is a file of its own in this
package whose class has the attributes and methods of `Objective` and is given to `register`.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.settings import Pairs, StreamNeeds, Targets
from bertsmith.errors import ConfigError
from bertsmith.model import ModelConfig, ModelForPreTraining, PretrainedModel, PreTrainingOutput
from bertsmith.model.folder import stored_heads
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.objectives.loss_term import LossTerm, Titled
from bertsmith.objectives.span_boundary import SpanBoundaryLoss
from bertsmith.options import named


class Objective(Protocol):
    """What a pre-training run knows of its objective."""

    @property
    def name(self) -> str:
        """By which recipes and the command line know it."""

    @property
    def language_model(self) -> LanguageModel:
        """The part that predicts pieces."""

    @property
    def needs(self) -> StreamNeeds:
        """What it asks of the stream."""

    @property
    def heads(self) -> tuple[str, ...]:
        """The kinds of heads that it trains, as `Family.heads` names them."""

    @property
    def folders(self) -> tuple[str, ...]:
        """The model folders that come of it, by their paths in the run's `model` folder; the first is `""`, itself."""

    @property
    def terms(self) -> Sequence[Titled]:
        """The losses whose figures are shown."""

    @property
    def perplexity_of(self) -> str:
        """The figure whose exponential is the perplexity."""

    def for_masking(self, kind: str) -> Objective:
        """Returns the objective that suits a kind of masking; raises `ConfigError` where there is none."""

    def networks(self, config: ModelConfig) -> tuple[ModelConfig, ...]:
        """Returns the shapes of what a step runs: first what predicts pieces, then what judges every token."""

    def build_model(self, config: ModelConfig) -> nn.Module:
        """Returns what is trained, with fresh weights."""

    def load_model(self, folder: str | Path, **changes: Any) -> nn.Module:
        """Returns what is trained, with the weights of a model folder; heads that it lacks are fresh.

        Args:
            folder: a model folder.
            **changes: fields of the configuration to change.
        """

    def models(self, model: Any) -> Mapping[str, PretrainedModel]:
        """Returns the models inside what is trained, by the `folders` they are saved to."""

    def total_loss(self, figures: Mapping[str, float]) -> float:
        """Returns the loss that figures add up to; NaN without any."""

    def guessing_loss(self, num_pieces: int) -> float:
        """Returns the loss of guessing evenly among so many pieces, and in each yes-or-no question."""

    def __call__(self, model: Any, batch: PreTrainingBatch) -> LossOutput:
        """Returns the loss and the figures of a batch."""


@dataclass(frozen=True)
class LanguageModel:
    """The part of an objective that predicts pieces.

    Attributes:
        loss: over the pieces.
        targets: which pieces; where it is the next, tokens read what is before them only.
    """

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

    A batch that is a share of a larger one (of another rank's, or of several parts) is divided by the counts of the
    larger one: the losses of the shares, and their gradients, then add up to those of the whole.

    Attributes:
        name: by which recipes and the command line know it.
        language_model: the loss over pieces, masked or next.
        pair_task: the loss over pairs of segments, or None.
        span_boundary: the extra loss of span masking, or None.
    """

    name: str
    language_model: LanguageModel
    pair_task: PairTask | None = None
    span_boundary: SpanBoundaryLoss | None = None

    @property
    def needs(self) -> StreamNeeds:
        """What it asks of the stream."""
        return StreamNeeds(self.pair_task.pairs if self.pair_task else "none", self.language_model.targets)

    @property
    def terms(self) -> Sequence[Titled]:
        """The losses whose figures are shown."""
        return [self.language_model.loss, *([self.pair_task.loss] if self.pair_task else [])]

    @property
    def perplexity_of(self) -> str:
        """The figure whose exponential is the perplexity."""
        return f"{self.language_model.loss.name}_loss"

    def for_masking(self, kind: str) -> PreTrainingObjective:
        """Returns the objective that suits a kind of masking: spans bring the span boundary loss with them.

        Raises:
            ConfigError: spans are to be hidden, and the objective hides nothing.
        """
        if kind != "span":
            return replace(self, span_boundary=None)
        if self.language_model.targets != "masked":
            raise ConfigError(f"{self.name} hides no spans; the span boundary objective goes with mlm")
        return replace(self, span_boundary=SpanBoundaryLoss())

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that stay in the model's folder: with the pair head where there are pairs."""
        return ("masked_lm", "next_sentence") if self.pair_task else ("masked_lm",)

    @property
    def folders(self) -> tuple[str, ...]:
        """One model is trained."""
        return ("",)

    def networks(self, config: ModelConfig) -> tuple[ModelConfig, ...]:
        """One model is trained."""
        return (config,)

    def build_model(self, config: ModelConfig) -> ModelForPreTraining:
        """Returns a fresh model of a shape."""
        # 单向与否写进模型自己的配置：微调、生成、别的工具读这个文件夹时，看到的与训练时相同
        config = config.changed(is_decoder=self.language_model.is_causal)
        return self.complete(ModelForPreTraining(config, pair_head=self.pair_task is not None))

    def load_model(self, folder: str | Path, **changes: Any) -> ModelForPreTraining:
        """Returns the model of a folder; heads that it lacks are fresh."""
        missing = set(self.heads) - stored_heads(folder)
        changes["is_decoder"] = self.language_model.is_causal
        pair_head = self.pair_task is not None
        return self.complete(
            ModelForPreTraining.from_pretrained(folder, new_heads=missing, pair_head=pair_head, **changes)
        )

    def models(self, model: ModelForPreTraining) -> Mapping[str, PretrainedModel]:
        """One model is trained."""
        return {"": model}

    def complete(self, model: ModelForPreTraining) -> ModelForPreTraining:
        """Adds the heads that exist for the time of training; `save_pretrained` leaves them out."""
        if self.span_boundary:
            model.add_span_boundary()
        return model

    def total_loss(self, figures: Mapping[str, float]) -> float:
        """Returns the sum of the losses among figures; NaN without any."""
        losses = [value for name, value in figures.items() if name.endswith("_loss")]
        return sum(losses) if losses else math.nan

    def guessing_loss(self, num_pieces: int) -> float:
        """Returns log V of the pieces and log 2 of the pairs."""
        return math.log(num_pieces) + math.log(2)

    def __call__(self, model: nn.Module, batch: PreTrainingBatch) -> LossOutput:
        """Returns the summed loss and the figures of all parts.

        Args:
            model: as `build_model` makes it, wrapped or not.
            batch: of a stream that does what the objective needs.
        """
        return self.measure(self.run(model, batch), batch)

    def run(self, model: nn.Module, batch: PreTrainingBatch) -> PreTrainingOutput:
        """Returns what a model makes of a batch."""
        spans = batch.masked_spans if self.span_boundary else None
        output: PreTrainingOutput = model(batch.tokens, batch.masked_positions, masked_spans=spans)
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


_REGISTERED: dict[str, Objective] = {}


def register(objective: Objective) -> None:
    """Makes an objective known by its name."""
    _REGISTERED[objective.name] = objective


def objectives() -> dict[str, Objective]:
    """Returns every objective by its name; the files of this package are the list."""
    package: Any = import_module("bertsmith.objectives")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(_REGISTERED)


def objective_named(name: str) -> Objective:
    """Returns an objective.

    Raises:
        ConfigError: there is none of that name.
    """
    return named(name, objectives(), "objective")
