"""The task models: the backbone of any family, and the heads of a task (Devlin et al. 2019, figures 1 and 4).

The family is that of the configuration: `ModelForMaskedLM(config)` is a `BertForMaskedLM` for a `BertConfig`.
`architectures_by_name()` finds the class that a folder's `config.json` names.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.kernels.cross_entropy import PieceScores
from bertsmith.model.backbone import BackboneOutput, PretrainedModel, initialize_weights
from bertsmith.model.config import ModelConfig
from bertsmith.model.family import families
from bertsmith.model.folder import read_architecture, stored_rows
from bertsmith.model.heads import SpanBoundaryHead

TASK_MODELS: list[type[TaskModel]] = []
"""Every task model that has a name of its own, in the order of definition."""


class TaskModel(PretrainedModel):
    """A backbone with the heads of one task; `head_kinds` is our name of each head → its kind in `Family.heads`."""

    head_kinds: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        cls.heads = tuple(cls.head_kinds)
        if "suffix" in vars(cls):
            TASK_MODELS.append(cls)

    def __init__(self, config: ModelConfig, *, leave_out: Collection[str] = ()) -> None:
        """Builds the model with fresh weights, but for heads that it does without."""
        super().__init__()
        self.config = config
        kinds = {name: kind for name, kind in self.head_kinds.items() if name not in leave_out}
        lacking = [kind for kind in kinds.values() if kind not in config.family.heads]
        if lacking:
            raise ConfigError(
                f"the family {config.model_type!r} has no {lacking[0]} head, which a {type(self).__name__} needs; its"
                f" heads: {', '.join(config.family.heads)}"
            )
        classes = {name: config.family.heads[kind] for name, kind in kinds.items()}
        # 只有读 pooled 的头才需要 pooler
        need_pooler = any(cast("Any", head).reads == "pooled" for head in classes.values())
        self.backbone = config.family.backbone(config, need_pooler=need_pooler)
        for name, head in classes.items():
            self.add_module(name, head(config))
        for name in classes:
            initialize_weights(self.get_submodule(name), config.initializer_range)

    def read(self, name: str, output: BackboneOutput) -> Any:
        """Returns what a head says of the field of the backbone's output that it reads."""
        head = cast("Any", self.get_submodule(name))
        return head(getattr(output, head.reads))

    def published(self, batch: RaggedBatch) -> dict[str, Tensor]:
        """Returns the outputs by their names in `transformers`."""
        return {"logits": self(batch)}


class OneHeadModel(TaskModel):
    """A model whose outputs are what its one head says."""

    def forward(self, batch: RaggedBatch) -> Any:
        """Returns the outputs for a batch, as the class says."""
        (name,) = self.head_kinds
        return self.read(name, self.backbone(batch))


@dataclass(frozen=True)
class PreTrainingOutput:
    """What a pre-training model returns.

    Attributes:
        mlm: [M, V] scores; where gradients are taken they are computed when they are read.
        nsp_logits: [N, 2], class 0 is "is next" (or, for sentence order, "in order"); None without that head.
        sbo: [M, V] scores of the span boundary head, or None.
    """

    mlm: PieceScores
    nsp_logits: Tensor | None
    sbo: PieceScores | None
    encoded: BackboneOutput

    @property
    def mlm_logits(self) -> Tensor:
        """[M, V]."""
        return self.mlm.logits


class ModelForPreTraining(TaskModel):
    """Masked LM and next sentence: the two heads of the paper's pre-training (§3.1), and SpanBERT's while it trains."""

    suffix = "ForPreTraining"
    head_kinds: ClassVar[Mapping[str, str]] = {"masked_lm": "masked_lm", "next_sentence": "next_sentence"}
    options = ("pair_head",)
    training_heads = ("span_boundary",)
    token_outputs = ("prediction_logits",)
    sequence_outputs = ("seq_relationship_logits",)
    masked_lm: Any
    next_sentence: Any

    def __init__(self, config: ModelConfig, *, pair_head: bool = True) -> None:
        """Builds the model with fresh weights.

        Args:
            pair_head: False leaves the next-sentence head and the pooler out (§5.1, "no NSP"): the folder is then that
                of a `ModelForMaskedLM`.
        """
        super().__init__(config, leave_out=() if pair_head else ("next_sentence",))
        self.has_pair_head = pair_head
        self.span_boundary: SpanBoundaryHead | None = None

    @property
    def architecture(self) -> str:
        """The `transformers` class that reads the same folder."""
        return self.family.name + (self.suffix if self.has_pair_head else ModelForMaskedLM.suffix)

    def add_span_boundary(self) -> None:
        """Adds a fresh `SpanBoundaryHead`: training states hold it, `save_pretrained` leaves it out."""
        self.span_boundary = SpanBoundaryHead(self.config)
        initialize_weights(self.span_boundary, self.config.initializer_range)

    def forward(
        self,
        batch: RaggedBatch,
        masked_positions: Tensor | None = None,
        *,
        masked_spans: Tensor | None = None,
        need_states: bool = True,
    ) -> PreTrainingOutput:
        """Predicts the masked pieces, and whether B follows A.

        Args:
            masked_positions: [M] int64 indices into the T tokens; None is every token.
            masked_spans: [M, 3] int64, as `SpanBoundaryHead` takes them; None leaves that head out.
            need_states: False leaves the states of other tokens than the masked ones and `[CLS]` out of `encoded`,
                where there are no spans: behind its attention, the last block then computes a sixth.
        """
        # 最后一层之后只读被遮的词片和 [CLS]：其余六分之五的位置不必再过它的前馈层
        places = masked_positions if masked_spans is None and not need_states else None
        output = self.backbone(batch, places=places)
        states, embedding = output.hidden_states, self.backbone.embedding.word.weight
        # 只取被掩码的位置再做词表投影：其余 85% 的 logits 没有人看
        masked = states if masked_positions is None or places is not None else states.index_select(0, masked_positions)
        mlm = self.masked_lm.decode(self.masked_lm.transformed(masked), embedding)
        sbo = None
        if self.span_boundary is not None and masked_spans is not None:
            # 跨度边界头与 MLM 共用解码矩阵：两个目标训练同一张词嵌入表
            sbo = self.masked_lm.decode(self.span_boundary(states, masked_spans), embedding)
        if not torch.is_grad_enabled():
            # 求梯度时由损失一块一块地算，[M, V] 从不存在；不求时当场算好：读它的人可能已不在推理模式里
            _ = mlm.logits
        nsp_logits = self.read("next_sentence", output) if self.has_pair_head else None
        return PreTrainingOutput(mlm, nsp_logits, sbo, output)

    def published(self, batch: RaggedBatch) -> dict[str, Tensor]:
        """Returns the logits of both heads, or those of the masked LM as `ModelForMaskedLM` calls them."""
        output = self(batch)
        if output.nsp_logits is None:
            return {"logits": output.mlm_logits}
        return {"prediction_logits": output.mlm_logits, self.next_sentence.published: output.nsp_logits}


class ModelForMaskedLM(TaskModel):
    """The masked-LM head alone: the usual folder for filling masks."""

    suffix = "ForMaskedLM"
    head_kinds: ClassVar[Mapping[str, str]] = {"masked_lm": "masked_lm"}
    token_outputs = ("logits",)
    masked_lm: Any

    def forward(self, batch: RaggedBatch, masked_positions: Tensor | None = None) -> Tensor:
        """Returns logits [M, V] of the pieces at `masked_positions` [M], indices into the T tokens, or of all T."""
        states = self.backbone(batch, places=masked_positions).hidden_states
        logits: Tensor = self.masked_lm(states, self.backbone.embedding.word.weight)
        return logits


class ModelForReplacedTokenDetection(OneHeadModel):
    """Logits [T], above 0 where a token was replaced rather than not: the discriminator of Clark et al. 2020, §2."""

    suffix = "ForPreTraining"
    head_kinds: ClassVar[Mapping[str, str]] = {"replaced_tokens": "replaced_tokens"}
    token_outputs = ("logits",)


class ModelForNextSentencePrediction(OneHeadModel):
    """Logits [N, 2] for N sequences `[CLS] A [SEP] B [SEP]`; class 0 is "is next" (§3.1)."""

    suffix = "ForNextSentencePrediction"
    head_kinds: ClassVar[Mapping[str, str]] = {"next_sentence": "next_sentence"}
    sequence_outputs = ("logits",)
    next_sentence: Any


class LabelledModel(OneHeadModel):
    """A model with one output for each of `config.id2label`: logits [N, num_labels], or [T, num_labels] of tokens."""

    classifier: Any

    @classmethod
    def _found_in(cls, folder: str | Path, config: ModelConfig, fresh: tuple[str, ...]) -> tuple[Any, ModelConfig]:
        """Names the labels of a folder that holds a head but no names: `LABEL_0`, `LABEL_1` …, as its writer does."""
        kind, config = super()._found_in(folder, config, fresh)
        if config.id2label or fresh:
            return kind, config
        head = cast("Any", config.family.heads[cls.head_kinds["classifier"]])
        rows = stored_rows(folder, f"{config.family.names.heads[f'classifier.{head.output}']}.weight")
        if rows is None:
            raise CheckpointError(
                f"{folder}: holds no classifier; fine-tune one, or start one with new_heads=True and id2label"
            )
        return kind, config.changed(id2label={index: f"LABEL_{index}" for index in range(rows)})


class ModelForSequenceClassification(LabelledModel):
    """One linear layer over the pooled `[CLS]` (§4.1): classes, labels or a number, as `config.problem_type` says."""

    suffix = "ForSequenceClassification"
    head_kinds: ClassVar[Mapping[str, str]] = {"classifier": "sequence_classifier"}
    sequence_outputs = ("logits",)


class ModelForTokenClassification(LabelledModel):
    """One linear layer over every token's state, for tagging (§5.3)."""

    suffix = "ForTokenClassification"
    head_kinds: ClassVar[Mapping[str, str]] = {"classifier": "token_classifier"}
    token_outputs = ("logits",)


class ModelForQuestionAnswering(OneHeadModel):
    """The `SpanScores` of every token, for spans that answer a question; `best_spans` reads them (§4.2, §4.3)."""

    suffix = "ForQuestionAnswering"
    head_kinds: ClassVar[Mapping[str, str]] = {"spans": "spans"}
    token_outputs = ("start_logits", "end_logits")

    def published(self, batch: RaggedBatch) -> dict[str, Tensor]:
        """Returns the scores [T] of starts and ends."""
        start, end = self(batch)
        return {"start_logits": start, "end_logits": end}


class ModelForMultipleChoice(TaskModel):
    """One vector over the pooled `[CLS]` scores each choice (§4.4)."""

    suffix = "ForMultipleChoice"
    head_kinds: ClassVar[Mapping[str, str]] = {"classifier": "multiple_choice"}
    sequence_outputs = ("logits",)
    classifier: Any

    def forward(self, batch: RaggedBatch, num_choices: int) -> Tensor:
        """Scores the choices of every question, `num_choices` sequences each: [N / num_choices, num_choices] logits."""
        if num_choices < 1 or batch.num_sequences % num_choices:
            raise InputError(f"{batch.num_sequences} sequences do not divide into questions of {num_choices} choices")
        scores: Tensor = self.read("classifier", self.backbone(batch))
        return scores.view(-1, num_choices)

    def published(self, batch: RaggedBatch) -> dict[str, Tensor]:
        """Returns the scores [N] of all choices, question after question."""
        return {"logits": self.read("classifier", self.backbone(batch))}


@functools.cache
def architectures_by_name() -> dict[str, type[PretrainedModel]]:
    """Returns every architecture of every family by the name that `config.json` has for it."""
    found: dict[str, type[PretrainedModel]] = {}
    for family in families().values():
        found[f"{family.name}Model"] = family.backbone
        for model in TASK_MODELS:
            if family.heads.keys() >= set(model.head_kinds.values()):
                found[family.name + model.suffix] = model
    return found


def load_any(folder: str | Path) -> PretrainedModel:
    """Loads a folder as the architecture that its `config.json` names."""
    name = read_architecture(folder)
    known = architectures_by_name()
    if name not in known:
        raise CheckpointError(
            f"{folder}/config.json: architecture {name!r} is none of {', '.join(known)}; load the folder with"
            " the class you want"
        )
    return known[name].from_pretrained(folder)
