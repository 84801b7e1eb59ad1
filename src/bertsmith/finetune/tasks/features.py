"""The feature-based approach: a model on top of a frozen encoder's states (Devlin et al. 2019, §5.3, table 7).

The paper tags words with a BiLSTM of two layers over states of a BERT that is never trained: 0.3 F1 behind fine-tuning
on CoNLL-2003, and the encoder has to run once for each sentence only. Which sentences are encoded together is fixed
beforehand, by length, not by the order of training: a resumed run computes the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.tag import TaggingTask, labels_of_words
from bertsmith.finetune.tasks.task import LOST, CardText, EncodedExample, auto_model
from bertsmith.inference.engine import TOKEN_BUDGET, packs_by_length
from bertsmith.inference.tag import FeatureTag
from bertsmith.inference.task_file import read_task_file
from bertsmith.model import Backbone
from bertsmith.model.features import FeatureTagger, LayerChoice, Packs, Top, sequence_keys
from bertsmith.seeding import torch_seed
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer

BILSTM_SIZE = 768
"""The paper's; read as the width of each direction."""


@dataclass(frozen=True)
class FeatureOptions(Checked):
    """What can be chosen; see the attributes of `FeatureTaggingTask`."""

    panel: ClassVar[str] = "Options of the task"

    layers: str = option("concat-last-four", help="Layers of the frozen encoder to read.")
    tagger_head: Top = option("bilstm", help="Model that is trained on top of them.")
    tagger_head_size: int = option(0, min=1, help="Width of each direction of the BiLSTM.", shown_default="768")
    train_encoder: bool = option(False, help="Train the encoder too (§5.1); --layer-decay such as 0.5 slows it.")


@dataclass(frozen=True)
class FeatureTaggingTask(TaggingTask):
    """A tag for each word, learned on features of an encoder that stays as it is.

    Attributes:
        layers: which states are the features, as in `LayerFeatures`; the default was the paper's best.
        tagger_head: what learns: `bilstm`, the paper's two layers, or `linear`.
        tagger_head_size: width of each direction of a BiLSTM; 768 unless given.
        packs: filled by `encode`: which sequences of the training file are encoded together.
    """

    layers: LayerChoice | int = "concat-last-four"
    tagger_head: Top = option("bilstm")
    tagger_head_size: int = option(0, min=0)
    train_encoder: bool = False
    packs: Packs = field(default_factory=dict, compare=False, repr=False)

    spec: ClassVar = replace(
        TaggingTask.spec,
        name="features",
        title=("tagging over frozen features", "在冻结特征上标注"),
        architecture=FeatureTagger,
        pipeline=FeatureTag,
        card=CardText(
            "token-classification",
            "gives every word a tag, by a small network over the states of a frozen encoder",
            TaggingTask.spec.card.limit,
            TaggingTask.spec.card.ours,
            (f"{auto_model('AutoModel')[0]}  # the encoder alone",),
        ),
        options=FeatureOptions,
        # 只有新的小网络在学：从零开始的权重要大得多的学习率
        learning_rate=1e-3,
        is_explained=False,
        has_baselines=False,
    )

    def _check_together(self) -> None:
        if self.tagger_head == "linear" and self.tagger_head_size:
            raise ConfigError("a linear tagger head has no size of its own; leave the size out, or use bilstm")
        if self.tagger_head == "bilstm" and not self.tagger_head_size:
            object.__setattr__(self, "tagger_head_size", BILSTM_SIZE)

    @classmethod
    def learned_from(cls, train: Sequence[TaggedWords], options: FeatureOptions) -> FeatureTaggingTask:
        """Finds the tags of a training file."""
        layers: Any = int(options.layers) if str(options.layers).isdecimal() else options.layers
        chosen = (options.tagger_head, options.tagger_head_size, options.train_encoder)
        return cls(labels_of_words(train), layers, *chosen)

    def build(self, folder: Path, settings: FineTuningSettings) -> FeatureTagger:
        """Returns the encoder of a folder under a new tagger head."""
        if settings.from_random:
            raise ConfigError("random weights are no use frozen; leave out from_random")
        if settings.adapter or settings.freeze_layers:
            raise ConfigError("features trains the encoder not at all or whole; leave out adapter and frozen layers")
        if settings.layer_decay != 1.0 and not self.train_encoder:
            raise ConfigError("features trains no encoder; leave out layer decay")
        if settings.gradient_checkpointing not in ("auto", "none"):
            raise ConfigError("features keeps nothing of its encoder; leave out gradient checkpointing")
        frozen, head = not self.train_encoder, (self.layers, self.tagger_head, self.tagger_head_size)
        dropout: dict[str, Any] = {} if settings.dropout is None else {"hidden_dropout_prob": settings.dropout}
        if not self.fresh_because(folder, settings):
            model = FeatureTagger.load(folder, self.labels, *head, **dropout)
            model.is_frozen = frozen
            model.backbone.requires_grad_(not frozen)
        else:
            names = dict(enumerate(self.labels))
            bert = Backbone.from_pretrained(folder, need_pooler=False, id2label=names, problem_type=None, **dropout)
            # 头由种子单独决定，与载入编码器时用掉多少随机数无关
            torch.manual_seed(torch_seed(settings.seed, "finetune/new weights"))
            model = FeatureTagger(bert, *head, is_frozen=frozen)
        model.packs = self.packs if frozen else None
        return model

    def fresh_because(self, folder: Path, settings: FineTuningSettings) -> str:  # noqa: ARG002
        """Returns why the tagger head starts afresh; empty where the folder's is kept."""
        told, known = self.describe(), read_task_file(folder)
        if known.get("task") != self.name:
            return "there is none for this task in the folder"
        names = ("labels", "layers", "tagger_head", "tagger_head_size")
        other = next((name for name in names if known.get(name) != told[name]), None)
        return "" if other is None else f"{LOST} has other {other.replace('_', ' ')}"

    def load(self, folder: Path) -> FeatureTagger:
        """Returns a trained tagger; it remembers nothing, since it may meet any number of sentences."""
        return FeatureTagger.load(folder, self.labels, self.layers, self.tagger_head, self.tagger_head_size)

    def encode(self, tokenizer: Tokenizer, examples: Sequence[TaggedWords], max_length: int) -> list[EncodedExample]:
        """Encodes as `TaggingTask` does, and settles which sequences the frozen encoder reads together."""
        encoded = super().encode(tokenizer, examples, max_length)
        sequences = [example.input_ids[0] for example in encoded]
        # 同一句在不同的批里算出的末位会不同：一起编码的组合先定死，续跑才逐位相同
        self.packs.clear()
        for pack in packs_by_length([len(ids) for ids in sequences], TOKEN_BUDGET):
            batch = RaggedBatch.from_sequences([sequences[number] for number in pack])
            for key in sequence_keys(batch):
                self.packs.setdefault(key, batch)
        return encoded
