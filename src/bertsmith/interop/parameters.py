"""What a BERT's tensors are called and what shapes they have: one table for TensorFlow's names and the field's own.

TensorFlow stores a dense layer's `kernel` as [in, out]; the field stores a `weight` as [out, in]. Everything else is
stored alike, the next-sentence layer's `output_weights` included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from bertsmith.errors import CheckpointError
from bertsmith.model import ModelConfig

_TABLE = """
bert/embeddings/word_embeddings                       bert.embeddings.word_embeddings.weight                 V H
bert/embeddings/position_embeddings                   bert.embeddings.position_embeddings.weight             P H
bert/embeddings/token_type_embeddings                 bert.embeddings.token_type_embeddings.weight           K H
bert/embeddings/LayerNorm/gamma                       bert.embeddings.LayerNorm.weight                       H
bert/embeddings/LayerNorm/beta                        bert.embeddings.LayerNorm.bias                         H
bert/encoder/layer_*/attention/self/query/kernel      bert.encoder.layer.*.attention.self.query.weight       H H
bert/encoder/layer_*/attention/self/query/bias        bert.encoder.layer.*.attention.self.query.bias         H
bert/encoder/layer_*/attention/self/key/kernel        bert.encoder.layer.*.attention.self.key.weight         H H
bert/encoder/layer_*/attention/self/key/bias          bert.encoder.layer.*.attention.self.key.bias           H
bert/encoder/layer_*/attention/self/value/kernel      bert.encoder.layer.*.attention.self.value.weight       H H
bert/encoder/layer_*/attention/self/value/bias        bert.encoder.layer.*.attention.self.value.bias         H
bert/encoder/layer_*/attention/output/dense/kernel    bert.encoder.layer.*.attention.output.dense.weight     H H
bert/encoder/layer_*/attention/output/dense/bias      bert.encoder.layer.*.attention.output.dense.bias       H
bert/encoder/layer_*/attention/output/LayerNorm/gamma bert.encoder.layer.*.attention.output.LayerNorm.weight H
bert/encoder/layer_*/attention/output/LayerNorm/beta  bert.encoder.layer.*.attention.output.LayerNorm.bias   H
bert/encoder/layer_*/intermediate/dense/kernel        bert.encoder.layer.*.intermediate.dense.weight         F H
bert/encoder/layer_*/intermediate/dense/bias          bert.encoder.layer.*.intermediate.dense.bias           F
bert/encoder/layer_*/output/dense/kernel              bert.encoder.layer.*.output.dense.weight               H F
bert/encoder/layer_*/output/dense/bias                bert.encoder.layer.*.output.dense.bias                 H
bert/encoder/layer_*/output/LayerNorm/gamma           bert.encoder.layer.*.output.LayerNorm.weight           H
bert/encoder/layer_*/output/LayerNorm/beta            bert.encoder.layer.*.output.LayerNorm.bias             H
bert/pooler/dense/kernel                              bert.pooler.dense.weight                               H H
bert/pooler/dense/bias                                bert.pooler.dense.bias                                 H
cls/predictions/transform/dense/kernel                cls.predictions.transform.dense.weight                 H H
cls/predictions/transform/dense/bias                  cls.predictions.transform.dense.bias                   H
cls/predictions/transform/LayerNorm/gamma             cls.predictions.transform.LayerNorm.weight             H
cls/predictions/transform/LayerNorm/beta              cls.predictions.transform.LayerNorm.bias               H
cls/predictions/output_bias                           cls.predictions.bias                                   V
cls/seq_relationship/output_weights                   cls.seq_relationship.weight                            2 H
cls/seq_relationship/output_bias                      cls.seq_relationship.bias                              2
"""
"""TensorFlow's name, the name in a model folder, and the shape there; `*` is the number of a layer.

V pieces, P positions, K segments, H hidden size, F the width inside the feed-forward layer.
"""

_OPTIONAL_PARTS = ("bert.pooler.", "cls.predictions.", "cls.seq_relationship.")
"""Each is there whole or not at all; the last one reads the first."""


class Parameter(NamedTuple):
    """A tensor of the table, for one model."""

    tensorflow_name: str
    name: str
    shape: tuple[int, ...]

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
    """Matches the tensors of a checkpoint with the table.

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
    sizes = {
        "V": config.vocab_size,
        "P": config.max_position_embeddings,
        "K": config.type_vocab_size,
        "H": config.hidden_size,
        "F": config.intermediate_size,
        "2": 2,
    }
    for row in _TABLE.strip().splitlines():
        tensorflow_name, name, *letters = row.split()
        shape = tuple(sizes[letter] for letter in letters)
        for layer in range(config.num_hidden_layers) if "*" in name else ("",):
            yield Parameter(tensorflow_name.replace("*", str(layer)), name.replace("*", str(layer)), shape)
