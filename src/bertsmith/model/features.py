"""The feature-based use: states of a frozen encoder as inputs of another model (Devlin et al. 2019, §5.3, table 7).

A frozen encoder is always in evaluation mode, without dropout; one that learns with its top is the BiLSTM of §5.1.
While a run trains, the states of a sentence are computed when it is first met, and remembered: all later epochs cost
what the top costs. The folder is that of a plain backbone, and `features.safetensors` beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError, InputError
from bertsmith.hub import model_folder
from bertsmith.kernels.layers import Dropout, Linear
from bertsmith.model.backbone import Backbone, BackboneOutput, PretrainedModel, initialize_weights
from bertsmith.model.config import ModelConfig
from bertsmith.model.folder import StoredAs, read_modules, write_modules

LayerChoice = Literal[
    "embeddings", "second-to-last", "last", "weighted-sum-last-four", "concat-last-four", "weighted-sum-all"
]
"""The six rows of table 7. The paper's best is `concat-last-four`, 0.3 F1 behind fine-tuning."""


class LayerFeatures(nn.Module):
    """Turns the states of several layers into one vector a token.

    Args:
        choice: one of `LayerChoice`, or the number of a layer, 0 for the embeddings up to L for the last.

    Attributes:
        size: its width: H, or 4H for `concat-last-four`.
        weights: [K], learned: their softmax mixes the K layers of a weighted sum. None for the other choices.
    """

    def __init__(self, config: ModelConfig, choice: LayerChoice | int) -> None:
        super().__init__()
        self.layers = _chosen_layers(choice, config.num_hidden_layers)
        self.concatenate = choice == "concat-last-four"
        self.size = config.hidden_size * (len(self.layers) if self.concatenate else 1)
        mixes = isinstance(choice, str) and choice.startswith("weighted-sum")
        self.weights = nn.Parameter(torch.zeros(len(self.layers))) if mixes else None

    def forward(self, output: BackboneOutput) -> Tensor:
        """Combines the layers of a backbone that was called with `need_layers=True`: [T, size] float32."""
        if output.layers is None:
            raise InputError("the states of all layers are needed; call the model with need_layers=True")
        return self.combine([output.layers[layer] for layer in self.layers])

    def combine(self, chosen: Sequence[Tensor]) -> Tensor:
        """Combines the K states [T, H] of the chosen layers."""
        chosen = [states.float() for states in chosen]
        if self.concatenate:
            return torch.cat(chosen, dim=-1)
        if self.weights is None:
            return chosen[0]
        # softmax 让权重恒正且和为 1：特征的尺度不随训练漂移
        return torch.einsum("k,kth->th", self.weights.softmax(0), torch.stack(chosen))


def _chosen_layers(choice: LayerChoice | int, last: int) -> list[int]:
    if isinstance(choice, int):
        if not 0 <= choice <= last:
            raise ConfigError(f"layer {choice} is outside 0 (the embeddings) to {last} (the last layer)")
        return [choice]
    if choice not in get_args(LayerChoice):
        raise ConfigError(f"layers {choice!r} unknown; use a number or one of {', '.join(get_args(LayerChoice))}")
    if choice.endswith("last-four") and last < 4:
        raise ConfigError(f"{choice} needs 4 layers, the model has {last}")
    return {
        "embeddings": [0],
        "second-to-last": [last - 1],
        "last": [last],
        "weighted-sum-all": list(range(1, last + 1)),
    }.get(choice, list(range(last - 3, last + 1)))


Top = Literal["bilstm", "linear"]
TENSOR_FILE = "features.safetensors"

Packs = dict[bytes, RaggedBatch]
"""Sequence → the batch in which it is encoded."""


class FeatureTop(nn.Module):
    """Scores every token by the features of all tokens of its sequence (a BiLSTM), or, if linear, by its own."""

    def __init__(self, config: ModelConfig, input_size: int, top: Top, size: int) -> None:
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
            # 打包后的序列：两个方向都只走真实的词元，填充部分不会进入反向的状态
            states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            features = batch.unpad(states)
        logits: Tensor = self.classifier(self.dropout(features))
        return logits


class FeatureTagger(PretrainedModel):
    """An encoder, features of its layers, and a small model on top that learns.

    Attributes:
        packs: which sequences are encoded together, see `FeatureTaggingTask`; None remembers nothing. What is
            remembered takes K·H numbers of the compute dtype a token, with K layers chosen: 6 KB at `concat-last-four`
            of base in bf16, so 1.8 GB for the 0.3 million pieces of CoNLL-2003.
    """

    suffix = "Model"
    heads = ("features", "top")

    def __init__(
        self, backbone: Backbone, layers: LayerChoice | int, top: Top, size: int, *, is_frozen: bool = True
    ) -> None:
        """Puts a fresh top over an encoder, whose configuration names the labels; it learns too unless `is_frozen`."""
        super().__init__()
        self.config = backbone.config
        self.backbone = backbone.requires_grad_(not is_frozen)
        self.is_frozen = is_frozen
        self.train(self.training)
        self.features = LayerFeatures(backbone.config, layers)
        self.top = FeatureTop(backbone.config, self.features.size, top, size)
        self.packs: Packs | None = None
        self._remembered: dict[tuple[torch.dtype, bytes], Tensor] = {}

    @classmethod
    def load(
        cls, folder: str | Path, labels: Sequence[str], layers: LayerChoice | int, top: Top, size: int, **changes: Any
    ) -> FeatureTagger:
        """Returns what `save_pretrained` wrote, and remembers nothing; `changes` are of the encoder's configuration."""
        backbone = Backbone.from_pretrained(folder, need_pooler=False, id2label=dict(enumerate(labels)), **changes)
        model = cls(backbone, layers, top, size)
        read_modules(model_folder(folder) / TENSOR_FILE, model._own_modules())
        return model

    def train(self, mode: bool = True) -> FeatureTagger:
        """Switches the top, and the encoder where it learns; a frozen one stays in evaluation mode."""
        super().train(mode)
        self.backbone.train(mode and not self.is_frozen)
        return self

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Returns logits [T, num_labels]."""
        logits: Tensor = self.top(self.features.combine(self._chosen(batch).unbind(1)), batch)
        return logits

    def save_pretrained(self, folder: str | Path, *, weights: StoredAs = "float32") -> None:
        """Writes the folder of the encoder, as of a plain backbone, and `features.safetensors`."""
        self.backbone.save_pretrained(folder, weights=weights)
        write_modules(Path(folder) / TENSOR_FILE, self._own_modules())

    def _own_modules(self) -> dict[str, nn.Module]:
        return {"features": self.features, "top": self.top}

    def _chosen(self, batch: RaggedBatch) -> Tensor:
        """Returns [T, K, H], the K chosen layers of a batch, in the compute dtype."""
        if not self.is_frozen:
            return self._encode(batch)
        # 在推理模式之外计算：记住的状态之后要参与训练，推理模式造出的张量不行
        with torch.inference_mode(False), torch.no_grad():
            return self._encode(batch) if self.packs is None else self._recall(batch, self.packs)

    def _encode(self, batch: RaggedBatch) -> Tensor:
        """Runs the encoder."""
        layers = self.backbone(batch, need_layers=True).layers
        return torch.stack([layers[layer] for layer in self.features.layers], 1)

    def _recall(self, batch: RaggedBatch, packs: Packs) -> Tensor:
        """The same from memory; what is not there yet is encoded and kept."""
        device, dtype = batch.input_ids.device, self.backbone.embedding.compute_dtype
        keys = sequence_keys(batch)
        for key in keys:
            if key in packs and (dtype, key) not in self._remembered:
                self._remember(packs[key].to(device), dtype)
        if any((dtype, key) not in self._remembered for key in keys):
            # 没有排过的（开发集）：引擎总把同样的句子放在同一批里，按批编码即可
            self._remember(batch, dtype)
        return torch.cat([self._remembered[dtype, key] for key in keys]).to(device)

    def _remember(self, batch: RaggedBatch, dtype: torch.dtype) -> None:
        for key, states in zip(sequence_keys(batch), self._encode(batch).split(batch.lengths), strict=True):
            self._remembered.setdefault((dtype, key), states)


def sequence_keys(batch: RaggedBatch) -> list[bytes]:
    """Returns for each sequence of a batch its ids and segments as bytes."""
    both = torch.stack([batch.input_ids, batch.token_type_ids], 1).cpu()
    return [rows.numpy().tobytes() for rows in both.split(batch.lengths)]
