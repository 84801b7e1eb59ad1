"""Crash-safe training state: everything a run needs to go on bit for bit after `kill -9`.

A state is a folder `state/step-000001000` with the tensors (weights and both Adam moments, safetensors) and
`state.json` (step, stream position, running sums, and the checksum of the tensors). It is written under a temporary
name, flushed and renamed, so a folder with that name is whole; the checksum finds what the disk spoilt later. The
last ones are kept, two unless more are asked for, and the best.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith.files import atomic_path
from bertsmith.train.trainer import BertTrainer

KEPT_STATES = 2
_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_state(
    folder: Path,
    trainer: BertTrainer[Any],
    progress: dict[str, Any],
    *,
    keep: int = KEPT_STATES,
    best_step: int | None = None,
) -> Path:
    """Writes the state of a trainer.

    Args:
        folder: the run's `state` folder.
        trainer: between two steps.
        progress: what else the run needs to go on; must survive JSON.
        keep: so many of the newest states stay, at least 1.
        best_step: the state of this step stays as well.

    Returns:
        The folder written.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written; earlier states are untouched.
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
    for old in _states(folder)[:-keep]:
        if old.name != best:
            shutil.rmtree(old, ignore_errors=True)
    return target


def load_latest_state(folder: Path, trainer: BertTrainer[Any]) -> dict[str, Any] | None:
    """Puts the newest whole state into a trainer.

    A damaged one is passed over with a warning that names it, and the one before is used.

    Returns:
        What was given to `save_state` as `progress`, or None when there is no state.
    """
    for leftover in folder.glob(".step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    for state in reversed(_states(folder)):
        try:
            record = json.loads((state / "state.json").read_text(encoding="utf-8"))
            if _checksum(state / "tensors.safetensors", record["progress"]) != record["checksum"]:
                raise ValueError("its checksum differs")
            if state.name != _name(int(record["step"])):
                raise ValueError("it belongs to another step")
            _restore(trainer, load_file(state / "tensors.safetensors"))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            warnings.warn(f"{state}: damaged training state ({error}); using the one before", stacklevel=2)
            shutil.rmtree(state, ignore_errors=True)
            continue
        trainer.step = int(record["step"])
        return dict(record["progress"])
    return None


def share_state(trainer: BertTrainer[Any]) -> None:
    """Gives rank 0's weights, optimizer and step to all ranks, which then need no access to the run folder."""
    ranks = trainer.ranks
    if ranks.world_size > 1:
        trainer.step = ranks.on_first(lambda: trainer.step)
        _restore(trainer, ranks.share_tensors(_tensors_of(trainer)))


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _states(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _tensors_of(trainer: BertTrainer[Any]) -> dict[str, Tensor]:
    tensors = {f"model.{name}": value for name, value in trainer.model.state_dict().items()}
    for index, moments in trainer.optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer.{index}.{name}": moments[name] for name in (*_MOMENTS, "step")})
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def _restore(trainer: BertTrainer[Any], tensors: dict[str, Tensor]) -> None:
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    trainer.model.load_state_dict(weights)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, kind = name.split(".")
            moments.setdefault(int(index), {})[kind] = value
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _checksum(path: Path, progress: dict[str, Any]) -> str:
    digest = hashlib.blake2b(json.dumps(progress).encode(), digest_size=16)
    with path.open("rb") as handle:
        while chunk := handle.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
