"""`BertConfig`: the shape of a model, in the field names of `config.json`.

The named sizes are the published ones (Devlin et al. 2019, §3; Turc et al. 2019, "Well-Read Students Learn Better"):
H is a multiple of 64, every head has D = 64, and the feed-forward layer is four times as wide as the hidden state.
Other `L/H` pairs follow the same rule.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
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
"""`gelu` is the exact one, with the error function, as `config.json` means it; the next two are its tanh form,
which the TensorFlow release computed under the name `gelu`."""

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
"""One class of many (softmax), any number of classes (a sigmoid each), or a number (the output itself)."""

_SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_UNSUPPORTED: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
"""Fields of `config.json` that change what is computed, and the only value that is the paper's BERT."""


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
        tie_word_embeddings: the masked-LM decoder is the word embedding itself, as in the release; False gives it a
            matrix of its own.
        classifier_dropout: dropout before a classifier, in [0, 1); None takes `hidden_dropout_prob`.
        id2label: names of the classes of a classifier, by id; empty for a model without one.
        problem_type: how a sequence classifier's outputs are read, one of `PROBLEM_TYPES`; None is one class of many.
        pruned_heads: heads that were cut out, by layer, counted as in the whole model.
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
    tie_word_embeddings: bool = True
    classifier_dropout: float | None = None
    id2label: dict[int, str] = field(default_factory=dict)
    problem_type: str | None = None
    pruned_heads: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks what no model can be built from."""
        for name in (*_SHAPE, "max_position_embeddings", "type_vocab_size"):
            _check_positive(name, getattr(self, name))
        # 每个头宽度相同，[T, H] 才能按头切成 [T, A, D]
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act {self.hidden_act!r} is unknown; use one of {', '.join(ACTIVATIONS)}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share < 1.0:
                raise ConfigError(f"{name} {share} is outside [0, 1)")
        for name in ("initializer_range", "layer_norm_eps"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} {getattr(self, name)} must be positive")
        if self.problem_type not in (None, *PROBLEM_TYPES):
            raise ConfigError(f"problem_type {self.problem_type!r} is unknown; use one of {', '.join(PROBLEM_TYPES)}")
        if not isinstance(self.pad_token_id, int) or isinstance(self.pad_token_id, bool):
            raise ConfigError(f"pad_token_id is {self.pad_token_id!r}; it must be a whole number")
        # 字符串 "false" 也算真：不检查就会悄悄按相反的意思建模型
        if not isinstance(self.tie_word_embeddings, bool):
            raise ConfigError(f"tie_word_embeddings is {self.tie_word_embeddings!r}; it must be true or false")
        counts = Counter(self.id2label.values())
        twice = next((label for label, count in counts.items() if count > 1), None)
        if twice is not None:
            raise ConfigError(f"id2label has {twice!r} more than once; give every class a name of its own")
        for layer, heads in self.pruned_heads.items():
            possible = range(self.num_attention_heads)
            if (
                layer not in range(self.num_hidden_layers)
                or not set(heads) < set(possible)
                or len(set(heads)) < len(heads)
            ):
                raise ConfigError(
                    f"pruned_heads {layer}: {list(heads)}: layers count to {self.num_hidden_layers - 1}, heads to"
                    f" {self.num_attention_heads - 1}, each once, and one head at least must stay"
                )

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
        shape: dict[str, Any] = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": hidden // 64,
            "intermediate_size": 4 * hidden,
        }
        return cls(**shape).changed(**overrides)

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
        known = [f.name for f in fields(cls)]
        _refuse_what_is_not_bert(values, known, path)
        # 显式写着 null 的字段等于没写，用默认值（id2label、pad_token_id 等）；形状没有默认值，上面已拒绝
        chosen = {name: value for name, value in values.items() if name in known and value is not None}
        try:
            labels = {int(key): str(label) for key, label in chosen.get("id2label", {}).items()}
            if sorted(labels) != list(range(len(labels))):
                raise ValueError("id2label does not count from 0")
            pruned = {int(layer): tuple(map(int, heads)) for layer, heads in chosen.get("pruned_heads", {}).items()}
            return cls(**{**chosen, "id2label": labels, "pruned_heads": pruned})
        except (TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path}: a value has the wrong type ({error})") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def save(self, path: str | Path, *, architecture: str) -> None:
        """Writes `config.json` as `transformers` reads it.

        Args:
            path: where to write the file.
            architecture: the `transformers` class that fits the weights, such as `BertForPreTraining`.
        """
        values: dict[str, Any] = {"model_type": "bert", "architectures": [architecture], **asdict(self)}
        if self.id2label:
            values["label2id"] = {label: key for key, label in self.id2label.items()}
        for name in ("id2label", "problem_type", "pruned_heads"):
            if not values[name]:
                del values[name]
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    def changed(self, **changes: Any) -> BertConfig:
        """Returns a copy with some fields changed.

        Raises:
            ConfigError: a name is no field, or the result is impossible.
        """
        unknown = changes.keys() - {f.name for f in fields(self)}
        if unknown:
            raise ConfigError(f"BertConfig has no field {', '.join(sorted(unknown))}")
        return replace(self, **changes)

    def heads_left(self, layer: int) -> tuple[int, ...]:
        """Returns the heads of a layer that were not pruned, counted as in the whole model."""
        pruned = self.pruned_heads.get(layer, ())
        return tuple(head for head in range(self.num_attention_heads) if head not in pruned)

    @property
    def head_size(self) -> int:
        """D, the width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def attention_widths(self) -> list[int]:
        """The width of all heads that are left, layer by layer; H each where none was pruned."""
        return [len(self.heads_left(layer)) * self.head_size for layer in range(self.num_hidden_layers)]

    @property
    def num_encoder_parameters(self) -> int:
        """Parameters of the L blocks alone, by the closed form 12 H² L plus biases and norms when FFN = 4H."""
        hidden, inner = self.hidden_size, self.intermediate_size
        feed_forward = hidden * inner + inner + inner * hidden + hidden
        norms = 4 * hidden
        attention = sum(3 * (hidden * width + width) + width * hidden + hidden for width in self.attention_widths)
        return attention + self.num_hidden_layers * (feed_forward + norms)


def _refuse_what_is_not_bert(values: dict[str, Any], known: list[str], path: Path) -> None:
    """Refuses a configuration that another network would be built from, instead of guessing."""
    architectures = values.get("architectures") or ["Bert"]
    if not isinstance(architectures, list):
        raise CheckpointError(f"{path}: architectures is {architectures!r}, not a list of names")
    architecture = architectures[0]
    if not str(architecture).startswith("Bert"):
        raise CheckpointError(f"{path}: architecture {architecture!r}; bertsmith reads BERT models only")
    for name, only in _UNSUPPORTED.items():
        if values.get(name, only) != only:
            raise CheckpointError(f"{path}: {name} is {values[name]!r}; only {only!r}, the paper's, can be read")
    missing = [name for name in _SHAPE if values.get(name) is None]
    if missing:
        raise CheckpointError(f"{path}: has no {', '.join(missing)}; the shape of a model cannot be guessed")
    for name in values.keys() - set(known):
        # 别的工具会写许多无关字段，一律放过；但与某个已知字段只差一两个字母的，多半是笔误
        meant = difflib.get_close_matches(name, [field for field in known if field not in values], n=1, cutoff=0.9)
        if meant:
            raise CheckpointError(f"{path}: {name!r} is no field; did you mean {meant[0]!r}?")


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
