"""The tensors of a model folder as they lie on disk: one safetensors file, or several with an index.

Files are mapped: a tensor that is used as it is stored costs no memory of its own. Names are given in the modern
spelling; whose they are is the business of `checkpoint`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertsmith.errors import CheckpointError


class _Shard(NamedTuple):
    """One safetensors file: open for mapping, and the place of every tensor's bytes for plain reading."""

    path: Path
    mapped: safe_open
    header: dict[str, Any]
    data_start: int


class StoredTensors(contextlib.AbstractContextManager["StoredTensors"]):
    """The tensors of a model folder, mapped from one file or from several with an index.

    Attributes:
        path: the file, or the index.
        names: the modern spelling of every tensor's name → its file and its name there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model.safetensors"
        index = folder / "model.safetensors.index.json"
        if not self.path.is_file() and index.is_file():
            self.path = index
        elif not self.path.is_file():
            raise CheckpointError(f"{folder}: no model.safetensors; {_other_weights(folder)}")
        self._open_files = contextlib.ExitStack()
        self.names: dict[str, tuple[_Shard, str]] = {}
        for path in _shards_of(index) if self.path == index else [self.path]:
            shard = self._open(path)
            for name in list(shard.mapped.keys()):
                self.names[_modern_spelling(name)] = (shard, name)

    def __exit__(self, *error: object) -> None:
        self._open_files.close()

    def shape(self, name: str) -> list[int]:
        """Returns the shape of a tensor."""
        shard, spelling = self.names[name]
        return list(shard.header[spelling]["shape"])

    def get(self, name: str) -> Tensor:
        """Returns a tensor: in float32 if it is floating-point, a view of the mapped file where it is stored so."""
        shard, spelling = self.names[name]
        tensor: Tensor = shard.mapped.get_tensor(spelling)
        return tensor.float() if tensor.is_floating_point() else tensor

    def join(self, names: Sequence[str]) -> Tensor:
        """Returns tensors of one shape and dtype as one, [R, ...] each → [K R, ...]."""
        if any(shard.header[spelling]["dtype"] != "F32" for shard, spelling in map(self.names.__getitem__, names)):
            return torch.cat([self.get(name) for name in names])
        rows, *rest = self.shape(names[0])
        joined = torch.empty(len(names) * rows, *rest)
        for name, place in zip(names, joined.split(rows), strict=True):
            shard, spelling = self.names[name]
            # 合并只能复制：直接读进目的地，不经映射，否则同一份权重要占两份内存
            with shard.path.open("rb") as file:
                file.seek(shard.data_start + shard.header[spelling]["data_offsets"][0])
                file.readinto(place.numpy().data)
        return joined

    def _open(self, path: Path) -> _Shard:
        try:
            # safe_open 检查整个文件的结构，之后才可放心按文件头里的位置读
            mapped = self._open_files.enter_context(safe_open(path, framework="pt"))
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                return _Shard(path, mapped, json.loads(file.read(size)), 8 + size)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: damaged or truncated ({error}); copy the file again") from None


def _shards_of(index: Path) -> list[Path]:
    """Reads which files an index names; each must lie beside it."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        shards = [index.parent / name for name in sorted(names)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: not an index of safetensors files ({error})") from None
    for shard in shards:
        # 索引来自别处：只许指向同一文件夹里的文件
        if shard.parent != index.parent or not shard.is_file():
            raise CheckpointError(f"{index}: names {shard.name}, which is not in the folder; copy all parts")
    return shards


def _other_weights(folder: Path) -> str:
    """Says what to do with a folder that has no safetensors."""
    if not folder.is_dir():
        return "there is no such folder"
    others = [path.name for pattern in ("*.bin", "*.ckpt*", "*.h5") for path in sorted(folder.glob(pattern))]
    if others:
        return f"bertsmith reads safetensors weights only; convert {others[0]} with `bertsmith import`"
    return "this is not a model folder, or its weights were not copied"


def _modern_spelling(name: str) -> str:
    """Early checkpoints call the scale and shift of a norm `gamma` and `beta`, as TensorFlow did."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def fingerprint_weights(folder: str | Path) -> str:
    """Returns a hex digest of all weights of a model folder.

    Raises:
        CheckpointError: the folder holds none, or they cannot be read.
    """
    folder = Path(folder)
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no model.safetensors; name a model folder")
    digest = hashlib.blake2b(digest_size=16)
    try:
        for file in files:
            with file.open("rb") as handle:
                while chunk := handle.read(1 << 22):
                    digest.update(chunk)
    except OSError as error:
        raise CheckpointError(f"{folder}: its weights cannot be read ({error.strerror})") from None
    return digest.hexdigest()
