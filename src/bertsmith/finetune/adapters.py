"""Adapters as files: a small folder for each task, beside one backbone that stays untouched.

`adapter.json` says what an adapter is made of, and for which backbone and labels; `adapter.safetensors` holds the
weights of the adapter, of its heads and of the pooler. The backbone is known by a digest of its weights, so that it is
the same one in whatever folder and with whatever heads. A folder is checked whole before a model takes anything of it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.files import make_folder, read_json, write_json
from bertsmith.hub import model_folder
from bertsmith.model import BertConfig, PretrainedModel, architectures_by_name
from bertsmith.model.architectures import LabelledModel
from bertsmith.model.folder import read_modules, write_modules
from bertsmith.model.peft import (
    AdapterKind,
    AdapterSettings,
    LoraTarget,
    active_name,
    attach,
    empty_adapter,
    named_adapter,
)

DESCRIPTION_FILE, TENSOR_FILE = "adapter.json", "adapter.safetensors"
_FORMAT = 1
_COMPUTED_WITH = ("num_attention_heads", "hidden_act", "layer_norm_eps", "pruned_heads")
"""Fields of the configuration that change what the same weights compute."""


@dataclass(frozen=True)
class AdapterDescription:
    """What `adapter.json` says."""

    kind: AdapterKind
    size: int
    alpha: float
    dropout: float
    targets: tuple[LoraTarget, ...]
    architecture: str
    backbone: str
    id2label: dict[int, str]
    problem_type: str | None
    classifier_dropout: float | None
    format: int

    def __post_init__(self) -> None:
        if self.format != _FORMAT:
            raise CheckpointError(f"format {self.format}; this version of bertsmith reads {_FORMAT}")
        if sorted(self.id2label) != list(range(len(self.id2label))):
            raise ValueError("id2label does not count from 0")
        # 借用配置和适配器自己的检查：这几个字段在每个家族里都一样
        BertConfig(**self.changes)
        assert self.settings
        if not self.id2label and issubclass(
            architectures_by_name().get(self.architecture, PretrainedModel), LabelledModel
        ):
            raise ValueError("id2label is empty")

    @property
    def settings(self) -> AdapterSettings:
        """What the adapter is made of."""
        return AdapterSettings(self.kind, self.size, self.alpha, self.dropout, self.targets)

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of the model's configuration that go with the adapter."""
        return {
            "id2label": self.id2label,
            "problem_type": self.problem_type,
            "classifier_dropout": self.classifier_dropout,
        }

    @classmethod
    def load(cls, folder: Path) -> AdapterDescription:
        """Reads `adapter.json`."""
        return read_json(folder / DESCRIPTION_FILE, cls, CheckpointError, "name a folder that holds a whole adapter")


def save_adapter(model: PretrainedModel, folder: str | Path, name: str | None = None) -> None:
    """Writes one adapter of a model, with its heads; the backbone is not written."""
    name = active_name(model) if name is None else name
    if name is None:
        raise ConfigError("no adapter is active; name the one to save")
    adapter = named_adapter(model, name)
    assert adapter.settings is not None
    folder = make_folder(Path(folder))
    # 说明文件最后写：它在，张量就一定写完了
    write_modules(folder / TENSOR_FILE, adapter.modules())
    config = adapter.config
    description = AdapterDescription(
        **vars(adapter.settings),
        architecture=model.architecture,
        backbone=backbone_fingerprint(model),
        id2label=dict(config.id2label),
        problem_type=config.problem_type,
        classifier_dropout=config.classifier_dropout,
        format=_FORMAT,
    )
    write_json(folder / DESCRIPTION_FILE, description)


def load_adapter(model: PretrainedModel, folder: str | Path, name: str = "default") -> None:
    """Puts a saved adapter into a model, in place, beside those it has, and activates it.

    The model has the adapter's architecture, over its backbone; its heads may be for other labels.
    """
    folder = model_folder(folder)
    description = AdapterDescription.load(folder)
    if description.architecture != model.architecture:
        raise CheckpointError(
            f"{folder}: an adapter for {description.architecture}, not for {model.architecture}; load the backbone as"
            " that"
        )
    # 同样形状的另一个主干装得上，却只会给出噪声：靠权重指纹认出来
    if description.backbone != backbone_fingerprint(model):
        raise CheckpointError(f"{folder}: was trained over another backbone; load the model folder it was trained from")
    adapter = empty_adapter(model, description.settings, model.config.changed(**description.changes))
    read_modules(folder / TENSOR_FILE, adapter.modules())
    attach(model, name, adapter)


def load_adapted(backbone: str | Path, folder: str | Path) -> PretrainedModel:
    """Loads a backbone as the architecture that an adapter is for, with that adapter in it.

    The model is in training mode, float32, on the CPU; only the adapter and its heads learn.
    """
    description = AdapterDescription.load(model_folder(folder))
    if description.architecture not in architectures_by_name():
        raise CheckpointError(
            f"{Path(folder) / DESCRIPTION_FILE}: architecture {description.architecture!r} is none of"
            f" {', '.join(architectures_by_name())}"
        )
    architecture = architectures_by_name()[description.architecture]
    # 头是新的也无妨：紧接着就换成适配器自带的
    model = architecture.from_pretrained(backbone, new_heads=True, **description.changes)
    load_adapter(model, folder)
    return model


def backbone_fingerprint(model: PretrainedModel) -> str:
    """Returns a hex digest of the encoder's weights and shape, without adapters and heads; half a second for base."""
    backbone = model.backbone
    config = {field: getattr(backbone.config, field) for field in _COMPUTED_WITH}
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16)
    for name, value in sorted(backbone.state_dict().items()):
        # 适配器挂在层里面，池化层随适配器保存：两者都不算主干
        if not name.startswith("pooler.") and ".adapter." not in name:
            digest.update(f"{name}{list(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()
