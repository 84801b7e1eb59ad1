"""The feature-based use: states of a frozen encoder as inputs of another model (Devlin et al. 2019, §5.3, table 7)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError, InputError
from bertsmith.model.backbone import BackboneOutput
from bertsmith.model.config import ModelConfig

LayerChoice = Literal[
    "embeddings", "second-to-last", "last", "weighted-sum-last-four", "concat-last-four", "weighted-sum-all"
]
"""The six rows of table 7. The paper's best is `concat-last-four`, 0.3 F1 behind fine-tuning."""


class LayerFeatures(nn.Module):
    """Turns the states of several layers into one vector a token.

    Attributes:
        size: its width: H, or 4H for `concat-last-four`.
        weights: [K], for the weighted sums: their softmax mixes the K layers; learned with the model on top. None
            for the other choices.
    """

    def __init__(self, config: ModelConfig, choice: LayerChoice | int) -> None:
        """Chooses the layers.

        Args:
            config: the encoder's shape.
            choice: one of `LayerChoice`, or the number of a layer, 0 for the embeddings up to L for the last.

        Raises:
            ConfigError: the choice is unknown, or the model has too few layers for it.
        """
        super().__init__()
        self.layers = _chosen_layers(choice, config.num_hidden_layers)
        self.concatenate = choice == "concat-last-four"
        self.size = config.hidden_size * (len(self.layers) if self.concatenate else 1)
        mixes = isinstance(choice, str) and choice.startswith("weighted-sum")
        self.weights = nn.Parameter(torch.zeros(len(self.layers))) if mixes else None

    def forward(self, output: BackboneOutput) -> Tensor:
        """Combines the layers.

        Args:
            output: of a backbone that was called with `need_layers=True`.

        Returns:
            [T, size] float32.

        Raises:
            InputError: the output holds no layers.
        """
        if output.layers is None:
            raise InputError("the states of all layers are needed; call the model with need_layers=True")
        chosen = [output.layers[layer].float() for layer in self.layers]
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
