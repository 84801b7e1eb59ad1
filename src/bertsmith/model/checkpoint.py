"""Model folders: our modules on one side, the field's parameter names on the other.

`PARAMETER_NAMES` is the whole mapping. On disk the names are those of `transformers`, so its loaders and ours read
the same file; inside, query, key and value are one matrix, which is split on the way out and joined on the way in.
Weights are safetensors only: nothing is ever unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith.errors import CheckpointError
from bertsmith.files import atomic_path, make_folder
from bertsmith.model.config import BertConfig

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
    "next_sentence.linear": "cls.seq_relationship",
    "classifier.linear": "classifier",
}
"""Our module → theirs; `*` is a layer number. `weight` and `bias` are called the same on both sides."""

FUSED_PROJECTION = "encoder.blocks.*.attention.project"
PROJECTION_PARTS = tuple(f"encoder.layer.*.attention.self.{part}" for part in ("query", "key", "value"))
"""Our one matrix [3H, H] → their three [H, H], in this order."""

HEAD_PREFIXES = ("cls.", "classifier.", "qa_outputs.")
"""Tensors of heads: left aside when a model without that head is loaded."""

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
    """
    folder = make_folder(Path(folder))
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        targets = names_on_disk(name)
        # 融合的 QKV 在磁盘上拆回三个矩阵：别的工具按这些名字读取
        parts = value.detach().cpu().chunk(len(targets))
        tensors.update({target: part.contiguous() for target, part in zip(targets, parts, strict=True)})
    with atomic_path(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    with atomic_path(folder / "config.json") as temporary:
        config.save(temporary, architecture=architecture)


def load_model_folder(
    model: nn.Module, folder: str | Path, *, fresh: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> None:
    """Fills a model with the tensors of a folder.

    Args:
        model: a model whose shapes come from the folder's `config.json`.
        folder: holds `model.safetensors`.
        fresh: our names of modules that keep their fresh weights whatever is on disk, such as `("classifier",)` when
            a folder is about to be fine-tuned for new classes.
        optional: our names of modules that may be absent on disk and then keep their fresh weights.

    Raises:
        CheckpointError: the file is missing or damaged; or a tensor is missing, unexpected or of another shape.
    """
    path = Path(folder) / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{folder}: no model.safetensors; bertsmith reads safetensors weights only")
    try:
        with safe_open(path, framework="pt") as stored:
            names = {_modern_spelling(name): name for name in list(stored.keys())}
            problems = list(_fill(model, stored, names, fresh, optional))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged or truncated ({error}); copy the file again") from None
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise CheckpointError(f"{path}: does not fit this model: {shown}")


def _fill(
    model: nn.Module, stored: safe_open, names: dict[str, str], fresh: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[str]:
    """Copies tensor by tensor and yields what does not fit, one short phrase each."""
    used: set[str] = set()
    prefix = "bert." if any(name.startswith("bert.") for name in names) else ""
    for name, parameter in model.state_dict().items():
        if name.startswith(tuple(f"{module}." for module in fresh)):
            continue
        sources = [_find_name(source, names, prefix) for source in names_on_disk(name)]
        missing = [source for source in sources if source not in names]
        if missing:
            if not name.startswith(tuple(f"{module}." for module in optional)):
                yield f"{missing[0]} is missing"
            continue
        used.update(sources)
        # 逐个张量拷入（内存映射读取），峰值内存不超过一份权重
        value = torch.cat([stored.get_tensor(names[source]) for source in sources])
        if value.shape != parameter.shape:
            yield f"{sources[0]} has shape {list(value.shape)}, the model needs {list(parameter.shape)}"
        else:
            parameter.copy_(value)
    for name in sorted(names.keys() - used):
        if not name.startswith(HEAD_PREFIXES) and not _DERIVED.search(name):
            yield f"{name} is unexpected"


def _modern_spelling(name: str) -> str:
    """Early checkpoints call the scale and shift of a norm `gamma` and `beta`, as TensorFlow did."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _find_name(source: str, names: dict[str, str], prefix: str) -> str:
    """Bridges folders whose encoder names start with `bert.` and those that have no prefix."""
    if source in names or source.startswith(HEAD_PREFIXES):
        return source
    return prefix + source.removeprefix("bert.")
