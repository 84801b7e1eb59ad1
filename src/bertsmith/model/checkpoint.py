"""Model folders: our modules on one side, the field's parameter names on the other.

`PARAMETER_NAMES` is the whole mapping. On disk the names are those of `transformers`, so its loaders and ours read
the same file; inside, query, key and value are one matrix, which is split on the way out and joined on the way in.
Weights are safetensors only: nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.files import atomic_path, make_folder
from bertsmith.model.config import BertConfig
from bertsmith.model.stored import StoredTensors

PARAMETER_NAMES: dict[str, str] = {
    "embedding.word": "embeddings.word_embeddings",
    "embedding.position": "embeddings.position_embeddings",
    "embedding.token_type": "embeddings.token_type_embeddings",
    "embedding.norm": "embeddings.LayerNorm",
    "encoder.blocks.*.attention_output": "encoder.layer.*.attention.output.dense",
    "encoder.blocks.*.attention_norm": "encoder.layer.*.attention.output.LayerNorm",
    "encoder.blocks.*.expand": "encoder.layer.*.intermediate.dense",
    "encoder.blocks.*.contract": "encoder.layer.*.output.dense",
    "encoder.blocks.*.output_norm": "encoder.layer.*.output.LayerNorm",
    "pooler": "pooler.dense",
    "masked_lm.transform": "cls.predictions.transform.dense",
    "masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "masked_lm": "cls.predictions",
    "masked_lm.decoder": "cls.predictions.decoder",
    "next_sentence.linear": "cls.seq_relationship",
    "classifier.linear": "classifier",
    "spans.linear": "qa_outputs",
}
"""Our module → theirs; `*` is a layer number. `weight` and `bias` are called the same on both sides."""

FUSED_PROJECTION = "encoder.blocks.*.attention.project"
PROJECTION_PARTS = tuple(f"encoder.layer.*.attention.self.{part}" for part in ("query", "key", "value"))
"""Our one matrix [3H, H] → their three [H, H], in this order."""

HEAD_PREFIXES = ("cls.", "classifier.", "qa_outputs.")
"""Tensors of heads: left aside, like the pooler's, when a model without that head is loaded."""

_BIAS_NAMES = {
    "cls.predictions.bias": "cls.predictions.decoder.bias",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""The bias over the vocabulary has two names in `transformers`; which of them is stored depends on the version."""

_DERIVED = re.compile(r"embeddings\.position_ids$|cls\.predictions\.decoder\.(weight|bias)$")
"""Tensors that some writers store although they follow from others: a counter, and the tied decoder."""


def names_on_disk(name: str) -> tuple[str, ...]:
    """Translates one of our parameter names into the one or three names on disk.

    Raises:
        KeyError: no module of that name is in the table.
    """
    prefix = "bert." if name.startswith("bert.") else ""
    module, _, kind = name.removeprefix("bert.").rpartition(".")
    numbers = re.findall(r"\.(\d+)\.", module)
    pattern = re.sub(r"\.\d+\.", ".*.", module)
    targets = PROJECTION_PARTS if pattern == FUSED_PROJECTION else (PARAMETER_NAMES[pattern],)
    return tuple(f"{prefix}{target.replace('*', numbers[0]) if numbers else target}.{kind}" for target in targets)


def save_model_folder(model: nn.Module, config: BertConfig, folder: str | Path, *, architecture: str) -> None:
    """Writes `model.safetensors` and `config.json`, each whole or not at all.

    Args:
        model: holds the tensors.
        config: its shape.
        folder: made when missing; files of the same names are replaced.
        architecture: the `transformers` class that reads these tensors, such as `BertForPreTraining`.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
        ConfigError: the model has an adapter, for which these files have no place.
    """
    folder = make_folder(Path(folder))
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if ".adapter." in name:
            raise ConfigError(f"{name}: adapters have no place in a model folder; merge it, or use save_adapter")
        targets = names_on_disk(name)
        # 融合的 QKV 在磁盘上拆回三个矩阵：别的工具按这些名字读取
        parts = value.detach().cpu().chunk(len(targets))
        tensors.update({target: part.contiguous() for target, part in zip(targets, parts, strict=True)})
    if "cls.predictions.decoder.bias" in tensors:
        # 输出矩阵不共享时，transformers 另存一份同样的偏置；缺了它会报缺失
        tensors["cls.predictions.bias"] = tensors["cls.predictions.decoder.bias"].clone()
    with atomic_path(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    with atomic_path(folder / "config.json") as temporary:
        config.save(temporary, architecture=architecture)


def load_model_folder(
    model: nn.Module, folder: str | Path, *, fresh: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> LoadReport:
    """Fills a model with the tensors of a folder.

    Every tensor becomes a view of the mapped file, except query, key and value, which are joined into one matrix.

    Args:
        model: a model whose shapes come from the folder's `config.json`; it may be on the meta device.
        folder: holds `model.safetensors`, or its shards with `model.safetensors.index.json`.
        fresh: our names of modules that are left as they are whatever is on disk, such as `("classifier",)` when a
            folder is about to be fine-tuned for new classes.
        optional: our names of modules that may be absent on disk and are then left as they are.

    Returns:
        What was left aside and what was left as it is.

    Raises:
        CheckpointError: a file is missing or damaged; or a tensor is missing, unexpected, of another shape, or holds
            NaN. The message names file and tensors.
    """
    with StoredTensors(Path(folder)) as stored:
        values, report = _match(model, stored, fresh, optional)
        problems = report.problems()
        if problems:
            raise CheckpointError(f"{stored.path}: does not fit {type(model).__name__}: {problems}")
    # assign：参数直接换成文件映射出的张量，不复制；写时才由操作系统复制所在的页
    model.load_state_dict(values, strict=False, assign=True)
    return report


def read_architecture(folder: str | Path) -> str | None:
    """Returns the class name that a folder's `config.json` gives its model, or None where it gives none."""
    try:
        names = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8")).get("architectures")
    except (OSError, ValueError, AttributeError):
        return None
    return str(names[0]) if names and isinstance(names, list) else None


def stored_rows(folder: str | Path, name: str) -> int | None:
    """Returns the first size of a stored tensor, by its name on disk; None where there is no such tensor."""
    with StoredTensors(Path(folder)) as stored:
        return stored.shape(name)[0] if name in stored.names else None


@dataclass(frozen=True)
class LoadReport:
    """How a folder and a model fit.

    Attributes:
        missing: names on disk that the model needs and the folder lacks.
        unexpected: names in the folder that the model has no use for.
        misshapen: "NAME has shape [..], the model needs [..]".
        unusable: "NAME holds NaN", or what else is wrong with the values.
        fresh: our names of the modules that were left as they are.
        left_aside: tensors of heads that this model does not have.
    """

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    left_aside: list[str] = field(default_factory=list)

    def problems(self) -> str:
        """Says what does not fit, every tensor by name; empty where all fits."""
        parts = [f"{', '.join(self.missing)} missing"] if self.missing else []
        parts += [f"{', '.join(self.unexpected)} unexpected"] if self.unexpected else []
        parts += self.misshapen + self.unusable
        if self.missing and all(name.startswith(HEAD_PREFIXES) for name in self.missing):
            parts.append("start that head afresh with new_heads=True, or load the folder as what it is")
        elif self.missing and all("pooler" in name for name in self.missing):
            parts.append("where the pooled [CLS] is not needed, load it with need_pooler=False")
        return "; ".join(parts)


def _match(
    model: nn.Module, stored: StoredTensors, fresh: tuple[str, ...], optional: tuple[str, ...]
) -> tuple[dict[str, Tensor], LoadReport]:
    """Finds a value for each of the model's tensors, and says what does not fit."""
    report = LoadReport()
    values: dict[str, Tensor] = {}
    used: set[str] = set()
    prefix = "bert." if any(name.startswith("bert.") for name in stored.names) else ""
    for name, parameter in model.state_dict().items():
        sources = [_find_name(source, stored.names, prefix) for source in names_on_disk(name)]
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
            value = _value(sources, list(parameter.shape), stored, report)
            if value is not None:
                values[name] = value
    # 同一个偏置的两个名字都写着时，用了一个就等于两个都用了
    used |= {_BIAS_NAMES[name] for name in used & _BIAS_NAMES.keys()}
    _check_decoder(model, stored, prefix, report)
    for name in sorted(stored.names.keys() - used):
        if name.startswith((*HEAD_PREFIXES, f"{prefix}pooler.")):
            report.left_aside.append(name)
        elif not _DERIVED.search(name):
            report.unexpected.append(name)
    return values, report


def _value(sources: list[str], shape: list[int], stored: StoredTensors, report: LoadReport) -> Tensor | None:
    """Reads one of our tensors from its one or three on disk; None, and a word in the report, where it is no use."""
    parts = [shape[0] // len(sources), *shape[1:]]
    for source in sources:
        if stored.shape(source) != parts:
            report.misshapen.append(f"{source} has shape {stored.shape(source)}, the model needs {parts}")
            return None
    value = stored.get(sources[0]) if len(sources) == 1 else stored.join(sources)
    if not value.is_floating_point():
        report.unusable.append(f"{sources[0]} is {value.dtype}, not a floating-point tensor")
        return None
    # 最小值、最大值会传播 NaN：一遍扫描、不分配内存就能看出权重是否已坏
    for source, part in zip(sources, value.chunk(len(sources)), strict=True):
        if not all(map(math.isfinite, map(float, torch.aminmax(part)))):
            report.unusable.append(f"{source} holds NaN or infinity; the run that wrote it broke, use an earlier one")
            return None
    return value


def _check_decoder(model: nn.Module, stored: StoredTensors, prefix: str, report: LoadReport) -> None:
    """Refuses a decoder of its own where the configuration says that it is the word embedding."""
    decoder, embedding = "cls.predictions.decoder.weight", f"{prefix}embeddings.word_embeddings.weight"
    tied = any(name.endswith("masked_lm.bias") for name in model.state_dict())
    if tied and {decoder, embedding} <= stored.names.keys() and not stored.get(decoder).equal(stored.get(embedding)):
        report.unusable.append(
            f'{decoder} differs from the word embedding; set "tie_word_embeddings": false in config.json'
        )


def _find_name(source: str, names: Container[str], prefix: str) -> str:
    """Finds the spelling of a name in this folder: with `bert.` or without, and the bias under its other name."""
    # 同一个偏置有两个名字，保存的人只写其一：两边都要认
    if source in _BIAS_NAMES and source not in names:
        return _BIAS_NAMES[source]
    if source in names or source.startswith(HEAD_PREFIXES):
        return source
    return prefix + source.removeprefix("bert.")
