"""`ModelConfig`: what the configurations of all families share, and `config.json`, where they are kept.

Each family defines its own frozen dataclass with the fields of its `config.json` (`families/bert.py` has `BertConfig`).
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertsmith.batch import CAUSAL, FULL, AttentionMask
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.files import parse_json
from bertsmith.hub import model_folder, no_model_in
from bertsmith.model.family import Family, families
from bertsmith.settings import Checked

if TYPE_CHECKING:
    from typing_extensions import Self

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
"""`gelu` is the exact one, with the error function, as `config.json` means it; the next two are its tanh form,
which the TensorFlow release computed under the name `gelu`."""

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
"""One class of many (softmax), any number of classes (a sigmoid each), or a number (the output itself)."""


MOST_LAYERS, MOST_ROWS = 1024, 1 << 26
"""What is believed of a file: far above any model, and far below what building one could choke on."""

NAMED_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
"""Name → (L layers, H hidden size): Devlin et al. 2019, §3; Turc et al. 2019, "Well-Read Students Learn Better"."""


class ModelConfig(Checked):
    """The shape of a model; the base of each family's dataclass.

    Attributes:
        required: fields that a `config.json` must give: the shape of a model cannot be guessed.
        only: fields of `config.json` that change what is computed, and the only value this package computes; where one
            is a field here too, `config.json` does not name it, since nobody can choose it.
        published_fields: our field → its name in this family's `config.json`, where the two differ.
        num_attention_heads: A; H must be a multiple of it.
        max_position_embeddings: rows of the position table, where there is one.
        type_vocab_size: segments that are told apart; 1 in a family whose `config.json` knows none.
        tie_word_embeddings: the masked-LM decoder is the word embedding itself; False gives it a matrix of its own.
        classifier_dropout: dropout before a classifier, in [0, 1); None takes `hidden_dropout_prob`.
        id2label: names of the classes of a classifier, by id; empty for a model without one.
        problem_type: how a sequence classifier's outputs are read, one of `PROBLEM_TYPES`; None is one class of many.
        pruned_heads: heads that were cut out, by layer, counted as in the whole model.
        is_decoder: every token reads itself and those before it only, as in GPT (§5.1's left-to-right model).
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    model_type: ClassVar[str]
    required: ClassVar[tuple[str, ...]] = (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    )
    only: ClassVar[Mapping[str, Any]] = {}
    published_fields: ClassVar[Mapping[str, str]] = {}

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int = 1
    initializer_range: float
    layer_norm_eps: float
    pad_token_id: int
    tie_word_embeddings: bool
    classifier_dropout: float | None
    id2label: dict[int, str]
    problem_type: str | None
    pruned_heads: dict[int, tuple[int, ...]]
    is_decoder: bool = False

    def _check_together(self) -> None:
        if self.classifier_dropout is None and type(self).classifier_dropout is not None:
            # 有的家族的 config.json 里没有“同其他层”这个写法：这里就定下来，存了再读还是同一个值
            object.__setattr__(self, "classifier_dropout", self.hidden_dropout_prob)
        for name in self.only.keys() & set(self.field_names()):
            if getattr(self, name) != self.only[name]:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; in a {self.model_type} it is {self.only[name]!r}"
                )
        for name in (*self.required, "embedding_size", "max_position_embeddings", "type_vocab_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ConfigError(f"{name} is {value!r}; it must be a positive whole number")
            # 数字来自别人的文件：先看是否可能，再去建层、开表
            most = MOST_LAYERS if name == "num_hidden_layers" else MOST_ROWS
            if value > most:
                raise ConfigError(f"{name} is {value}; no model has more than {most}")
        if self.first_position < 0 or self.position_limit < 1:
            raise ConfigError(f"max_position_embeddings {self.max_position_embeddings} leaves no position for a token")
        # 每个头宽度相同，[T, H] 才能按头切成 [T, A, D]
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act {self.hidden_act!r} is unknown; use one of {', '.join(ACTIVATIONS)}")
        for name in self.dropouts():
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
        for name in ("tie_word_embeddings", "is_decoder"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        counts = Counter(self.id2label.values())
        twice = next((label for label, count in counts.items() if count > 1), None)
        if twice is not None:
            raise ConfigError(f"id2label has {twice!r} more than once; give every class a name of its own")
        self._check_pruned_heads()

    def _check_pruned_heads(self) -> None:
        layers, possible = range(self.num_hidden_layers), range(self.num_attention_heads)
        for layer, heads in self.pruned_heads.items():
            # 每层至少留一个头
            known = layer in layers and all(head in possible for head in heads)
            if not known or len(set(heads)) < len(heads) or len(heads) == len(possible):
                raise ConfigError(
                    f"pruned_heads {layer}: {list(heads)}: layers count to {self.num_hidden_layers - 1}, heads to"
                    f" {self.num_attention_heads - 1}, each once, and one head at least must stay"
                )

    @classmethod
    def named(cls, size: str, **overrides: Any) -> Self:
        """Returns the configuration of a published size: heads of D = 64, and this family's feed-forward width.

        Args:
            size: a name of `NAMED_SIZES`, or `L/H` such as `6/384` with H a multiple of 64.
        """
        layers, hidden = cls.shape_of(size)
        shape: dict[str, Any] = {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": hidden // 64,
            "intermediate_size": cls.intermediate_size_for(hidden),
        }
        return cls(**shape).changed(**overrides)

    @staticmethod
    def shape_of(size: str) -> tuple[int, int]:
        """Returns L and H of a size, as `named` takes it."""
        if size in NAMED_SIZES:
            return NAMED_SIZES[size]
        match = re.fullmatch(r"(\d+)/(\d+)", size)
        if not match:
            raise ConfigError(f"size {size!r} is unknown; use one of {', '.join(NAMED_SIZES)} or L/H such as 6/384")
        layers, hidden = int(match[1]), int(match[2])
        if layers == 0 or hidden == 0 or hidden % 64:
            raise ConfigError(
                f"size {size!r}: give layers and width, such as 1/64: at least one layer, and a positive multiple of"
                " 64, the width of a head"
            )
        return layers, hidden

    @classmethod
    def intermediate_size_for(cls, hidden_size: int) -> int:
        """Returns how wide the feed-forward layer of a published size is: 4 H."""
        return 4 * hidden_size

    @classmethod
    def field_names(cls) -> list[str]:
        """Returns the names of the configuration's fields."""
        return [each.name for each in fields(cls)]

    @classmethod
    def dropouts(cls) -> list[str]:
        """Returns the names of the fields that are rates of dropout."""
        return [name for name in cls.field_names() if "dropout" in name]

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Reads `config.json` of a model folder, as the family that its `model_type` names.

        Raises:
            CheckpointError: the file is missing, not JSON, or describes another architecture.
            ConfigError: a value is impossible.
        """
        path = model_folder(folder) / "config.json"
        try:
            values = parse_json(path)
        except FileNotFoundError:
            raise no_model_in(path.parent) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: not valid JSON ({error})") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: holds no JSON object; this is not a model configuration")
        known = {each.model_type: each for each in families().values() if cls in (ModelConfig, each.config)}
        # 早期的 BERT 文件夹没有写 model_type
        family = known.get(str(values.get("model_type", "bert")))
        if family is None:
            readable = ", ".join(map(repr, sorted(known)))
            raise CheckpointError(f"{path}: model_type is {values.get('model_type')!r}; {readable} can be read here")
        config = family.config._parse(values, family, path)
        assert isinstance(config, cls)
        return config

    @classmethod
    def _parse(cls, values: dict[str, Any], family: Family, path: Path) -> Self:
        ours = {theirs: name for name, theirs in cls.published_fields.items()}
        values = {ours.get(name, name): value for name, value in values.items()}
        known = cls.field_names()
        cls._refuse_other_networks(values, family, path)
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
            raise ConfigError(f"{path}: {cls._as_published(str(error))}") from None

    @classmethod
    def _as_published(cls, message: str) -> str:
        """Writes a message about our fields with their names in this family's `config.json`."""
        return re.sub(r"\w+", lambda word: cls.published_fields.get(word[0], word[0]), message)

    @classmethod
    def _refuse_other_networks(cls, values: dict[str, Any], family: Family, path: Path) -> None:
        """Refuses a configuration that another network would be built from, instead of guessing."""
        architectures = values.get("architectures") or [family.name]
        if not isinstance(architectures, list):
            raise CheckpointError(f"{path}: architectures is {architectures!r}, not a list of names")
        if not str(architectures[0]).startswith(family.name):
            raise CheckpointError(
                f"{path}: architecture {architectures[0]!r}; a model of type {family.model_type!r} is a {family.name}"
            )
        for name, only in cls.only.items():
            if values.get(name, only) != only:
                raise CheckpointError(f"{path}: {name} is {values[name]!r}; only {only!r}, the paper's, can be read")
        missing = [name for name in cls.required if values.get(name) is None]
        if missing:
            raise CheckpointError(
                f"{path}: has no {cls._as_published(', '.join(missing))}; the shape of a model cannot be guessed"
            )
        known = cls.field_names()
        for name in values.keys() - set(known):
            # 别的工具会写许多无关字段，一律放过；但与某个已知字段只差一两个字母的，多半是笔误
            absent = [field for field in known if field not in values]
            meant = difflib.get_close_matches(name, absent, n=1, cutoff=0.9)
            if meant:
                said = cls._as_published(f"{name!r} is no field; did you mean {meant[0]!r}?")
                raise CheckpointError(f"{path}: {said}")

    def save(self, path: str | Path, *, architecture: str) -> None:
        """Writes `config.json` as `transformers` reads it, for a class such as `BertForPreTraining`."""
        chosen = {name: value for name, value in asdict(self).items() if name not in self.only}
        own = {self.published_fields.get(name, name): value for name, value in chosen.items()}
        values: dict[str, Any] = {"model_type": self.model_type, "architectures": [architecture], **own}
        if self.id2label:
            values["label2id"] = {label: key for key, label in self.id2label.items()}
        for name in ("id2label", "problem_type", "pruned_heads", "is_decoder"):
            if not values[name]:
                del values[name]
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        Path(path).write_text(text, encoding="utf-8")

    def changed(self, **changes: Any) -> Self:
        """Returns a copy with changes; ConfigError where a name is no field, or the result is impossible."""
        unknown = changes.keys() - set(self.field_names())
        if unknown:
            raise ConfigError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return replace(self, **changes)

    @property
    def family(self) -> Family:
        """The family of which this is a shape."""
        return families()[self.model_type]

    @property
    def mask(self) -> AttentionMask:
        """Which tokens each token reads."""
        return CAUSAL if self.is_decoder else FULL

    @property
    def embedding_size(self) -> int:
        """E, the width of the word embedding and of the decoder tied to it; a family may have one that is not H."""
        return self.hidden_size

    @property
    def reads_pairs(self) -> bool:
        """Whether the model can tell two texts of a sequence apart: here, by their segments."""
        return self.type_vocab_size >= 2

    @property
    def first_position(self) -> int:
        """The row of the position table that the first token takes."""
        return 0

    @property
    def position_limit(self) -> int:
        """S, the longest sequence the model can read."""
        return self.max_position_embeddings - self.first_position

    def with_position_limit(self, length: int) -> Self:
        """Returns a copy that can read sequences of up to `length` tokens."""
        return self.changed(max_position_embeddings=length + self.first_position)

    def trained_on(self, length: int) -> Self:
        """Returns a copy for fresh weights that will learn from sequences of up to `length` tokens."""
        return self.with_position_limit(length)

    def heads_left(self, layer: int) -> tuple[int, ...]:
        """Returns the heads of a layer that were not pruned, counted as in the whole model."""
        pruned = self.pruned_heads.get(layer, ())
        return tuple(head for head in range(self.num_attention_heads) if head not in pruned)

    @property
    def head_size(self) -> int:
        """D, the width of one attention head."""
        return self.hidden_size // self.num_attention_heads
