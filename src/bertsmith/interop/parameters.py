"""What a BERT's tensors are called and what shapes they have, in a model folder and in TensorFlow's checkpoints.

The names in a model folder are the family's own table (`model.families.bert`), the shapes those of a model without
memory. TensorFlow's names follow from them by rule. It stores a dense layer's `kernel` as [in, out]; the field stores a
`weight` as [out, in]. Everything else is stored alike, the next-sentence layer's `output_weights` included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from bertsmith.errors import CheckpointError
from bertsmith.model import BertForPreTraining, ModelConfig
from bertsmith.model.folder import published_names

_TENSORFLOW_SPELLING = (
    (r"^(cls\.\w+)\.weight$", r"\1.output_weights"),
    (r"^(cls\.\w+)\.bias$", r"\1.output_bias"),
    (r"_embeddings\.weight$", "_embeddings"),
    (r"LayerNorm\.weight$", "LayerNorm.gamma"),
    (r"LayerNorm\.bias$", "LayerNorm.beta"),
    (r"\.weight$", ".kernel"),
    (r"\.layer\.(\d+)\.", r".layer_\1."),
)
"""How a name in a model folder becomes TensorFlow's: patterns and replacements, one after another; then `.` is `/`."""

_OPTIONAL_PARTS = ("bert.pooler.", "cls.predictions.", "cls.seq_relationship.")
"""Each is there whole or not at all; the last one reads the first."""


class Parameter(NamedTuple):
    """A tensor of a model: its name in a model folder, and its shape there."""

    name: str
    shape: tuple[int, ...]

    @property
    def tensorflow_name(self) -> str:
        """The name in a TensorFlow checkpoint."""
        name = self.name
        for pattern, replacement in _TENSORFLOW_SPELLING:
            name = re.sub(pattern, replacement, name)
        return name.replace(".", "/")

    @property
    def is_transposed(self) -> bool:
        """Whether TensorFlow stores it the other way round."""
        return self.tensorflow_name.endswith("/kernel")

    @property
    def part(self) -> str:
        """Which optional part it belongs to; empty for the encoder."""
        return next((part for part in _OPTIONAL_PARTS if self.name.startswith(part)), "")


def match_parameters(
    found: Mapping[str, tuple[int, ...]],
    config: ModelConfig,
    place: str,
    *,
    spell: Callable[[Parameter], tuple[str, tuple[int, ...]]],
) -> dict[str, Parameter]:
    """Matches the tensors of a checkpoint with those of the model.

    Args:
        found: their names and shapes.
        config: the model's shape.
        place: what to call the checkpoint in the message.
        spell: name and shape of a parameter in this kind of checkpoint.

    Returns:
        The parameter for every name found: all of the encoder, and all of every optional part that is there.

    Raises:
        CheckpointError: a tensor is missing, unexpected or of another shape; the message names it.
    """
    # 先比层数：配置里写着十亿层的话，光是展开表格就会耗尽内存
    if config.num_hidden_layers > len(found):
        raise CheckpointError(f"{place}: {len(found)} tensors cannot be {config.num_hidden_layers} layers")
    table = {spell(parameter)[0]: parameter for parameter in _parameters(config)}
    parts = {"", *(table[name].part for name in found if name in table)}
    if "cls.seq_relationship." in parts:
        parts.add("bert.pooler.")
    table = {name: parameter for name, parameter in table.items() if parameter.part in parts}
    problems = [f"{name} is missing" for name in table if name not in found]
    for name, shape in found.items():
        if name not in table:
            problems.append(f"{name} is unexpected")
        elif shape != (wanted := spell(table[name])[1]):
            problems.append(f"{name} has shape {list(shape)}, its configuration says {list(wanted)}")
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise CheckpointError(f"{place}: is not the BERT its configuration describes: {shown}")
    return table


def _parameters(config: ModelConfig) -> Iterator[Parameter]:
    # 解码器若不与词嵌入共享，由读取者另行处理：这里总是论文中共享的形式
    with torch.device("meta"):
        model = BertForPreTraining(replace(config, tie_word_embeddings=True))
    for name, value in model.named_parameters():
        targets = published_names(name, config.family.names)
        # 融合的 QKV 在磁盘上是三个矩阵
        for target, part in zip(targets, value.chunk(len(targets)), strict=True):
            yield Parameter(target, tuple(part.shape))
