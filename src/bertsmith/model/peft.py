"""Adapters: a few new weights inside a model whose own stay as they are, so that one backbone serves many tasks.

A *bottleneck* squeezes what a sub-layer gives through a narrow layer and adds the result to it, before the residual sum
(Houlsby et al. 2019, §2.1). *LoRA* adds a product of two thin matrices to a weight (Hu et al. 2021, §4.1).

- an adapted layer is still a `Linear` whose weight has its old name; the adapter is a module in a slot beside it, so
  every way of running a block (maps, checkpointing, packed weights) runs the adapter too
- what learns is the active adapter with its heads; the pooler counts as a head: it was trained for next-sentence
  prediction, and is new where a folder has none
- an inactive adapter is no part of the module tree: not in `state_dict`, not moved by `to`, until it is activated
- a frozen weight keeps no input of its layer and no moments, and below the lowest adapter there is no backward pass at
  all: that is where the memory goes (`benchmarks/adapters_memory.py`)
- adapters come last: prune, resize and drop layers before, they are made for the shapes they find
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import Dropout, Linear
from bertsmith.model.backbone import Backbone, PretrainedModel, initialize_weights
from bertsmith.model.config import ModelConfig
from bertsmith.model.family import BlockLayers
from bertsmith.model.heads import ACTIVATION_FUNCTIONS
from bertsmith.settings import Checked, option

AdapterKind = Literal["bottleneck", "lora"]
LoraTarget = Literal["query", "key", "value", "attention_output", "intermediate", "output"]
"""The matrices of a block that LoRA can change: the thirds of its `qkv`, and the other three of `BlockLayers`."""

_FUSED: tuple[LoraTarget, ...] = ("query", "key", "value")


@dataclass(frozen=True)
class AdapterSettings(Checked):
    """What an adapter is made of; what is left at 0 or empty is filled in.

    Attributes:
        size: width of the bottleneck (64 unless given), or rank of the LoRA update (8); 4,096 at most.
        alpha: of LoRA alone: the update is scaled by alpha / rank; twice the rank unless given.
        dropout: in [0, 1): inside the bottleneck, or on what a LoRA update reads; the latter costs memory.
        targets: of LoRA alone: which matrices; query and value unless given (Hu et al. 2021, §7.1).
    """

    kind: AdapterKind = option("lora")
    # 来自文件的数：层建好之后才与权重相比，所以先有上限
    size: int = option(0, min=0, max=4096)
    alpha: float = option(0.0, min=0)
    dropout: float = option(0.0, min=0, below=1)
    targets: tuple[LoraTarget, ...] = option(())

    def _check_together(self) -> None:
        if self.kind == "bottleneck" and (self.alpha or self.targets):
            raise ConfigError("alpha and targets belong to LoRA; a bottleneck has neither")
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"LoRA targets {', '.join(self.targets)}; give each once")
        # 冻结的数据类：默认值随种类而定，只能在这里补上，之后存盘的就是完整的设置
        object.__setattr__(self, "size", self.size or (8 if self.kind == "lora" else 64))
        if self.kind == "lora":
            object.__setattr__(self, "alpha", float(self.alpha or 2 * self.size))
            chosen = self.targets or ("query", "value")
            object.__setattr__(self, "targets", tuple(name for name in get_args(LoraTarget) if name in chosen))


class Bottleneck(nn.Module):
    """h + W_up f(W_down h), on what a layer gives; nothing at first, since W_up starts at zero."""

    def __init__(self, settings: AdapterSettings, layer: nn.Linear, config: ModelConfig) -> None:
        super().__init__()
        self.down = Linear(layer.out_features, settings.size)
        self.activation = ACTIVATION_FUNCTIONS[config.hidden_act]
        self.dropout = Dropout(settings.dropout)
        self.up = Linear(settings.size, layer.out_features)
        initialize_weights(self.down, config.initializer_range)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, _hidden: Tensor, output: Tensor) -> Tensor:
        """Maps what a layer gave, [T, out], to as much."""
        correction: Tensor = self.up(self.dropout(self.activation(self.down(output))))
        return output + correction


class LowRankUpdate(nn.Module):
    """(W + s B A) x, without building the sum: A is [r, in], B [out, r] and zero at first, s = alpha / r.

    A fused layer gives several outputs side by side; each part that is changed (`places`) has an A and a B of its own.
    """

    def __init__(self, settings: AdapterSettings, layer: nn.Linear, places: tuple[int, ...], num_parts: int) -> None:
        super().__init__()
        self.places, self.num_parts = places, num_parts
        self.scale = settings.alpha / settings.size
        self.dropout = Dropout(settings.dropout)
        self.down = Linear(layer.in_features, settings.size * len(places), bias=False)
        self.up = nn.Parameter(torch.zeros(len(places), layer.out_features // num_parts, settings.size))

    def forward(self, hidden: Tensor, output: Tensor) -> Tensor:
        """Adds the update for what a layer read, [T, in], to what it gave, [T, out]."""
        narrow = self.down(self.dropout(hidden))
        return torch.addmm(output, narrow, self._spread().to(output.dtype).T)

    def product(self) -> Tensor:
        """Returns s B A, [out, in]: what is added to the layer's weight."""
        return self._spread() @ self.down.weight

    def _spread(self) -> Tensor:
        """Returns s B for all parts at once, [out, K r]: zero where a part is not changed, or by another's A."""
        count, rows, rank = self.up.shape
        # 各部分的 B 排成分块矩阵：一次乘法就加到融合投影的对应行上，不必切开再拼
        spread = self.up.new_zeros(self.num_parts, rows, count, rank)
        spread[list(self.places), :, list(range(count))] = self.scale * self.up
        return spread.view(self.num_parts * rows, count * rank)


class AdaptedLinear(Linear):
    """A layer with a slot for an adapter, which maps what the layer read and gave; without one, as it was."""

    adapter: nn.Module | None

    def __init__(self, layer: Linear) -> None:
        with torch.device("meta"):
            super().__init__(layer.in_features, layer.out_features)
        self.weight, self.bias = layer.weight, layer.bias
        self.stacked, self.int8 = layer.stacked, layer.int8
        self.register_module("adapter", None)

    def forward(self, hidden: Tensor) -> Tensor:
        """Maps [T, in] to [T, out]."""
        output = super().forward(hidden)
        return output if self.adapter is None else self.adapter(hidden, output)


@dataclass
class Adapter:
    """One adapter with all that goes with it; the model as it was before is one without settings and layers.

    Attributes:
        layers: path of the adapted layer in the model → `Bottleneck` or `LowRankUpdate`.
        heads: path in the model → the module that was trained with this adapter.
    """

    settings: AdapterSettings | None
    layers: dict[str, nn.Module]
    heads: dict[str, nn.Module]
    config: ModelConfig

    def modules(self) -> dict[str, nn.Module]:
        """Returns all modules by their paths."""
        return {**self.layers, **self.heads}


@dataclass
class _Loaded:
    """The adapters of a model: kept as a plain attribute, outside the tree of modules."""

    original: Adapter
    named: dict[str, Adapter] = field(default_factory=dict)
    active: str | None = None


def add_adapter(model: PretrainedModel, settings: AdapterSettings, name: str = "default") -> None:
    """Puts a fresh adapter into a model, in place, and freezes everything else but the heads.

    Another adapter that is active goes out of use; the heads start as copies of those that the model has now. Until it
    has learned something, it computes to the bit what the model's own layers do under these heads. The model's own
    heads come back with `activate(model, None)`. New weights are drawn from torch's generator: seed it before. The
    optimizer is to be created afterwards.
    """
    heads = {path: copy.deepcopy(model.get_submodule(path)) for path in _head_paths(model)}
    attach(model, name, Adapter(settings, _new_layers(model, settings), heads, model.config))


def empty_adapter(model: PretrainedModel, settings: AdapterSettings, config: ModelConfig) -> Adapter:
    """Returns an adapter for a model with heads for the labels of `config`; its weights are to be filled in."""
    with torch.device("meta"):
        skeleton = type(model)(config)
    heads = {path: skeleton.get_submodule(path).to_empty(device="cpu") for path in _head_paths(model)}
    return Adapter(settings, _new_layers(model, settings), heads, config)


def attach(model: PretrainedModel, name: str, adapter: Adapter) -> None:
    """Puts an adapter that was made for a model into it, and activates it."""
    loaded = _loaded(model)
    if name in loaded.named:
        raise ConfigError(f"the model has an adapter {name!r} already; choose another name")
    for path in adapter.layers:
        layer = model.get_submodule(path)
        if not isinstance(layer, AdaptedLinear):
            assert isinstance(layer, Linear)
            model.set_submodule(path, AdaptedLinear(layer))
    vars(model)["adapters"] = loaded
    loaded.named[name] = adapter
    activate(model, name)


def activate(model: PretrainedModel, name: str | None) -> None:
    """Switches to an adapter with its heads and labels; what learns is then this adapter with its heads alone."""
    loaded = _loaded(model)
    chosen = loaded.original if name is None and loaded.named else named_adapter(model, name)
    device = model.backbone.embedding.word.weight.device
    # 先全部冻结再放开选中的：换下来的适配器也不会再被优化器看到
    model.requires_grad_(False)
    for path, layer in _adapted(model):
        layer.adapter = chosen.layers.get(path)
    for path, head in chosen.heads.items():
        model.set_submodule(path, head)
    for module in chosen.modules().values():
        # 未启用的适配器不在模块树里，搬设备、切换训练模式都轮不到它：在这里补上
        module.to(device).requires_grad_(name is not None)
    model.train(model.training)
    model.set_config(chosen.config)
    loaded.active = name


def merge_adapter(model: PretrainedModel) -> None:
    """Folds the active LoRA adapter into the weights: a plain model again, as fast as the backbone.

    Other adapters are dropped: the backbone they were trained over is no more. All parameters learn again.
    """
    name = active_name(model)
    if name is None:
        raise ConfigError("no adapter is active; there is nothing to merge")
    if any(isinstance(layer, Bottleneck) for layer in named_adapter(model, name).layers.values()):
        # 瓶颈里有非线性：没有哪个矩阵等价于它
        raise ConfigError("a bottleneck is not linear, so no weight can hold it; keep it as an adapter, or use LoRA")
    for path, layer in list(_adapted(model)):
        with torch.device("meta"):
            plain = Linear(layer.in_features, layer.out_features)
        weight = layer.weight.detach()
        if isinstance(layer.adapter, LowRankUpdate):
            weight = weight + layer.adapter.product().detach()
        plain.weight, plain.bias = nn.Parameter(weight), layer.bias
        plain.stacked, plain.int8 = layer.stacked, layer.int8
        model.set_submodule(path, plain.train(layer.training))
    del vars(model)["adapters"]
    model.requires_grad_(True)


def adapter_names(model: PretrainedModel) -> list[str]:
    """Returns the names of a model's adapters, oldest first."""
    return list(_loaded(model).named)


def active_name(model: PretrainedModel) -> str | None:
    """Returns the name of the active adapter, or None."""
    return _loaded(model).active


def named_adapter(model: PretrainedModel, name: str | None) -> Adapter:
    """Returns an adapter of a model; ConfigError where there is none of that name."""
    known = _loaded(model).named
    if name is None or name not in known:
        raise ConfigError(f"no adapter {name!r}; the model has {', '.join(known) or 'none'}")
    return known[name]


def _loaded(model: PretrainedModel) -> _Loaded:
    """Returns the adapters of a model; at first there are none, and the model is as it is."""
    found: _Loaded | None = vars(model).get("adapters")
    if found is not None:
        return found
    return _Loaded(Adapter(None, {}, {path: model.get_submodule(path) for path in _head_paths(model)}, model.config))


def _adapted(model: PretrainedModel) -> Iterator[tuple[str, AdaptedLinear]]:
    for path, module in model.named_modules():
        if isinstance(module, AdaptedLinear):
            yield path, module


def _head_paths(model: PretrainedModel) -> list[str]:
    backbone = "" if isinstance(model, Backbone) else "backbone."
    pooler = [] if model.backbone.pooler is None else [f"{backbone}pooler"]
    # 主干自己的头就是池化层：同一个模块只列一次
    heads = [head for head in model.heads if getattr(model, head) is not None]
    return list(dict.fromkeys([*pooler, *heads]))


def _new_layers(model: PretrainedModel, settings: AdapterSettings) -> dict[str, nn.Module]:
    """Returns the fresh modules of an adapter by the paths of the layers they go to."""
    # 共享权重的层只登记一次：从模块树里取它的名字，适配器也就只有一份
    names = {module: name for name, module in model.named_modules()}
    return {
        f"{names[block]}.{path}": module
        for block in dict.fromkeys(model.backbone.encoder.blocks)
        for path, module in _block_layers(block, model.family.layers, settings, model.config).items()
    }


def _block_layers(
    block: Any, layers: BlockLayers, settings: AdapterSettings, config: ModelConfig
) -> dict[str, nn.Module]:
    matrix = block.get_submodule
    if settings.kind == "bottleneck":
        # 每个子层的输出之后各一个：注意力之后，前馈之后（Houlsby 等，图 2）
        return {path: Bottleneck(settings, matrix(path), config) for path in (layers.attention_output, layers.output)}
    fused = tuple(_FUSED.index(target) for target in settings.targets if target in _FUSED)
    qkv = {layers.qkv: LowRankUpdate(settings, matrix(layers.qkv), fused, len(_FUSED))} if fused else {}
    paths = [getattr(layers, target) for target in settings.targets if target not in _FUSED]
    return qkv | {path: LowRankUpdate(settings, matrix(path), (0,), 1) for path in paths}
