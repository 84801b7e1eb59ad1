"""The feature-based approach: a model on top of a frozen encoder's states (Devlin et al. 2019, §5.3, table 7).

The paper tags words with a BiLSTM of two layers over states of a BERT that is never trained: 0.3 F1 behind fine-tuning
on CoNLL-2003, and the encoder has to run once for each sentence only.

Notable:
- the encoder is always in evaluation mode, without dropout, and takes no gradient
- while a run trains, the states of a sentence are computed when it is first met, and remembered: all later epochs cost
  what the top costs
- which sentences are encoded together is fixed beforehand, by length, not by the order of training: a resumed run
  computes the same bits
- the folder is that of a plain `BertModel`, which every tool of the field reads, and `features.safetensors` beside it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tag import TaggingTask
from bertsmith.finetune.tagged import TaggedWords
from bertsmith.finetune.task import Evaluation, Unit
from bertsmith.finetune.tensor_file import read_tensors, write_tensors
from bertsmith.inference.engine import TOKEN_BUDGET, RunsOn, packs_by_length
from bertsmith.inference.precision import Precision
from bertsmith.inference.tag import Tag, WordTags
from bertsmith.inference.task_file import read_task_file, runs_on_of
from bertsmith.model import BertModel, LayerFeatures, PretrainedBert
from bertsmith.model.bert import BertOutput
from bertsmith.model.config import BertConfig
from bertsmith.model.features import LayerChoice
from bertsmith.model.layers import Dropout, Linear
from bertsmith.model.pretrained import initialize_weights
from bertsmith.objectives import LabelledBatch, TaggingObjective
from bertsmith.objectives.measure import Measure
from bertsmith.seeding import torch_seed
from bertsmith.tokenizer import WordPieceTokenizer

Top = Literal["bilstm", "linear"]
TENSOR_FILE = "features.safetensors"
BILSTM_SIZE = 768
"""The paper's; read as the width of each direction."""

Packs = dict[bytes, RaggedBatch]
"""Sequence → the batch in which it is encoded."""


class FeatureTop(nn.Module):
    """Scores every token by the features of all tokens of its sequence, or, if linear, by its own."""

    def __init__(self, config: BertConfig, input_size: int, top: Top, size: int) -> None:
        """Builds it with fresh weights.

        Args:
            config: names the labels, and says how much is dropped while training.
            input_size: F, width of the features.
            top: its kind.
            size: width of each direction of a BiLSTM.
        """
        super().__init__()
        share = config.hidden_dropout_prob
        self.lstm = (
            nn.LSTM(input_size, size, num_layers=2, dropout=share, bidirectional=True, batch_first=True)
            if top == "bilstm"
            else None
        )
        self.dropout = Dropout(share)
        self.classifier = Linear(2 * size if top == "bilstm" else input_size, len(config.id2label))
        initialize_weights(self.classifier, config.initializer_range)

    def forward(self, features: Tensor, batch: RaggedBatch) -> Tensor:
        """Maps features [T, F] float32 to logits [T, num_labels]."""
        if self.lstm is not None:
            lengths = torch.tensor(batch.lengths)
            packed = pack_padded_sequence(batch.pad(features), lengths, batch_first=True, enforce_sorted=False)
            # 打包后的序列：两个方向都只走真实的词元，补齐部分不会进入反向的状态
            states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            features = batch.unpad(states)
        logits: Tensor = self.classifier(self.dropout(features))
        return logits


class BertWithFeatures(PretrainedBert):
    """A frozen encoder, features of its layers, and a small model on top that learns.

    Attributes:
        bert: the encoder, without pooler.
        packs: which sequences are encoded together, see `FeatureTaggingTask`; None remembers nothing. What is
            remembered takes K·H numbers of the compute dtype a token, with K layers chosen: 6 KB at `concat-last-four`
            of base in bf16, so 1.8 GB for the 0.3 million pieces of CoNLL-2003.
    """

    architecture = "BertModel"
    heads = ("features", "top")

    def __init__(self, bert: BertModel, layers: LayerChoice | int, top: Top, size: int) -> None:
        """Puts a fresh top over an encoder, which is frozen.

        Args:
            bert: its configuration names the labels.
            layers: as in `LayerFeatures`.
            top: `bilstm` or `linear`.
            size: of a BiLSTM.

        Raises:
            ConfigError: the encoder has no such layers.
        """
        super().__init__()
        self.config = bert.config
        self.bert = bert.requires_grad_(False).eval()
        self.features = LayerFeatures(bert.config, layers)
        self.top = FeatureTop(bert.config, self.features.size, top, size)
        self.packs: Packs | None = None
        self._remembered: dict[tuple[torch.dtype, bytes], Tensor] = {}

    def train(self, mode: bool = True) -> BertWithFeatures:
        """Switches the top; the encoder stays in evaluation mode."""
        super().train(mode)
        self.bert.eval()
        return self

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Returns logits [T, num_labels]."""
        logits: Tensor = self.top(self.features(self._states(batch)), batch)
        return logits

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the folder of the encoder, as a `BertModel`, and `features.safetensors`; see `PretrainedBert`."""
        self.bert.save_pretrained(folder)
        write_tensors(Path(folder) / TENSOR_FILE, self._own_modules())

    def read_top(self, folder: str | Path) -> None:
        """Fills in what `save_pretrained` wrote to `features.safetensors`.

        Raises:
            CheckpointError: the file is missing, damaged, or of another top.
        """
        read_tensors(Path(folder) / TENSOR_FILE, self._own_modules())

    def _own_modules(self) -> dict[str, nn.Module]:
        return {"features": self.features, "top": self.top}

    def _states(self, batch: RaggedBatch) -> BertOutput:
        """Returns the chosen layers of a batch; the places of all other layers are empty."""
        # 在推理模式之外计算：记住的状态之后要参与训练，推理模式造出的张量不行
        with torch.inference_mode(False), torch.no_grad():
            chosen = self._encode(batch) if self.packs is None else self._recall(batch, self.packs)
        layers = [chosen.new_empty(0)] * (self.config.num_hidden_layers + 1)
        for layer, states in zip(self.features.layers, chosen.unbind(1), strict=True):
            layers[layer] = states
        return BertOutput(layers[-1], layers[-1], None, layers)

    def _encode(self, batch: RaggedBatch) -> Tensor:
        """Runs the encoder: [T, K, H] of the K chosen layers, in the compute dtype."""
        layers = self.bert(batch, need_layers=True).layers
        return torch.stack([layers[layer] for layer in self.features.layers], 1)

    def _recall(self, batch: RaggedBatch, packs: Packs) -> Tensor:
        """The same from memory; what is not there yet is encoded and kept."""
        device, dtype = batch.input_ids.device, self.bert.embedding.compute_dtype
        keys = _keys(batch)
        for key in keys:
            if key in packs and (dtype, key) not in self._remembered:
                self._remember(packs[key].to(device), dtype)
        if any((dtype, key) not in self._remembered for key in keys):
            # 没有排过的（开发集）：引擎总把同样的句子放在同一批里，按批编码即可
            self._remember(batch, dtype)
        return torch.cat([self._remembered[dtype, key] for key in keys]).to(device)

    def _remember(self, batch: RaggedBatch, dtype: torch.dtype) -> None:
        for key, states in zip(_keys(batch), self._encode(batch).split(batch.lengths), strict=True):
            self._remembered.setdefault((dtype, key), states)


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

    def describe(self) -> dict[str, Any]:
        """Returns the tags, the layers, and the shape of the top."""
        return {"labels": list(self.labels), "layers": self.layers, "top": self.top, "top_size": self.top_size}

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> FeatureTaggingTask:
        """Reads what `describe` returned."""
        return cls(tuple(values["labels"]), values["layers"], values["top"], int(values["top_size"]))

    def build(self, folder: Path, settings: FineTuningSettings) -> BertWithFeatures:
        """Returns the frozen encoder of a folder under a new top.

        Args:
            folder: a model folder.
            settings: `dropout` is the top's; what concerns the training of the encoder has no effect.

        Raises:
            ConfigError: random weights are asked for, or the encoder has no such layers.
        """
        if settings.from_random:
            raise ConfigError("random weights are no use frozen; leave out from_random")
        if settings.adapter or settings.freeze_layers:
            raise ConfigError("features trains no encoder; leave out the adapter and the frozen layers")
        dropout: dict[str, Any] = {} if settings.dropout is None else {"hidden_dropout_prob": settings.dropout}
        names = dict(enumerate(self.labels))
        bert = BertModel.from_pretrained(folder, need_pooler=False, id2label=names, problem_type=None, **dropout)
        torch.manual_seed(torch_seed(settings.seed, "finetune/new weights"))
        model = BertWithFeatures(bert, self.layers, self.top, self.top_size)
        model.packs = self.packs
        return model

    def load(self, folder: Path) -> BertWithFeatures:
        """Returns a trained tagger; it remembers nothing, since it may meet any number of sentences."""
        names = dict(enumerate(self.labels))
        bert = BertModel.from_pretrained(folder, need_pooler=False, id2label=names)
        model = BertWithFeatures(bert, self.layers, self.top, self.top_size)
        model.read_top(folder)
        return model

    def encode(self, tokenizer: WordPieceTokenizer, examples: Sequence[TaggedWords], max_length: int) -> list[Unit]:
        """Returns units as `TaggingTask` does, and settles which of them are encoded together."""
        units = self._tagging.encode(tokenizer, examples, max_length)
        sequences = [unit.input_ids[0] for unit in units]
        self.packs.clear()
        for pack in packs_by_length([len(ids) for ids in sequences], TOKEN_BUDGET):
            batch = RaggedBatch.from_sequences([sequences[number] for number in pack])
            for key in _keys(batch):
                self.packs.setdefault(key, batch)
        return units

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Returns N sequences with labels [T] int64."""
        return self._tagging.batch(units)

    def measure(self, model: Any, batch: LabelledBatch) -> Measure:
        """Returns the cross-entropy over words."""
        return TaggingObjective()(model, batch)

    def predict(
        self, model: Any, tokenizer: WordPieceTokenizer, examples: Sequence[TaggedWords], runs_on: RunsOn
    ) -> list[WordTags]:
        """Tags the sentences."""
        return Tag(model, tokenizer, runs_on).score_words([example.words for example in examples])

    def tuned(self, _examples: Sequence[TaggedWords], _predictions: Sequence[WordTags]) -> FeatureTaggingTask:
        """Returns the task itself: the likeliest tag needs no threshold."""
        return self

    def figures(self, examples: Sequence[TaggedWords], predictions: Sequence[WordTags]) -> dict[str, float]:
        """Scores as `TaggingTask` does."""
        return self._tagging.figures(examples, predictions)

    def evaluate(self, examples: Sequence[TaggedWords], predictions: Sequence[WordTags]) -> Evaluation:
        """Scores as `TaggingTask` does."""
        return self._tagging.evaluate(examples, predictions)


def _keys(batch: RaggedBatch) -> list[bytes]:
    """Returns for each sequence of a batch its ids and segments as bytes."""
    both = torch.stack([batch.input_ids, batch.token_type_ids], 1).cpu()
    return [rows.numpy().tobytes() for rows in both.split(batch.lengths)]


def load_feature_tagger(
    folder: Path, *, precision: Precision | None = None, device: torch.device | str | None = None
) -> Tag:
    """Returns the tagging pipeline over a folder that `bertsmith finetune features` has written.

    Args:
        folder: the model folder.
        precision: as in `RunsOn`.
        device: likewise.

    Raises:
        CheckpointError: the folder holds no such model.
    """
    values = read_task_file(folder)
    if values.get("task") != FeatureTaggingTask.name:
        raise CheckpointError(f"{folder}: was not written by `bertsmith finetune features`; ask for another pipeline")
    model: Any = FeatureTaggingTask.from_description(values).load(folder)
    runs_on = runs_on_of(folder, precision=precision, device=device)
    return Tag(model, WordPieceTokenizer.load(folder), runs_on)
