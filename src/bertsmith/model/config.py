"""`BertConfig`: the shape of a model, in the field names of `config.json`.

The named sizes are the published ones (Devlin et al. 2019, §3; Turc et al. 2019, "Well-Read Students Learn Better"):
H is a multiple of 64, every head has D = 64, and the feed-forward layer is four times as wide as the hidden state.
Other `L/H` pairs follow the same rule.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bertsmith.errors import CheckpointError, ConfigError

NAMED_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
"""Name → (L layers, H hidden size)."""

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
"""`gelu` is the exact one, with the error function, as in the released BERT; the two others are its tanh form."""


@dataclass(frozen=True)
class BertConfig:
    """The architecture of a BERT; see the paper's §3 and the released `bert_config.json`.

    Attributes:
        vocab_size: V, number of word pieces.
        hidden_size: H, width of every hidden state.
        num_hidden_layers: L, number of Transformer blocks.
        num_attention_heads: A; H must be a multiple of it.
        intermediate_size: width inside the feed-forward layer.
        hidden_act: one of `ACTIVATIONS`.
        hidden_dropout_prob: dropout after the embeddings and after each sub-layer, in [0, 1).
        attention_probs_dropout_prob: dropout on attention probabilities, in [0, 1).
        max_position_embeddings: longest sequence the model can read.
        type_vocab_size: number of segments.
        initializer_range: standard deviation of the truncated normal initialisation.
        layer_norm_eps: added to the variance in LayerNorm.
        pad_token_id: id of `[PAD]`.
        id2label: names of the classes of a classifier, by id; empty for a model without one.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    id2label: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks what no model can be built from."""
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            _check_positive(name, getattr(self, name))
        for name in ("max_position_embeddings", "type_vocab_size"):
            _check_positive(name, getattr(self, name))
        # 每个头宽度相同，[T, H] 才能按头切成 [T, A, D]
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act {self.hidden_act!r} is unknown; use one of {', '.join(ACTIVATIONS)}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name} {getattr(self, name)} is outside [0, 1)")

    @classmethod
    def named(cls, size: str, **overrides: Any) -> BertConfig:
        """Returns the configuration of a published size.

        Args:
            size: a name of `NAMED_SIZES`, or `L/H` such as `6/384` with H a multiple of 64.
            **overrides: any field, such as `vocab_size`.

        Raises:
            ConfigError: the size is no name and no valid `L/H`, or an override is no field.
        """
        layers, hidden = NAMED_SIZES.get(size) or _parse_layers_and_hidden(size)
        shape = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": hidden // 64,
            "intermediate_size": 4 * hidden,
        }
        unknown = set(overrides) - {f.name for f in fields(cls)}
        if unknown:
            raise ConfigError(f"BertConfig has no field {', '.join(sorted(unknown))}")
        return cls(**{**shape, **overrides})

    @classmethod
    def load(cls, folder: str | Path) -> BertConfig:
        """Reads `config.json` of a model folder.

        Raises:
            CheckpointError: the file is missing, not JSON, or describes another architecture.
            ConfigError: a value is impossible.
        """
        path = Path(folder) / "config.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{folder}: no config.json; this is not a model folder") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: not valid JSON ({error})") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: holds no JSON object; this is not a model configuration")
        if values.get("model_type", "bert") != "bert":
            raise CheckpointError(f"{path}: model_type is {values['model_type']!r}; bertsmith reads 'bert' only")
        if values.get("position_embedding_type", "absolute") != "absolute":
            raise CheckpointError(f"{path}: position_embedding_type must be 'absolute', the paper's")
        known = {f.name for f in fields(cls)}
        chosen = {name: value for name, value in values.items() if name in known}
        try:
            labels = chosen.get("id2label") or {}
            chosen["id2label"] = {int(key): str(label) for key, label in labels.items()}
            if sorted(chosen["id2label"]) != list(range(len(labels))):
                raise ValueError("id2label does not count from 0")
            return cls(**chosen)
        except (TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path}: a value has the wrong type ({error})") from None

    def save(self, path: str | Path, *, architecture: str) -> None:
        """Writes `config.json` as `transformers` reads it.

        Args:
            path: where to write the file.
            architecture: the `transformers` class that fits the weights, such as `BertForPreTraining`.
        """
        values: dict[str, Any] = {"model_type": "bert", "architectures": [architecture], **asdict(self)}
        if self.id2label:
            values["id2label"] = {str(key): label for key, label in self.id2label.items()}
            values["label2id"] = {label: key for key, label in self.id2label.items()}
        else:
            del values["id2label"]
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    def replace(self, **changes: Any) -> BertConfig:
        """Returns a copy with some fields changed."""
        return replace(self, **changes)

    @property
    def head_size(self) -> int:
        """D, the width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_encoder_parameters(self) -> int:
        """Parameters of the L blocks alone, by the closed form 12 H² L plus biases and norms when FFN = 4H."""
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = 4 * (hidden * hidden + hidden)
        feed_forward = hidden * inner + inner + inner * hidden + hidden
        norms = 4 * hidden
        return self.num_hidden_layers * (attention + feed_forward + norms)


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"{name} is {value!r}; it must be a positive whole number")


def _parse_layers_and_hidden(size: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", size)
    if not match:
        raise ConfigError(f"size {size!r} is unknown; use one of {', '.join(NAMED_SIZES)} or L/H such as 6/384")
    layers, hidden = int(match[1]), int(match[2])
    if layers == 0 or hidden == 0 or hidden % 64:
        raise ConfigError(f"size {size!r}: L must be positive and H a positive multiple of 64, the size of a head")
    return layers, hidden
