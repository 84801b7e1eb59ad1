"""One safetensors file with the tensors of some modules, beside or apart from a model folder.

Adapters and the top over frozen features are kept so: small, in our own names, checked tensor by tensor when read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertsmith.errors import CheckpointError
from bertsmith.files import atomic_path


def write_tensors(path: Path, modules: Mapping[str, nn.Module]) -> None:
    """Writes the tensors of modules, each under the module's name and its own; whole or not at all.

    Raises:
        RunFolderError: the disk is full or the place cannot be written.
    """
    tensors = {name: value.detach().cpu().contiguous() for name, value in _named(modules).items()}
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})


def read_tensors(path: Path, modules: Mapping[str, nn.Module]) -> None:
    """Fills modules with what `write_tensors` wrote; all is checked before the first one is touched.

    Args:
        path: the file.
        modules: of the same names and shapes, on any device.

    Raises:
        CheckpointError: the file is missing or damaged; or a tensor is missing, unexpected, of another shape, or holds
            NaN. The message names file and tensors.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: is not there; copy the whole folder")
    try:
        stored = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged or truncated ({error}); copy the file again") from None
    wanted = _named(modules)
    problems = [f"{name} missing" for name in sorted(wanted.keys() - stored.keys())]
    problems += [f"{name} unexpected" for name in sorted(stored.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & stored.keys()):
        value, shape = stored[name], list(wanted[name].shape)
        if list(value.shape) != shape:
            problems.append(f"{name} has shape {list(value.shape)}, {shape} is needed")
        elif not value.is_floating_point() or not torch.isfinite(value).all():
            problems.append(f"{name} holds something else than numbers; the run that wrote it broke")
    if problems:
        # 坏文件往往每个张量都不对：一行里只点名前几个
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(f"{path}: does not fit: {'; '.join(problems[:3])}{more}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(stored[name])


def _named(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    # state_dict 给出的是参数本身的视图，写入即改变模块
    return {f"{path}.{name}": value for path, module in modules.items() for name, value in module.state_dict().items()}
