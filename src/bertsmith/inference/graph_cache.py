"""Compiled graphs on disk: where they are kept, what their names tell, how one is opened. Nothing here needs torch.

    CACHE/DIGEST/graph.onnx, graph.bin   a network as ONNX Runtime has optimized it, and its weights, which are mapped
    CACHE/folders/DIGEST.json            which graph a model folder has, and what a short request needs besides it

A name is a digest of all that the content depends on: weights or files, the shape, the versions of every package that
wrote it, and the processor. So a graph of another version, or one that was optimized for another processor, is never
opened; it is made again, under another name.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from bertsmith import __version__
from bertsmith.files import atomic_path, write_text

GRAPH_FILE, WEIGHTS_FILE = "graph.onnx", "graph.bin"
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
_CPUINFO = Path("/proc/cpuinfo")


def is_installed() -> bool:
    """Tells whether the packages of the extra `onnx` are there."""
    return all(util.find_spec(name) is not None for name in _PACKAGES)


def cache_folder() -> Path:
    """Returns where graphs are kept: `BERTSMITH_CACHE`, else `bertsmith` in the user's cache folder."""
    told = os.environ.get("BERTSMITH_CACHE")
    if told:
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertsmith"


def circumstances() -> list[Any]:
    """Returns what a compiled graph depends on besides the model: versions and the processor."""
    return [__version__, {name: metadata.version(name) for name in ("torch", *_PACKAGES)}, processor()]


@functools.cache
def processor() -> list[str]:
    """Returns the machine's architecture, and on Linux the processor's name and its instructions."""
    lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines() if _CPUINFO.is_file() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    return [platform.machine(), *(told.get(name, "") for name in ("model name", "flags", "Features"))]


def digest_of(*described: Any) -> str:
    """Returns a name for anything that JSON can hold."""
    text = json.dumps(described, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def open_graph(folder: Path, threads: int) -> Any:
    """Opens a graph that `write_optimized` wrote.

    Args:
        folder: of the graph.
        threads: of one request.

    Returns:
        The `onnxruntime.InferenceSession`.

    Raises:
        Exception: the files are damaged; ONNX Runtime has errors of many kinds.
    """
    import onnxruntime

    options = _options(threads)
    # 图已经优化过，权重在旁边的文件里：不再优化，权重映射进内存而不是读进来
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(folder / GRAPH_FILE), options, providers=["CPUExecutionProvider"])


def write_optimized(folder: Path, write: Callable[[Path], None]) -> None:
    """Has ONNX Runtime optimize a graph for this processor once, and keeps what came out.

    Args:
        folder: appears whole or not at all; what stood there is replaced.
        write: writes the plain graph to a file.
    """
    import onnxruntime

    with atomic_path(folder) as temporary:
        temporary.mkdir()
        plain = temporary / "plain.onnx"
        write(plain)
        options = _options(1)
        options.optimized_model_filepath = str(temporary / GRAPH_FILE)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS_FILE)
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
        onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
        plain.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # 一次请求之内空转等活（不空转要慢一半），答完立刻停：别的库的线程要用同样的核心
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


@dataclass(frozen=True)
class FolderCard:
    """What a short request to an encoder needs to know of its folder.

    Attributes:
        graph: name of the folder's graph; empty where measuring has found torch faster.
        pooling: how the states of a text's tokens become one vector.
        prompt: what is put before every text unasked.
        max_length: most ids in a sequence.
    """

    graph: str
    pooling: str
    prompt: str
    max_length: int


def card_file(folder: Path, asked: str, threads: int) -> Path:
    """Returns where the card of a model folder is, or would be.

    The name tells size, time and number of every file, so that a change makes another card; contents are not read.

    Args:
        folder: a model folder.
        asked: what was asked for: `auto` has an answer of its own.
        threads: of one request, since that answer depends on it.
    """
    real = folder.resolve()
    files = []
    for path in sorted(each for each in real.rglob("*") if each.is_file()):
        found = path.stat()
        # ctime 在任何改写之后都会变，而且改不回去：不必读九十兆的内容
        files.append([str(path.relative_to(real)), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino])
    return cache_folder() / "folders" / f"{digest_of(str(real), files, asked, threads, circumstances())}.json"


def read_card(file: Path) -> FolderCard | None:
    """Returns a card; None where there is none, or a damaged one."""
    try:
        return FolderCard(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_card(file: Path, card: FolderCard) -> None:
    """Keeps a card."""
    write_text(file, json.dumps(asdict(card)))
