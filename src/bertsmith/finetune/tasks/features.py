"""The feature-based approach: a model on top of a frozen encoder's states (Devlin et al. 2019, §5.3, table 7).

The paper tags words with a BiLSTM of two layers over states of a BERT that is never trained: 0.3 F1 behind fine-tuning
on CoNLL-2003, and the encoder has to run once for each sentence only.

Notable:
- which sentences are encoded together is fixed beforehand, by length, not by the order of training: a resumed run
  computes the same bits
- the network itself, and what it remembers while it trains, is `model.feature_tagger`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.finetune.tasks.task import Evaluation, Unit
from bertsmith.inference.engine import TOKEN_BUDGET, InferenceConfig, packs_by_length
from bertsmith.inference.tag import Tag, WordTags
from bertsmith.model import BertModel
from bertsmith.model.feature_tagger import FeatureTagger, Packs, Top, sequence_keys
from bertsmith.model.features import LayerChoice
from bertsmith.objectives import LabelledBatch, TaggingObjective
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.seeding import torch_seed
from bertsmith.tokenizer import WordPieceTokenizer

BILSTM_SIZE = 768
"""The paper's; read as the width of each direction."""


@dataclass(frozen=True)
class FeatureTaggingTask:
    """A tag for each word, learned on features of an encoder that stays as it is.

    Attributes:
        labels: the tags, in the order of the model's outputs.
        layers: which states are the features, as in `LayerFeatures`; the default was the paper's best.
        top: what learns: `bilstm`, the paper's two layers, or `linear`.
        top_size: width of each direction of a BiLSTM; 768 unless given.
        packs: filled by `encode`: which sequences of the training file are encoded together.
    """

    labels: tuple[str, ...]
    layers: LayerChoice | int = "concat-last-four"
    top: Top = "bilstm"
    top_size: int = 0
    packs: Packs = field(default_factory=dict, compare=False, repr=False)

    name: ClassVar[str] = "features"

    def __post_init__(self) -> None:
        """Fills in the size, and checks the top; the layers are checked against the encoder."""
        if self.top not in get_args(Top):
            raise ConfigError(f"top {self.top!r} is unknown; use {' or '.join(get_args(Top))}")
        if self.top_size < 0:
            raise ConfigError(f"top size {self.top_size} must be positive")
        if self.top == "linear" and self.top_size:
            raise ConfigError("a linear top has no size of its own; leave the size out, or use bilstm")
        if self.top == "bilstm" and not self.top_size:
            object.__setattr__(self, "top_size", BILSTM_SIZE)

    @classmethod
    def of(
        cls,
        train: Sequence[TaggedWords],
        *,
        layers: str | int = "concat-last-four",
        top: Any = "bilstm",
        top_size: int = 0,
    ) -> FeatureTaggingTask:
        """Finds the tags of a training file.

        Args:
            train: tagged sentences.
            layers: as in `LayerFeatures`; a number may be given as text.
            top: `bilstm` or `linear`.
            top_size: of a BiLSTM.

        Raises:
            InputError: there is one tag only, or none.
            ConfigError: an option is impossible.
        """
        choice: Any = int(layers) if str(layers).isdecimal() else layers
        return cls(TaggingTask.of(train).labels, choice, top, top_size)

    @property
    def metric(self) -> str:
        """As in `TaggingTask`."""
        return self._tagging.metric

    @property
    def _tagging(self) -> TaggingTask:
        return TaggingTask(self.labels)

    def check_dev(self, dev: Sequence[TaggedWords]) -> None:
        """As in `TaggingTask`."""
        self._tagging.check_dev(dev)

    def describe(self) -> dict[str, Any]:
        """Returns the tags, the layers, and the shape of the top."""
        return {"labels": list(self.labels), "layers": self.layers, "top": self.top, "top_size": self.top_size}

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> FeatureTaggingTask:
        """Reads what `describe` returned."""
        return cls(tuple(values["labels"]), values["layers"], values["top"], int(values["top_size"]))

    def build(self, folder: Path, settings: FineTuningSettings) -> FeatureTagger:
        """Returns the frozen encoder of a folder under a new top.

        Args:
            folder: a model folder.
            settings: `dropout` is the top's; what concerns the training of the encoder has no effect.

        Raises:
            ConfigError: random weights are asked for, or the encoder has no such layers.
        """
        if settings.from_random:
            raise ConfigError("random weights are no use frozen; leave out from_random")
        if settings.adapter or settings.freeze_layers or settings.layer_decay != 1.0:
            raise ConfigError("features trains no encoder; leave out adapter, frozen layers and layer decay")
        if settings.gradient_checkpointing not in ("auto", "none"):
            raise ConfigError("features keeps nothing of its encoder; leave out gradient checkpointing")
        dropout: dict[str, Any] = {} if settings.dropout is None else {"hidden_dropout_prob": settings.dropout}
        names = dict(enumerate(self.labels))
        bert = BertModel.from_pretrained(folder, need_pooler=False, id2label=names, problem_type=None, **dropout)
        torch.manual_seed(torch_seed(settings.seed, "finetune/new weights"))
        model = FeatureTagger(bert, self.layers, self.top, self.top_size)
        model.packs = self.packs
        return model

    def load(self, folder: Path) -> FeatureTagger:
        """Returns a trained tagger; it remembers nothing, since it may meet any number of sentences."""
        return FeatureTagger.load(folder, self.labels, self.layers, self.top, self.top_size)

    def encode(self, tokenizer: WordPieceTokenizer, examples: Sequence[TaggedWords], max_length: int) -> list[Unit]:
        """Returns units as `TaggingTask` does, and settles which of them are encoded together."""
        units = self._tagging.encode(tokenizer, examples, max_length)
        sequences = [unit.input_ids[0] for unit in units]
        # 同一句在不同的批里算出的末位会不同：一起编码的组合先定死，续跑才逐位相同
        self.packs.clear()
        for pack in packs_by_length([len(ids) for ids in sequences], TOKEN_BUDGET):
            batch = RaggedBatch.from_sequences([sequences[number] for number in pack])
            for key in sequence_keys(batch):
                self.packs.setdefault(key, batch)
        return units

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Returns N sequences with labels [T] int64."""
        return self._tagging.batch(units)

    def measure(self, model: Any, batch: LabelledBatch) -> LossOutput:
        """Returns the cross-entropy over words."""
        return TaggingObjective()(model, batch)

    def predict(
        self,
        model: Any,
        tokenizer: WordPieceTokenizer,
        examples: Sequence[TaggedWords],
        inference: InferenceConfig,
    ) -> list[WordTags]:
        """Tags the sentences."""
        return Tag(model, tokenizer, inference).score_words([example.words for example in examples])

    def tuned(self, _examples: Sequence[TaggedWords], _predictions: Sequence[WordTags]) -> FeatureTaggingTask:
        """Returns the task itself: the likeliest tag needs no threshold."""
        return self

    def figures(self, examples: Sequence[TaggedWords], predictions: Sequence[WordTags]) -> dict[str, float]:
        """Scores as `TaggingTask` does."""
        return self._tagging.figures(examples, predictions)

    def evaluate(self, examples: Sequence[TaggedWords], predictions: Sequence[WordTags]) -> Evaluation:
        """Scores as `TaggingTask` does."""
        return self._tagging.evaluate(examples, predictions)
