"""A reader of PyTorch's pickled weights (`pytorch_model.bin`, whole or in shards) that runs none of their code.

A pickle is a small program. It is read with `weights_only=True`: anything but tensors and plain containers is refused
before it is made. What the file says about itself is then checked against the model's configuration.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertsmith.errors import CheckpointError
from bertsmith.interop.parameters import Parameter, match_parameters
from bertsmith.model import ModelConfig

_TASK_HEADS = ("classifier.", "qa_outputs.")
"""Heads whose shape only the task knows; taken over as they are."""

_COUNTER = re.compile(r"(^|\.)embeddings\.position_ids$")
"""0, 1, 2, ...: earlier writers stored it."""

_DECODER_WEIGHT, _DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
_BIAS = "cls.predictions.bias"
"""The decoder's bias once more; which of the two names is stored depends on who wrote the file."""


def find_pickled_weights(folder: Path) -> Path | None:
    """Returns the file that holds the weights or lists their shards, or None."""
    names = ("pytorch_model.bin", "pytorch_model.bin.index.json")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_pickled_weights(path: Path, config: ModelConfig, *, is_tied: bool = True) -> dict[str, Tensor]:
    """Reads the weights of a BERT.

    Args:
        path: what `find_pickled_weights` found.
        config: the model's shape.
        is_tied: the masked-LM decoder is the word embedding, as in the paper; False keeps a decoder of its own.

    Returns:
        The tensors under today's names, memory-mapped where the file allows it, each of its own memory and contiguous.

    Raises:
        CheckpointError: a file is missing, damaged or holds more than tensors; or a tensor is missing, unexpected, of
            another shape, or contradicts the tensor it is tied to.
    """
    stored = _read_shards(path) if path.suffix == ".json" else _read_file(path)
    tensors = {_modern_spelling(name): value for name, value in stored.items() if not _COUNTER.search(name)}
    prefix = "bert." if any(name.startswith("bert.") for name in tensors) else ""
    for name, value in tensors.items():
        _check_tensor(name, value, path)
    # 同一个偏置有两个名字，有的写法只存其一：两个都补上，各种读者都找得到
    for name, other in ((_BIAS, _DECODER_BIAS), (_DECODER_BIAS, _BIAS)):
        if other in tensors:
            tensors.setdefault(name, tensors[other])
    if is_tied:
        _drop_tied(tensors, f"{prefix}embeddings.word_embeddings.weight", path)

    def spell(parameter: Parameter) -> tuple[str, tuple[int, ...]]:
        return parameter.name if prefix else parameter.name.removeprefix("bert."), parameter.shape

    own_heads = (*_TASK_HEADS, _DECODER_WEIGHT, _DECODER_BIAS)
    shapes = {name: tuple(value.shape) for name, value in tensors.items() if not name.startswith(own_heads)}
    match_parameters(shapes, config, str(path), spell=spell)
    return dict(_separate(tensors))


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Reads the shards that an index lists, and takes from each what the index says it holds."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = {str(name): str(place) for name, place in places.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index}: is not a list of shards ({error!r}); copy the file again") from None
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shards.values())):
        # 索引是外来文件：分片名里的 ../ 不许指到文件夹外面去
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: names the shard {shard!r}, which is not a file beside it")
        path = index.with_name(shard)
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file, but {index.name} lists it; copy all shards")
        content = _read_file(path)
        for name in (name for name, place in shards.items() if place == shard):
            if name not in content:
                raise CheckpointError(f"{path}: has no tensor {name}, but {index.name} says so; copy all shards")
            tensors[name] = content[name]
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        # 2020 年以前的格式不是 zip，不能映射，只能整个读入
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        culprit = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"it asks for {culprit[1]}" if culprit else "it is damaged or no pickle of tensors"
        raise CheckpointError(f"{path}: holds something other than tensors and was not read: {reason}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error}); check the file") from None
    except Exception as error:
        # 解读损坏的 pickle 可能抛出任何异常；对用户而言都是同一件事
        first_line = next(iter(str(error).splitlines()), "")
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {first_line}); copy the file again") from None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise CheckpointError(f"{path}: is not a table of names and tensors; save it again as model.state_dict()")
    return dict(content)


def _modern_spelling(name: str) -> str:
    """Early checkpoints call the scale and shift of a norm `gamma` and `beta`, as TensorFlow did."""
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name))


def _drop_tied(tensors: dict[str, Tensor], word_embeddings: str, path: Path) -> None:
    """Drops the decoder's copies of the word embeddings and of its bias, if they are true copies."""
    for name, original in ((_DECODER_WEIGHT, word_embeddings), (_DECODER_BIAS, _BIAS)):
        copy = tensors.pop(name, None)
        if copy is not None and original in tensors and not torch.equal(copy, tensors[original]):
            raise CheckpointError(
                f"{path}: {name} differs from {original}, which BERT's decoder is; to keep both, write"
                " tie_word_embeddings false in config.json"
            )


def _check_tensor(name: str, value: Tensor, path: Path) -> None:
    if value.layout != torch.strided or not value.is_floating_point() or value.device.type != "cpu":
        raise CheckpointError(f"{path}: {name} is not a plain tensor of floating-point numbers ({value.dtype})")
    # 步长为零的张量形状可以任意大，写盘时会把内存撑爆
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise CheckpointError(f"{path}: {name} has more numbers than the file holds for it")


def _separate(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Gives every tensor memory of its own; safetensors writes no two tensors from one."""
    seen: set[int] = set()
    for name, value in tensors.items():
        address = value.untyped_storage().data_ptr()
        yield name, value.clone(memory_format=torch.contiguous_format) if address in seen else value.contiguous()
        seen.add(address)
