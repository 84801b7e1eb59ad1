"""Safetensors files as one table of tensors: mapped, and each checked once, when it is read.

One reader for every such file of the package: a model folder's (one file, or shards with an index), an adapter's, a
tagger's. It checks shape and type, and that a tensor holds numbers. Weights are safetensors only: nothing is ever
unpickled. What this package writes has a checksum of all tensors in the header, among the notes that other tools leave
alone: a weight in which a bit flipped is still a number.

Matrices may be stored in 8 bits, in a file of another name that no other tool takes for floating-point weights: beside
each there is `NAME_scale`, by which every row is multiplied.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertsmith.errors import CheckpointError

WEIGHTS = "model.safetensors"
INT8_WEIGHTS = "model.int8.safetensors"
CHECKSUM = "bertsmith_crc32c"
"""Among the notes in the header of a file: the checksum of its tensors."""
_SCALE = "_scale"
_AT_ONCE = 1 << 24
"""Bytes of a tensor that are looked at together."""


class _File(NamedTuple):
    """One safetensors file: open for mapping, and the place of every tensor's bytes for plain reading."""

    path: Path
    mapped: safe_open
    header: dict[str, Any]
    data_start: int


class StoredTensors(contextlib.AbstractContextManager["StoredTensors"]):
    """The tensors of one safetensors file or of several, mapped: one that is used as stored costs no memory of its own.

    Attributes:
        path: the file, or the index of several; named in messages.
        names: the modern spelling of every tensor's name → its file and its name there.
    """

    def __init__(self, path: Path, files: list[Path]) -> None:
        """Opens the files.

        Raises:
            CheckpointError: one is damaged.
        """
        self.path = path
        self._open_files = contextlib.ExitStack()
        self.names: dict[str, tuple[_File, str]] = {}
        self._files = [self._open(each) for each in files]
        for file in self._files:
            self.names |= {_modern_spelling(name): (file, name) for name in list(file.mapped.keys())}
        scaled = [name for name in self.names if name + _SCALE in self.names]
        self._scales = {name: self.names.pop(name + _SCALE) for name in scaled}

    @classmethod
    def of_folder(cls, folder: Path) -> StoredTensors:
        """Opens `model.safetensors`, the 8-bit file, or the files that `model.safetensors.index.json` names.

        Raises:
            CheckpointError: there are none, or one is missing or damaged.
        """
        index = folder / "model.safetensors.index.json"
        for path in (folder / WEIGHTS, folder / INT8_WEIGHTS):
            if path.is_file():
                return cls(path, [path])
        if index.is_file():
            return cls(index, _shards_of(index))
        raise CheckpointError(f"{folder}: no model.safetensors; {_other_weights(folder)}")

    def __exit__(self, *error: object) -> None:
        self._open_files.close()

    def verify(self) -> None:
        """Compares the tensors of every file that has a checksum with it; reads all of them once.

        Raises:
            CheckpointError: they differ.
        """
        for file in self._files:
            noted = (file.mapped.metadata() or {}).get(CHECKSUM)
            names = list(file.mapped.keys())
            if noted is not None and checksum_of({name: file.mapped.get_tensor(name) for name in names}) != noted:
                raise CheckpointError(f"{file.path}: damaged (its checksum differs); copy the file again")

    def shape(self, name: str) -> list[int]:
        """Returns the shape of a tensor."""
        file, spelling = self.names[name]
        return list(file.header[spelling]["shape"])

    def read(self, names: list[str], shape: list[int]) -> Tensor | str:
        """Reads one of our tensors from its one or several on disk.

        Args:
            names: on disk; several of one shape are stacked by rows.
            shape: that of our tensor.

        Returns:
            The tensor in float32, a view of the mapped file where it is stored so; or what is wrong with it.
        """
        each = [shape[0] // len(names), *shape[1:]] if shape else shape
        for name in names:
            if self.shape(name) != each:
                return f"{name} has shape {self.shape(name)}, the model needs {each}"
        value = self.get(names[0]) if len(names) == 1 else self._join(names, each)
        if not value.is_floating_point():
            return f"{names[0]} is {value.dtype}, not a floating-point tensor"
        # 最小值、最大值会传播 NaN：一遍扫描、不分配内存就能看出权重是否已坏
        for name, part in zip(names, value.chunk(len(names)) if len(names) > 1 else [value], strict=True):
            if part.numel() and not all(map(math.isfinite, map(float, torch.aminmax(part)))):
                return f"{name} holds NaN or infinity; the run that wrote it broke, use an earlier one"
        return value

    def get(self, name: str) -> Tensor:
        """Returns a tensor as it is: in float32 if it is floating-point."""
        file, spelling = self.names[name]
        tensor: Tensor = file.mapped.get_tensor(spelling)
        if name in self._scales:
            scale_file, scale = self._scales[name]
            scales: Tensor = scale_file.mapped.get_tensor(scale)
            return tensor.float() * scales[:, None]
        return tensor.float() if tensor.is_floating_point() else tensor

    def _join(self, names: list[str], shape: list[int]) -> Tensor:
        """Stacks tensors of one shape, [R, ...] each → [K R, ...]."""
        if any(file.header[spelling]["dtype"] != "F32" for file, spelling in map(self.names.__getitem__, names)):
            return torch.cat([self.get(name) for name in names])
        joined = torch.empty(len(names) * shape[0], *shape[1:])
        for name, place in zip(names, joined.split(shape[0]), strict=True):
            file, spelling = self.names[name]
            # 合并只能复制：直接读进目的地，不经映射，否则同一份权重要占两份内存
            with file.path.open("rb") as handle:
                handle.seek(file.data_start + file.header[spelling]["data_offsets"][0])
                handle.readinto(place.numpy().data)
        return joined

    def _open(self, path: Path) -> _File:
        try:
            # safe_open 检查整个文件的结构，之后才可放心按文件头里的位置读
            mapped = self._open_files.enter_context(safe_open(path, framework="pt"))
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                return _File(path, mapped, json.loads(file.read(size)), 8 + size)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: damaged or truncated ({error}); copy the file again") from None


def checksum_of(tensors: Mapping[str, Tensor]) -> str:
    """Returns the CRC-32C of tensors with their names, in whatever order they lie."""
    checksum = 0
    for name, tensor in sorted(tensors.items()):
        checksum = google_crc32c.extend(checksum, name.encode())
        # 按字节看，不管是什么类型；映射的张量不必先复制
        numbers = tensor.contiguous().flatten().view(torch.uint8).numpy()
        for start in range(0, len(numbers), _AT_ONCE):
            checksum = google_crc32c.extend(checksum, numbers[start : start + _AT_ONCE].tobytes())
    return f"{checksum:08x}"


def order_notes(path: Path, notes: Mapping[str, str]) -> None:
    """Puts the notes in the header of a safetensors file in the order of their names.

    The library writes them in an order of chance; the same tensors must make the same bytes.

    Args:
        path: of the file.
        notes: what it was written with.
    """

    def written(text: Mapping[str, str]) -> bytes:
        return json.dumps({"__metadata__": text}, separators=(",", ":"))[:-1].encode()

    ordered = written(dict(sorted(notes.items())))
    with path.open("r+b") as file:
        file.seek(8)
        found = file.read(len(ordered))
        # 长度不变，只换次序：文件头里记的位置都还对
        if found not in [written(dict(each)) for each in itertools.permutations(notes.items())]:
            raise AssertionError(f"{path}: the notes do not stand at the beginning of the header")
        file.seek(8)
        file.write(ordered)


def in_8_bits(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors with every matrix [out, in] rounded to 8 bits, and the scale [out] of its rows beside it."""
    stored = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2:
            stored[name] = tensor
            continue
        # 每行一个尺度：一行里最大的数对应 127，别的行再大也不影响它的精度
        scales = (tensor.abs().amax(1) / 127).clamp(min=1e-30)
        stored |= {name: torch.round(tensor / scales[:, None]).to(torch.int8), name + _SCALE: scales}
    return stored


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
