"""`Family`: the one description through which everything else knows a kind of model.

A family is a file in `families/`: its `config.json`, its modules, and the table between our tensor names and the
published ones, described by a `Family`. Folders, heads, pruning, adapters, sizes, the optimizer's layers and the ONNX
export read this description and the contract below; none of them names a layer.

The contract of a family's modules:

- the backbone is a `Backbone` (`backbone.py`): `embedding` with a table `word` and a switch `compute_dtype`; `encoder`
  with the L blocks, `blocks`, in the order in which they run; `pooler`, or None
- `blocks` is a `ModuleList`; where layers share their weights it is a plain list that names a module several times, and
  the module itself is registered once, under another name, so that it is counted, saved and moved once
- a block given `places` [M] returns the states [M, H] of these tokens alone; the encoder asks its last one for them
- a block has its heads in `attention`, a `MultiHeadSelfAttention`, and names its matrices in `BlockLayers`
- `backbone(batch)` returns a `BackboneOutput`
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from bertsmith.settings import installed, named

if TYPE_CHECKING:
    from torch import nn

    from bertsmith.model.backbone import Backbone
    from bertsmith.model.config import ModelConfig


@dataclass(frozen=True)
class BlockLayers:
    """Where, inside a block, its four matrices are: dotted paths of `Linear` modules.

    Attributes:
        qkv: [H, 3 A D], query, key and value in one.
        attention_output: [A D, H], joins the heads.
        intermediate: [H, I], the way up of the feed-forward layer.
        output: [I, H], its way down.
    """

    qkv: str = "attention.qkv"
    attention_output: str = "attention.output"
    intermediate: str = "intermediate"
    output: str = "output"

    @property
    def paths(self) -> tuple[str, str, str, str]:
        """All four, in the order in which a block runs them."""
        return self.qkv, self.attention_output, self.intermediate, self.output


@dataclass(frozen=True)
class PublishedNames:
    """Our modules on one side, the names that `transformers` stores on the other.

    `*` is the number of a layer. `weight` and `bias` are called the same on both sides. A tuple says that one of our
    matrices is several on disk, stacked by rows.

    Attributes:
        prefix: before the names of the backbone in a model that has heads, such as `bert.`.
        backbone: our modules → theirs, without any prefix; `heads` the same.
        decoder: their name of the masked-LM decoder. Some writers store it although it is tied to the word embedding.
        derived: other tensors that some writers store although they follow from the configuration.
    """

    prefix: str
    backbone: Mapping[str, str | tuple[str, ...]]
    heads: Mapping[str, str]
    decoder: str
    derived: tuple[str, ...] = ()

    @property
    def head_prefixes(self) -> tuple[str, ...]:
        """How the names of heads' tensors begin: left aside when a model without that head is loaded."""
        return tuple(dict.fromkeys(f"{name.partition('.')[0]}." for name in self.heads.values()))

    @property
    def same_bias(self) -> dict[str, str]:
        """The bias over the vocabulary has two names; which of them is stored depends on the writer's version."""
        pair = (f"{self.heads['masked_lm']}.bias", f"{self.decoder}.bias")
        return dict([pair, pair[::-1]])


@dataclass(frozen=True)
class Family:
    """A kind of model.

    Attributes:
        name: how the names of its architectures begin: `Bert` in `BertForMaskedLM`.
        heads: kind of head, as in `architectures.py` → the module; a task model whose kinds are all here can be built.
        objective: what it was published with, by its name among the pre-training objectives.
        tokenizer: the kind of vocabulary that is learned for a new model.
    """

    model_type: str
    name: str
    config: type[ModelConfig]
    backbone: type[Backbone]
    names: PublishedNames
    heads: Mapping[str, type[nn.Module]]
    layers: BlockLayers = field(default_factory=BlockLayers)
    objective: str = "mlm+nsp"
    tokenizer: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"


@functools.cache
def families() -> dict[str, Family]:
    """Returns every family by its `model_type`: ours, and the entry points `bertsmith.families` of other packages."""
    package = import_module("bertsmith.model.families")
    # 目录里有哪些文件，就有哪些家族：加一个家族不必改别处的名单
    files = [import_module(f"{package.__name__}.{each.name}") for each in pkgutil.iter_modules(package.__path__)]
    own = [value for file in files for value in vars(file).values() if isinstance(value, Family)]
    added: list[Family] = list(installed("bertsmith.families").values())
    return {family.model_type: family for family in [*sorted(own, key=lambda each: each.model_type), *added]}


def family_named(name: str) -> Family:
    """Returns a family by its `model_type`."""
    return named(name, families(), "family")
