"""Model folders: our modules on one side, tensors under the field's names on the other.

Model folders are read under the published names of their family; adapters and the tagger over frozen features, which
are files of their own, under ours. One reader serves all of them: weights are safetensors only, mapped and not read,
and each tensor is checked for shape, type and broken numbers. What this package writes has a checksum of all tensors
in the header, among the notes that other tools leave alone: a weight in which a bit flipped is still a number.

Matrices may be stored in 8 bits, in a file of another name that no other tool takes for floating-point weights: beside
each there is `NAME_scale`, by which every row is multiplied.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import google_crc32c
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.files import atomic_path, chunks_of, make_folder, parse_json, read_json
from bertsmith.hub import model_folder, no_model_in
from bertsmith.model.config import ModelConfig
from bertsmith.model.family import PublishedNames

WEIGHTS = "model.safetensors"
INT8_WEIGHTS = "model.int8.safetensors"
CHECKSUM = "bertsmith_crc32c"
"""Among the notes in the header of a file: the checksum of its tensors."""
_SCALE = "_scale"
_FLOATING = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
WRAPPERS = (
    *("module", "_orig_mod", "_fsdp_wrapped_module", "model", "base_model", "bert_model", "auto_model", "student"),
)
"""Names under which common tools keep a whole model, and so begin all names of its tensors."""

StoredAs = Literal["float32", "bf16", "int8"]

BACKBONE = "backbone."
"""Before our names of the backbone's tensors in a model that has heads."""

PROBLEMS_SHOWN = 3
"""Tensors of an adapter's file named in one message; a wrong file often fits nowhere."""


def published_names(name: str, names: PublishedNames) -> tuple[str, ...]:
    """Translates a parameter's name, such as `backbone.encoder.blocks.0.attention.qkv.weight`, into those on disk."""
    prefix = names.prefix if name.startswith(BACKBONE) else ""
    module, _, kind = name.removeprefix(BACKBONE).rpartition(".")
    numbers = re.findall(r"\.(\d+)\.", module)
    pattern = re.sub(r"\.\d+\.", ".*.", module)
    found = names.backbone.get(pattern) or names.heads[pattern]
    targets = (found,) if isinstance(found, str) else found
    return tuple(f"{prefix}{target.replace('*', numbers[0]) if numbers else target}.{kind}" for target in targets)


def save_model_folder(
    model: nn.Module,
    config: ModelConfig,
    folder: str | Path,
    *,
    architecture: str,
    leave_out: tuple[str, ...] = (),
    weights: StoredAs = "float32",
) -> None:
    """Writes `model.safetensors` and `config.json`, each whole or not at all; files of the same names are replaced.

    Args:
        architecture: the `transformers` class that reads these tensors, such as `BertForPreTraining`.
        weights: how they are stored; in `int8` the file is `model.int8.safetensors`, which this package alone reads.
    """
    folder = make_folder(Path(folder))
    names = config.family.names
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if ".adapter." in name:
            raise ConfigError(f"{name}: adapters have no place in a model folder; merge it, or use save_adapter")
        if name.partition(".")[0] in leave_out:
            continue
        targets = published_names(name, names)
        # 融合的 QKV 在磁盘上拆回三个矩阵：别的工具按这些名字读取
        parts = value.detach().cpu().chunk(len(targets))
        tensors.update({target: part.contiguous() for target, part in zip(targets, parts, strict=True)})
    decoder_bias = f"{names.decoder}.bias"
    if decoder_bias in tensors:
        # 输出矩阵不共享时，transformers 另存一份同样的偏置；缺了它会报缺失
        tensors[names.same_bias[decoder_bias]] = tensors[decoder_bias].clone()
    if weights == "bf16":
        tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    # 整数权重换个文件名：别的工具宁可说没有权重，也不该把整数当小数读进去
    file, other = (INT8_WEIGHTS, WEIGHTS) if weights == "int8" else (WEIGHTS, INT8_WEIGHTS)
    _write(folder / file, in_8_bits(tensors) if weights == "int8" else tensors)
    (folder / other).unlink(missing_ok=True)
    with atomic_path(folder / "config.json") as temporary:
        config.save(temporary, architecture=architecture)


def write_modules(path: Path, modules: Mapping[str, nn.Module]) -> None:
    """Writes the tensors of modules to one file, each under the module's name and its own; whole or not at all."""
    _write(path, {name: value.detach().cpu().contiguous() for name, value in _own_names(modules).items()})


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt", CHECKSUM: checksum_of(tensors)})
        sort_notes(temporary)


def sort_notes(path: Path) -> None:
    """Puts the notes in the header of a safetensors file in order: the library writes them in a random one."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        # 同样的权重存出同样的字节：续跑与不中断的一样，靠这个核对
        ordered = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        file.seek(8)
        file.write(ordered.ljust(size))


@dataclass(frozen=True)
class LoadReport:
    """How stored tensors and a model fit.

    Attributes:
        unusable: "NAME has shape [..], the model needs [..]", or what else is wrong with a tensor.
        fresh: our names of the tensors that were left as they are.
        left_aside: tensors of heads that this model does not have.
    """

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    left_aside: list[str] = field(default_factory=list)

    def problems(self, head_prefixes: tuple[str, ...]) -> str:
        """Says what does not fit, every tensor by name; empty where all fits."""
        parts = [f"{', '.join(self.missing)} missing"] if self.missing else []
        parts += [f"{', '.join(self.unexpected)} unexpected"] if self.unexpected else []
        parts += self.unusable
        if self.missing and all(name.startswith(head_prefixes) for name in self.missing):
            parts.append("start that head afresh with new_heads=True, or load the folder as what it is")
        elif self.missing and all("pooler" in name for name in self.missing):
            parts.append("where the pooled [CLS] is not needed, load it with need_pooler=False")
        return "; ".join(parts)


def load_model_folder(
    model: nn.Module,
    names: PublishedNames,
    folder: str | Path,
    *,
    fresh: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> LoadReport:
    """Fills a model with the tensors of a folder, and says what was left aside and what was left as it is.

    Every tensor becomes a view of the mapped file, except those that are one inside and several on disk.

    Args:
        model: a model whose shapes come from the folder's `config.json`; it may be on the meta device.
        fresh: our names of modules left as they are whatever is on disk, such as `classifier` before fine-tuning.
        optional: our names of modules that may be absent on disk and are then left as they are.
    """
    stored = StoredTensors.of_folder(model_folder(folder))
    stored.verify()
    values, report = _match(model, names, stored, fresh, optional)
    if problems := report.problems(names.head_prefixes):
        title = getattr(model, "architecture", type(model).__name__)
        raise CheckpointError(f"{stored.path}: does not fit {title}: {problems}")
    # assign：参数直接换成文件映射出的张量，不复制；写时才由操作系统复制所在的页
    model.load_state_dict(values, strict=False, assign=True)
    return report


def read_modules(path: Path, modules: Mapping[str, nn.Module]) -> None:
    """Fills modules with what `write_modules` wrote; all is checked before the first one is touched."""
    if not path.is_file():
        raise CheckpointError(f"{path}: is not there; copy the whole folder")
    wanted = _own_names(modules)
    values: dict[str, Tensor] = {}
    stored = StoredTensors(path, [path])
    stored.verify()
    problems = [f"{name} missing" for name in sorted(wanted.keys() - stored.names.keys())]
    problems += [f"{name} unexpected" for name in sorted(stored.names.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & stored.names.keys()):
        value = stored.read([name], list(wanted[name].shape))
        if isinstance(value, str):
            problems.append(value)
        else:
            values[name] = value
    if problems:
        more = f"; and {len(problems) - PROBLEMS_SHOWN} more" if len(problems) > PROBLEMS_SHOWN else ""
        raise CheckpointError(f"{path}: does not fit: {'; '.join(problems[:PROBLEMS_SHOWN])}{more}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(values[name])


def read_architecture(folder: str | Path) -> str | None:
    """Returns the class name that a folder's `config.json` gives its model, or None where it gives none."""
    path = model_folder(folder) / "config.json"
    if not path.exists():
        return None
    names = read_json(path, dict, CheckpointError, "copy it again").get("architectures")
    return str(names[0]) if names and isinstance(names, list) else None


def require_layers(folder: str | Path, config: ModelConfig) -> None:
    """Makes sure that a folder has tensors enough for the layers of its configuration, before they are built."""
    has_own = any("*" in module for module in config.family.names.backbone)
    stored = StoredTensors.of_folder(model_folder(folder))
    if has_own and config.num_hidden_layers > len(stored.names):
        raise CheckpointError(f"{stored.path}: {len(stored.names)} tensors cannot be {config.num_hidden_layers} layers")


def stored_rows(folder: str | Path, name: str) -> int | None:
    """Returns the first size of a stored tensor, by its name on disk; None where there is no such tensor."""
    stored = StoredTensors.of_folder(model_folder(folder))
    return stored.shape(name)[0] if name in stored.names else None


def stored_heads(folder: str | Path) -> set[str]:
    """Returns our names of the heads that a model folder holds, such as `masked_lm`."""
    names = ModelConfig.load(folder).family.names
    stored = StoredTensors.of_folder(model_folder(folder)).names.keys()
    # 各部分齐了才算有这个头：有的家族让几种头共用底下一层；解码矩阵通常与词嵌入共享，在不在都说明不了什么
    parts = {ours: theirs for ours, theirs in names.heads.items() if not ours.endswith(".decoder")}
    absent = {
        ours.partition(".")[0]
        for ours, theirs in parts.items()
        if not {f"{theirs}.weight", f"{theirs}.bias", names.same_bias.get(f"{theirs}.bias")} & stored
    }
    return {ours.partition(".")[0] for ours in parts} - absent


def fingerprint_weights(folder: str | Path) -> str:
    """Returns a hex digest of all weights of a model folder; `CheckpointError` where none are there or readable."""
    folder = model_folder(folder)
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise no_model_in(folder, "model.safetensors")
    digest = hashlib.blake2b(digest_size=16)
    try:
        for file in files:
            for chunk in chunks_of(file):
                digest.update(chunk)
    except OSError as error:
        raise CheckpointError(f"{folder}: its weights cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def _match(
    model: nn.Module,
    names: PublishedNames,
    stored: StoredTensors,
    fresh: tuple[str, ...],
    optional: tuple[str, ...],
) -> tuple[dict[str, Tensor], LoadReport]:
    """Finds a value for each of the model's tensors, and says what does not fit."""
    report = LoadReport()
    values: dict[str, Tensor] = {}
    used: set[str] = set()
    prefix = names.prefix if any(name.startswith(names.prefix) for name in stored.names) else ""
    for name, parameter in model.state_dict().items():
        sources = [_spelling_here(each, names, stored.names, prefix) for each in published_names(name, names)]
        missing = [source for source in sources if source not in stored.names]
        if name.startswith(tuple(f"{module}." for module in fresh)):
            report.fresh.append(name)
            used.update(sources)
        elif missing and name.startswith(tuple(f"{module}." for module in optional)):
            report.fresh.append(name)
        elif missing:
            report.missing.extend(missing)
        else:
            used.update(sources)
            value = stored.read(sources, list(parameter.shape))
            if isinstance(value, str):
                report.unusable.append(value)
            else:
                values[name] = value
    # 同一个偏置的两个名字都写着时，用了一个就等于两个都用了
    used |= {names.same_bias[name] for name in used & names.same_bias.keys()}
    _check_decoder(model, names, stored, prefix, report)
    derived = (*names.derived, f"{names.decoder}.weight", f"{names.decoder}.bias")
    pooler = names.backbone.get("pooler", "pooler")
    for name in sorted(stored.names.keys() - used):
        if name.startswith((*names.head_prefixes, f"{prefix}{pooler}.")):
            report.left_aside.append(name)
        elif not name.endswith(derived):
            report.unexpected.append(name)
    return values, report


def _check_decoder(
    model: nn.Module, names: PublishedNames, stored: StoredTensors, prefix: str, report: LoadReport
) -> None:
    """Refuses a decoder of its own where the configuration says that it is the word embedding."""
    decoder, embedding = f"{names.decoder}.weight", f"{prefix}{names.backbone['embedding.word']}.weight"
    tied = any(name.endswith("masked_lm.bias") for name in model.state_dict())
    if tied and {decoder, embedding} <= stored.names.keys() and not stored.get(decoder).equal(stored.get(embedding)):
        report.unusable.append(
            f'{decoder} differs from the word embedding; set "tie_word_embeddings": false in config.json'
        )


def _spelling_here(source: str, names: PublishedNames, stored: Container[str], prefix: str) -> str:
    """Finds the spelling of a name in this folder: with the prefix or without, and the bias under its other name."""
    # 同一个偏置有两个名字，保存的人只写其一：两边都要认
    if source in names.same_bias and source not in stored:
        return names.same_bias[source]
    if source in stored or source.startswith(names.head_prefixes):
        return source
    return prefix + source.removeprefix(names.prefix)


def _own_names(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    # state_dict 给出的是参数本身的视图，写入即改变模块
    return {f"{path}.{name}": value for path, module in modules.items() for name, value in module.state_dict().items()}


class StoredTensors:
    """The tensors of one safetensors file or of several, mapped: one that is used as stored costs no memory of its own.

    Attributes:
        names: the modern spelling of every tensor's name → its file and its name there.
    """

    def __init__(self, path: Path, files: list[Path]) -> None:
        self.path = path
        self.names: dict[str, tuple[safe_open, str]] = {}
        self._files = {each: self._open(each) for each in files}
        for file in self._files.values():
            self.names |= {modern_spelling(name): (file, name) for name in list(file.keys())}
        scaled = [name for name in self.names if name + _SCALE in self.names]
        self._scales = {name: self.names.pop(name + _SCALE) for name in scaled}

    @classmethod
    def of_folder(cls, folder: Path) -> StoredTensors:
        """Opens `model.safetensors`, the 8-bit file, or the files that `model.safetensors.index.json` names."""
        index = folder / "model.safetensors.index.json"
        for path in (folder / WEIGHTS, folder / INT8_WEIGHTS):
            if path.is_file():
                return cls(path, [path])._unwrapped()
        if index.is_file():
            return cls(index, shards_of(index))._unwrapped()
        raise CheckpointError(f"{folder}: no model.safetensors; {_other_weights(folder)}")

    def _unwrapped(self) -> StoredTensors:
        names, wrapper = without_wrapper(self.names, self.path)
        self.names = {ours: self.names[theirs] for ours, theirs in names.items()}
        self._scales = {name.removeprefix(wrapper): scale for name, scale in self._scales.items()}
        return self

    def verify(self) -> None:
        """Reads every file that has a checksum once, and compares; CheckpointError where they differ."""
        for path, file in self._files.items():
            noted = (file.metadata() or {}).get(CHECKSUM)
            names = list(file.keys())
            if noted is not None and checksum_of({name: file.get_tensor(name) for name in names}) != noted:
                raise CheckpointError(f"{path}: damaged (its checksum differs); copy the file again")

    def shape(self, name: str) -> list[int]:
        """Returns the shape of a tensor."""
        file, spelling = self.names[name]
        return list(file.get_slice(spelling).get_shape())

    def _kind(self, name: str) -> str:
        file, spelling = self.names[name]
        return str(file.get_slice(spelling).get_dtype())

    def read(self, names: list[str], shape: list[int]) -> Tensor | str:
        """Returns one of our tensors in float32, stacked by rows from its one or several on disk; or what is wrong."""
        each = [shape[0] // len(names), *shape[1:]] if shape else shape
        for name in names:
            if self.shape(name) != each:
                return f"{name} has shape {self.shape(name)}, the model needs {each}"
            # 先看类型：整数的一块与浮点的几块拼在一起，就看不出来了
            if name not in self._scales and self._kind(name) not in _FLOATING:
                return f"{name} is {self._kind(name)}, not a floating-point tensor"
        value = self.get(names[0]) if len(names) == 1 else torch.cat([self.get(name) for name in names])
        for name, part in zip(names, value.chunk(len(names)) if len(names) > 1 else [value], strict=True):
            # 坏数会传到总和里：先求和，比找最小最大快一倍；总和也可能是好数加到溢出，再细看一遍
            if not math.isfinite(part.sum()) and not part.isfinite().all():
                return f"{name} holds NaN or infinity; the run that wrote it broke, use an earlier one"
        return value

    def get(self, name: str) -> Tensor:
        """Returns a tensor as it is: in float32 if it is floating-point."""
        file, spelling = self.names[name]
        tensor: Tensor = file.get_tensor(spelling)
        if name in self._scales:
            scale_file, scale = self._scales[name]
            scales: Tensor = scale_file.get_tensor(scale)
            return tensor.float() * scales[:, None]
        return tensor.float() if tensor.is_floating_point() else tensor

    def _open(self, path: Path) -> safe_open:
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: damaged or truncated ({error}); copy the file again") from None


def checksum_of(tensors: Mapping[str, Tensor]) -> str:
    """Returns the CRC-32C of tensors with their names, in whatever order they lie."""
    checksum = 0
    for name, tensor in sorted(tensors.items()):
        checksum = google_crc32c.extend(checksum, name.encode())
        numbers = tensor.contiguous().flatten().view(torch.uint8).numpy()
        # 按字节看，不管是什么类型；库只收只读的内存，标成只读就不必先复制
        numbers.setflags(write=False)
        checksum = google_crc32c.extend(checksum, numbers)
    return f"{checksum:08x}"


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


def shards_of(index: Path) -> list[Path]:
    """Reads which files an index names; each must lie beside it."""
    try:
        names = set(parse_json(index)["weight_map"].values())
        shards = [index.parent / name for name in sorted(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index}: not an index of files with weights ({error})") from None
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


def without_wrapper(names: Iterable[str], path: Path, separator: str = ".") -> tuple[dict[str, str], str]:
    """Takes off, and warns of, what a wrapper (several GPUs, a compiler, a training loop) put before all names.

    Returns:
        Name without it → name with it, and what it is, such as `module._orig_mod.`; empty where there is none.
    """
    left, wrapper = {name: name for name in names}, ""
    while left:
        first = next(iter(left)).partition(separator)[0] + separator
        # 只认所有名字共有的前缀：只有一部分带着它时，它就是模型自己的结构
        if first.removesuffix(separator) not in WRAPPERS or not all(name.startswith(first) for name in left):
            break
        left, wrapper = {name.removeprefix(first): original for name, original in left.items()}, wrapper + first
    if wrapper:
        warnings.warn(f"{path}: every tensor's name begins with {wrapper}; read without it", stacklevel=3)
    return left, wrapper


def modern_spelling(name: str) -> str:
    """Returns a tensor's name as it is spelled today: TensorFlow called a norm's scale and shift `gamma` and `beta`."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
