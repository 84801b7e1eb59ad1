"""What every whole model can do: start from scratch, load a model folder, save one.

`PretrainedBert` is the base class of the eight architectures, which differ in their heads and in nothing that is said
here. (`LabelledBert`, over it, adds what the two classifiers share.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import torch
from torch import nn

from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.model.attention import Checkpointing
from bertsmith.model.block import TransformerBlock
from bertsmith.model.checkpoint import LoadReport, load_model_folder, read_architecture, save_model_folder
from bertsmith.model.config import BertConfig
from bertsmith.model.embeddings import BertEmbedding

Model = TypeVar("Model", bound="PretrainedBert")


class PretrainedBert(nn.Module):
    """A whole model that lives in a model folder.

    Attributes:
        architecture: the `transformers` class that reads the same folder.
        heads: our names of the modules that a new task starts afresh.
        config: the shape.
        load_report: what was found when the model was loaded; None for a model made from scratch.
    """

    architecture: ClassVar[str]
    heads: ClassVar[tuple[str, ...]] = ()
    config: BertConfig
    load_report: LoadReport | None = None

    @classmethod
    def from_pretrained(
        cls: type[Model], folder: str | Path, *, new_heads: bool | Collection[str] = False, **changes: Any
    ) -> Model:
        """Loads a model folder.

        The weights are mapped from the file, not read: a base model is there in a fraction of a second, and pages
        that are written to become private copies.

        Args:
            folder: a model folder, ours or one that `transformers` wrote.
            new_heads: start the heads with fresh weights, whatever the folder holds: True for all `heads` of this
                class, or some of their names. A folder without pooler then gets a fresh one too.
            **changes: fields of the configuration to change, such as `id2label` for the classes of a new head, or
                `hidden_dropout_prob`.

        Returns:
            The model in training mode, float32, on the CPU.

        Raises:
            CheckpointError: a file is missing or damaged; or a tensor is missing, unexpected, of another shape, or
                holds NaN. The message names it.
            ConfigError: the configuration or a change is impossible.
        """
        fresh = named_heads(cls, new_heads)
        stored = read_architecture(folder)
        # 三种任务的头在磁盘上都叫 classifier，形状也可能一样：只有 config.json 能区分，不能拿错
        if "classifier" in cls.heads and not fresh and stored not in (None, "BertModel", cls.architecture):
            raise CheckpointError(
                f"{folder}: holds a {stored}, not a {cls.architecture}; load it as what it is, or fine-tune it first"
                " (new_heads=True starts the head afresh)"
            )
        config = cls.complete_config(BertConfig.load(folder).changed(**changes), folder, fresh)
        return fill_from_folder(cls, config, folder, fresh=fresh)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes `config.json` and `model.safetensors`, in the names `transformers` uses.

        Args:
            folder: made when missing; files of the same names are replaced, each whole or not at all.

        Raises:
            RunFolderError: the disk is full or the folder cannot be written.
        """
        save_model_folder(self, self.config, folder, architecture=self.architecture)

    @classmethod
    def complete_config(cls, config: BertConfig, folder: str | Path, fresh: tuple[str, ...]) -> BertConfig:  # noqa: ARG003
        """Returns the configuration with what only the folder's tensors tell; here nothing."""
        return config

    def set_compute_dtype(self, dtype: torch.dtype) -> None:
        """Chooses the dtype of the matmuls: float32 or bfloat16; the parameters stay float32."""
        for module in self.modules():
            if isinstance(module, BertEmbedding):
                module.compute_dtype = dtype

    def set_int8(self, enabled: bool) -> None:
        """Runs the four matmuls of every block in 8 bits while no gradient is taken, or no longer.

        Everything else (embeddings, norms, softmax, pooler, heads, adapters) stays as it is. The compute dtype must
        be float32 and the model on the CPU.

        Args:
            enabled: whether to do so from now on.
        """
        for module in self.modules():
            if isinstance(module, TransformerBlock):
                layers = (module.attention.project, module.attention_output, module.expand, module.contract)
                for layer in layers:
                    layer.int8 = enabled

    def set_gradient_checkpointing(self, what: Checkpointing) -> None:
        """Trades time for memory while training, by running parts of the network again in the backward pass.

        Args:
            what: `blocks` keeps only the input of each block: about a third more computation, and activations of one
                block at a time instead of all L (Chen et al. 2016). `attention` keeps queries, keys and values, but no
                [S, S] map: 8 % more time in a base model (Korthikanti et al. 2022). `none` keeps everything.

        Raises:
            ConfigError: it is none of these.
        """
        if what not in get_args(Checkpointing):
            raise ConfigError(f"gradient checkpointing {what!r} is unknown; use {', '.join(get_args(Checkpointing))}")
        for module in self.modules():
            if "gradient_checkpointing" in vars(module):
                vars(module)["gradient_checkpointing"] = what


def fill_from_folder(
    build: Callable[[BertConfig], Model], config: BertConfig, folder: str | Path, *, fresh: tuple[str, ...]
) -> Model:
    """Builds a model and fills it with the tensors of a folder.

    Args:
        build: makes the model of a configuration.
        config: the shape.
        folder: holds the tensors.
        fresh: our names of the modules that get fresh weights; a missing pooler then does too.

    Raises:
        CheckpointError: see `load_model_folder`.
    """
    # 在 meta 设备上搭建：不分配内存、不做随机初始化，权重随后直接来自文件
    with torch.device("meta"):
        model = build(config)
    model.load_report = load_model_folder(model, folder, fresh=fresh, optional=("bert.pooler",) if fresh else ())
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if any(parameter.is_meta for parameter in own.values()):
            for name, parameter in own.items():
                module.register_parameter(name, nn.Parameter(torch.zeros_like(parameter, device="cpu")))
            initialize_weights(module, config.initializer_range)
    return model


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
            nn.init.zeros_(child.bias)


def named_heads(model: type[PretrainedBert], new_heads: bool | Collection[str]) -> tuple[str, ...]:
    """Returns our names of the heads of a model class that are to start afresh.

    Args:
        model: the class.
        new_heads: True for all, or some of their names.

    Raises:
        ConfigError: the class has no such head.
    """
    if isinstance(new_heads, bool):
        return model.heads if new_heads else ()
    unknown = set(new_heads) - set(model.heads)
    if unknown:
        raise ConfigError(
            f"{model.architecture} has no head {', '.join(sorted(unknown))}; its heads: {', '.join(model.heads)}"
        )
    return tuple(new_heads)
