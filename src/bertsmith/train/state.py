"""Crash-safe training state: everything a run needs to resume bit for bit after `kill -9`.

A state is a folder `state/step-000001000` with the tensors (weights and the optimizer's moments, safetensors) and
`state.json` (step, stream position, running sums, and a checksum). It is written under a temporary name, flushed and
renamed, so a folder with that name is whole; the checksum finds what the disk spoilt later.

Only a state whose bytes are not those that were written is damaged; it is set aside as `damaged-step-…`, not deleted.
Whatever else goes wrong while reading (no memory, no rights, another model) ends the command and leaves every state
where it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertsmith.errors import CheckpointError, RunFolderError
from bertsmith.files import atomic_path, chunks_of, parse_json
from bertsmith.train.trainer import BertTrainer

_DAMAGED = "damaged-"


def save_state(
    folder: Path,
    trainer: BertTrainer[Any],
    progress: dict[str, Any],
    *,
    keep: int,
    best_step: int | None = None,
) -> Path:
    """Writes the state of a trainer that is between two steps, and returns its folder.

    Args:
        progress: what else the run needs to resume; must survive JSON.
        keep: how many of the newest states stay, at least 1.
        best_step: the state of this step stays as well.
    """
    target = folder / _name(trainer.step)
    if target.exists():
        return target
    with atomic_path(target) as temporary:
        temporary.mkdir()
        save_file(_tensors_of(trainer), temporary / "tensors.safetensors")
        checksum = _checksum(temporary / "tensors.safetensors", progress)
        record = {"step": trainer.step, "checksum": checksum, "progress": progress}
        (temporary / "state.json").write_text(json.dumps(record), encoding="utf-8")
    # 新状态落盘之后才删旧的：任何时刻至少有一个完整的状态
    best = None if best_step is None else _name(best_step)
    for old in _entries(folder, "step-")[:-keep]:
        if old.name != best:
            shutil.rmtree(old, ignore_errors=True)
    return target


def load_latest_state(folder: Path, trainer: BertTrainer[Any]) -> dict[str, Any] | None:
    """Puts the newest whole state into a trainer, and returns its `progress`; None where there is no state.

    A damaged one (a wrong checksum, broken JSON, a missing file) is renamed to `damaged-step-…` with a warning that
    names it, and the one before is used.
    """
    reading = folder
    try:
        for leftover in _entries(folder, ".step-"):
            shutil.rmtree(leftover, ignore_errors=True)
        for state in reversed(_entries(folder, "step-")):
            reading = state
            if (record := _read_record(state)) is not None:
                tensors = load_file(state / "tensors.safetensors")
                _require_fit(trainer, tensors, state)
                _restore(trainer, tensors)
                trainer.step = int(record["step"])
                return dict(record["progress"])
        damaged = _entries(folder, _DAMAGED)
    except (OSError, SafetensorError) as error:
        # 读不出来（没有权限、句柄用尽、磁盘暂时离线）不等于损坏：一个状态也不能动
        reason = getattr(error, "strerror", None) or error
        hint = "" if reading == folder else ", or move it elsewhere to resume from the state before"
        raise RunFolderError(
            f"{reading}: cannot be read ({reason}); see to that and run the same command again{hint}"
        ) from error
    if damaged:
        # 有过状态却一个都不能用：悄悄从头开始会抹掉整段训练记录，必须由用户决定
        raise RunFolderError(
            f"{folder}: all training states are damaged (kept as {damaged[-1].name}); put a whole one back from a copy,"
            f" or remove {folder} to begin anew"
        )
    return None


def share_state(trainer: BertTrainer[Any]) -> None:
    """Gives rank 0's weights, optimizer and step to all ranks, which then need no access to the run folder."""
    ranks = trainer.ranks
    if ranks.world_size > 1:
        trainer.step = ranks.on_first(lambda: trainer.step)
        _restore(trainer, ranks.share_tensors(_tensors_of(trainer)))


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _entries(folder: Path, prefix: str) -> list[Path]:
    # 不用 glob：它把没有权限的目录当成空目录
    names = os.listdir(folder) if folder.exists() else []
    return [folder / name for name in sorted(names) if name.startswith(prefix)]


def _read_record(state: Path) -> dict[str, Any] | None:
    """Returns what `state.json` of a whole state says; sets a damaged one aside and returns None."""
    try:
        record: dict[str, Any] = parse_json(state / "state.json")
        if _checksum(state / "tensors.safetensors", record["progress"]) != record["checksum"]:
            raise ValueError("its checksum differs")
        if state.name != _name(int(record["step"])):
            raise ValueError("it belongs to another step")
        return record
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, OverflowError) as error:
        warnings.warn(f"{state}: damaged training state ({error}); using the one before", stacklevel=3)
        aside = state.with_name(_DAMAGED + state.name)
        if aside.exists():
            shutil.rmtree(aside)
        state.rename(aside)
        return None


def _tensors_of(trainer: BertTrainer[Any]) -> dict[str, Tensor]:
    tensors = {f"model.{name}": value for name, value in _weights_of(trainer.model).items()}
    for index, moments in trainer.optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer.{index}.{name}": value for name, value in moments.items()})
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns the weights of a model by their names; one that several modules share has the first of its names."""
    once = dict(model.named_parameters())
    again = {name for name, _ in model.named_parameters(remove_duplicate=False)} - once.keys()
    # safetensors 不存两个名字的同一块内存；共享的权重（如生成器与判别器的嵌入）也只该存一份
    return {name: value for name, value in model.state_dict().items() if name not in again}


def _require_fit(trainer: BertTrainer[Any], tensors: dict[str, Tensor], state: Path) -> None:
    """Makes sure that a whole state is one of this model, before anything of the trainer is changed."""
    wanted = {f"model.{name}": value.shape for name, value in _weights_of(trainer.model).items()}
    parameters = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    found = {name: value.shape for name, value in tensors.items()}
    weights = {name: shape for name, shape in found.items() if name.startswith("model.")}
    different = {name for name in wanted.keys() | weights.keys() if wanted.get(name) != weights.get(name)}
    # 没有得到过梯度的参数没有动量：优化器的部分可以缺，但不能属于别的参数，形状也只能是一个数或参数本身的形状
    for name in found.keys() - weights.keys():
        index = int(name.split(".")[1])
        if index >= len(parameters) or found[name] not in (torch.Size(), parameters[index].shape):
            different.add(name)
    if different:
        names = sorted(different)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CheckpointError(
            f"{state}: the training state is of another model ({names[0]}{more} differs); resume with the version of"
            " bertsmith that wrote it, or choose another --out"
        )


def _restore(trainer: BertTrainer[Any], tensors: dict[str, Tensor]) -> None:
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    # 不要求名字齐全：共享的权重只有第一个名字，写进去就等于都写了；缺什么早已由 _require_fit 查过
    trainer.model.load_state_dict(weights, strict=False)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, kind = name.split(".")
            moments.setdefault(int(index), {})[kind] = value
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _checksum(path: Path, progress: dict[str, Any]) -> str:
    digest = hashlib.blake2b(json.dumps(progress).encode(), digest_size=16)
    for chunk in chunks_of(path):
        digest.update(chunk)
    return digest.hexdigest()
