"""What every whole model can do, and what every backbone gives: `PretrainedModel` and `Backbone`.

A *backbone* is the network that all tasks of a family share (`families/`); a *task model* is a backbone with heads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import torch
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.kernels.compiling import compile_each
from bertsmith.kernels.layers import Linear
from bertsmith.model.attention import Checkpointing
from bertsmith.model.config import ModelConfig
from bertsmith.model.family import Family
from bertsmith.model.folder import (
    LoadReport,
    StoredAs,
    load_model_folder,
    read_architecture,
    require_layers,
    save_model_folder,
)
from bertsmith.model.heads import MaskedLMHead

if TYPE_CHECKING:
    from typing_extensions import Self


class PretrainedModel(nn.Module):
    """A whole model that lives in a model folder.

    Attributes:
        suffix: how the `transformers` class that reads the same folder is called after its family: `ForMaskedLM`.
        heads: our names of the modules that a new task starts afresh.
        options: what the class takes besides a configuration; `from_pretrained` takes it too.
        training_heads: our names of modules that serve training only; no model folder holds them.
        token_outputs: published names of the outputs [T, ...]; `sequence_outputs` those of the outputs [N, ...].
        load_report: what was found when the model was loaded; None for a model made from scratch.
    """

    suffix: ClassVar[str]
    heads: ClassVar[Collection[str]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    training_heads: ClassVar[tuple[str, ...]] = ()
    token_outputs: ClassVar[tuple[str, ...]] = ()
    sequence_outputs: ClassVar[tuple[str, ...]] = ()
    config: ModelConfig
    backbone: Backbone
    load_report: LoadReport | None = None

    @property
    def family(self) -> Family:
        """What kind of model it is."""
        return self.config.family

    @property
    def architecture(self) -> str:
        """The `transformers` class that reads the same folder, such as `BertForMaskedLM`."""
        return self.family.name + self.suffix

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, new_heads: bool | Collection[str] = False, **changes: Any) -> Self:
        """Loads a model folder, ours or one that `transformers` wrote: in training mode, float32, on the CPU.

        The weights are mapped from the file, not read: a base model is there in a fraction of a second, and pages that
        are written to become private copies.

        Args:
            new_heads: start the heads with fresh weights, whatever the folder holds: True for all `heads` of this
                class, or some of their names. A folder without pooler then gets a fresh one too.
            **changes: fields of the configuration to change, such as `id2label` for the classes of a new head; and what
                the class itself takes, see `options`.
        """
        given = {name: changes.pop(name) for name in cls.options if name in changes}
        fresh = cls._named_heads(new_heads)
        config = ModelConfig.load(folder).changed(**changes)
        kind, config = cls._found_in(folder, config, fresh)
        require_layers(folder, config)
        # 在 meta 设备上搭建：不分配内存、不做随机初始化，权重随后直接来自文件
        with torch.device("meta"):
            model: Self = kind(config, **given)
        optional = ("backbone.pooler",) if fresh else ()
        model.load_report = load_model_folder(model, config.family.names, folder, fresh=fresh, optional=optional)
        for module in model.modules():
            own = dict(module.named_parameters(recurse=False))
            if any(parameter.is_meta for parameter in own.values()):
                for name, parameter in own.items():
                    module.register_parameter(name, nn.Parameter(torch.zeros_like(parameter, device="cpu")))
                initialize_weights(module, config.initializer_range)
        return model

    @classmethod
    def _found_in(cls, folder: str | Path, config: ModelConfig, fresh: tuple[str, ...]) -> tuple[Any, ModelConfig]:
        """Returns the class to build of a folder, and its configuration with what only the folder's tensors tell."""
        stored, family = read_architecture(folder), config.family.name
        # 几种任务的头在磁盘上同名，形状也可能一样：只有 config.json 能区分，不能拿错
        others = stored not in (None, f"{family}Model", family + cls.suffix)
        if others and not fresh and {"classifier", "spans"} & set(cls.heads):
            raise CheckpointError(
                f"{folder}: holds a {stored}, not a {family}{cls.suffix}; load it as what it is, or fine-tune it first"
                " (new_heads=True starts the head afresh)"
            )
        return cls, config

    def save_pretrained(self, folder: str | Path, *, weights: StoredAs = "float32") -> None:
        """Writes `config.json` and `model.safetensors`, in the names `transformers` uses; see `save_model_folder`."""
        how: dict[str, Any] = {"architecture": self.architecture, "leave_out": self.training_heads, "weights": weights}
        save_model_folder(self, self.config, folder, **how)

    def published(self, batch: RaggedBatch) -> dict[str, Tensor]:
        """Returns the outputs for a batch by their names in `transformers`: `token_outputs` and `sequence_outputs`."""
        raise NotImplementedError

    def set_compute_dtype(self, dtype: torch.dtype) -> None:
        """Chooses the dtype of the matmuls: float32 or bfloat16; the parameters stay float32."""
        self.backbone.embedding.compute_dtype = dtype

    def set_int8(self, enabled: bool) -> None:
        """Runs the four matmuls of every block in 8 bits while no gradient is taken, or no longer.

        Everything else stays as it is. The compute dtype must be float32 and the model on the CPU.
        """
        for block in self.backbone.encoder.blocks:
            for path in self.family.layers.paths:
                layer = block.get_submodule(path)
                assert isinstance(layer, Linear)
                layer.int8 = enabled

    def set_gradient_checkpointing(self, what: Checkpointing) -> None:
        """Trades time for memory while training, by running parts of the network again in the backward pass.

        Args:
            what: `blocks` keeps only the input of each block: about a third more computation, and activations of one
                block at a time instead of all L (Chen et al. 2016). `attention` keeps queries, keys and values, but no
                [S, S] map: 8 % more time in a base model (Korthikanti et al. 2022). `none` keeps everything.
        """
        if what not in get_args(Checkpointing):
            raise ConfigError(f"gradient checkpointing {what!r} is unknown; use {', '.join(get_args(Checkpointing))}")
        for module in self.modules():
            if "gradient_checkpointing" in vars(module):
                vars(module)["gradient_checkpointing"] = what

    def compile_blocks(self) -> None:
        """Lets `torch.compile` fuse what every block does around its matmuls, for a GPU, and a masked LM its loss.

        Blocks are compiled one by one, not the whole model: those of one kind share their kernels, so that it takes as
        long for 24 layers as for 2, and lengths may change from batch to batch.
        """
        compile_each(self.backbone.encoder.blocks)
        for module in self.modules():
            if isinstance(module, MaskedLMHead):
                module.compiled = True

    def set_config(self, config: ModelConfig) -> None:
        """Tells every model inside this one its changed shape: a task model and its backbone both keep it."""
        for module in self.modules():
            if isinstance(module, PretrainedModel):
                module.config = config

    @classmethod
    def _named_heads(cls, new_heads: bool | Collection[str]) -> tuple[str, ...]:
        if isinstance(new_heads, bool):
            return tuple(cls.heads) if new_heads else ()
        unknown = set(new_heads) - set(cls.heads)
        if unknown:
            raise ConfigError(
                f"{cls.__name__} has no head {', '.join(sorted(unknown))}; its heads: {', '.join(cls.heads)}"
            )
        return tuple(new_heads)


@dataclass(frozen=True)
class BackboneOutput:
    """What a backbone returns.

    Attributes:
        hidden_states: [T, H], the last layer's state of every token; or [M, H], of those asked for.
        cls: [N, H], the last layer's state of each `[CLS]`.
        pooler_output: [N, H] as `pooled`, or None where the model was built without a pooler.
        layers: L+1 tensors [T, H], embeddings first, when asked for.
        attentions: for each layer asked for, from below, N maps [A, S_n, S_n].
    """

    hidden_states: Tensor
    cls: Tensor
    pooler_output: Tensor | None
    batch: RaggedBatch
    layers: list[Tensor] | None = None
    attentions: list[list[Tensor]] | None = None

    @property
    def pooled(self) -> Tensor:
        """[N, H], `tanh(W cls + b)`, in (-1, 1); what the NSP head and the sequence classifiers read."""
        if self.pooler_output is None:
            raise InputError("this model was built without a pooler; read `cls` or `hidden_states`")
        return self.pooler_output

    @property
    def mean(self) -> Tensor:
        """[N, H], the mean over the states of each sequence, special tokens among them."""
        real = self.batch.padding_mask[:, :, None]  # [N, S, 1]
        # 导出的矩形里填充也算出了状态，未必是 0：先清掉再求和
        return self.batch.pad(self.hidden_states).masked_fill(~real, 0.0).sum(1) / real.sum(1)


class Backbone(PretrainedModel):
    """The network that all task models of a family share; the base of each family's own class.

    Attributes:
        embedding: ids → [T, H] in its `compute_dtype`; `embedding.word` is the table of the word pieces.
        encoder: runs the L blocks `encoder.blocks`, one after the other; see `family.py` for blocks that are shared.
    """

    suffix = "Model"
    heads: ClassVar[Collection[str]] = ("pooler",)
    options = ("need_pooler",)
    token_outputs = ("last_hidden_state",)
    sequence_outputs: ClassVar[tuple[str, ...]] = ("pooler_output",)
    embedding: Any
    encoder: Any
    pooler: nn.Module | None

    def __init__(self, config: ModelConfig, *, need_pooler: bool = True) -> None:  # noqa: ARG002
        """Keeps the configuration; a family's own class builds the modules.

        Args:
            need_pooler: False for uses that never read `pooled`: then a folder without a pooler will do.
        """
        super().__init__()
        self.config = config

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        """Itself: so that every model has its backbone under this name."""
        return self

    def published(self, batch: RaggedBatch) -> dict[str, Tensor]:
        """Returns the states of the last layer, and the pooled ones where there is a pooler."""
        output: BackboneOutput = self(batch)
        states = {"last_hidden_state": output.hidden_states}
        return states if output.pooler_output is None else states | {"pooler_output": output.pooler_output}

    @property
    def position_table(self) -> nn.Embedding | None:
        """The learned positions, one row each; None where a family learns none."""
        table: nn.Embedding | None = getattr(self.embedding, "position", None)
        return table

    @classmethod
    def _found_in(cls, folder: str | Path, config: ModelConfig, *_fresh: Any) -> tuple[Any, ModelConfig]:
        family = config.family
        if cls not in (Backbone, family.backbone):
            raise CheckpointError(f"{folder}: holds a {family.name}Model, not a {cls.__name__}; load it as what it is")
        return family.backbone, config


def initialize_weights(module: nn.Module, standard_deviation: float) -> None:
    """Draws matrices from a normal truncated at two deviations; biases 0, norms 1 (the released procedure)."""
    for child in module.modules():
        if any(parameter.is_meta for parameter in child.parameters(recurse=False)):
            continue
        if isinstance(child, nn.Linear | nn.Embedding):
            # 截断在 ±2σ：避免个别初值过大，在 post-norm 结构里造成初期不稳定
            nn.init.trunc_normal_(
                child.weight, std=standard_deviation, a=-2 * standard_deviation, b=2 * standard_deviation
            )
        if isinstance(child, nn.Linear) and child.bias is not None:
            nn.init.zeros_(child.bias)
        if isinstance(child, nn.LayerNorm):
            nn.init.ones_(child.weight)
            # 有的家族的归一化没有偏置
            if child.bias is not None:
                nn.init.zeros_(child.bias)


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """Returns how high each parameter of a model is: 0 in the embeddings, 1 to L in the blocks, L + 1 above them.

    A block that runs in several layers is as high as the highest of them; anything around the backbone is above it.
    """
    numbers: dict[Tensor, int] = {}
    top = 1
    for backbone in (module for module in model.modules() if isinstance(module, Backbone)):
        numbers |= dict.fromkeys(backbone.embedding.parameters(), 0)
        for number, block in enumerate(backbone.encoder.blocks, 1):
            numbers |= dict.fromkeys(block.parameters(), number)
        top = max(top, 1 + len(backbone.encoder.blocks))
    return {name: numbers.get(parameter, top) for name, parameter in model.named_parameters()}
