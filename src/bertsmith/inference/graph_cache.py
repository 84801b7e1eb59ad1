"""Compiled graphs on disk, and short requests for vectors that need nothing else. Nothing here imports torch.

    CACHE/DIGEST/graph.*        a network as a runtime has prepared it, and its weights, which are mapped
    CACHE/engines/DIGEST.json   which engine `auto` found fastest for a network
    CACHE/folders/DIGEST.json   which graph a model folder has, and what a short request needs besides it

A name is a digest of weights or files, shape, package versions and processor: no graph for other ones is opened.

Importing torch takes longer than a hundred short requests. `QuickEmbed` needs only the tokenizer, the graph and a mean;
it loads the whole pipeline when it is asked for more. The results are the same to 1e-5.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith import __version__
from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import parse_json, write_text
from bertsmith.inference.runtimes import FEW_TEXTS, FEW_TOKENS, RUNTIMES, Graph, versions
from bertsmith.parallel import available_cores
from bertsmith.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from bertsmith.inference.embed import Embed

EngineKind = Literal["torch", "onnxruntime", "openvino", "auto"]
_CPUINFO = Path("/proc/cpuinfo")
_LEAST_LENGTH = 1e-12
TOLD: dict[Path, str] = {}
"""Folder of a model → what this process has warned of; a worker adds the folder of which its parent has."""


def tell_once(folder: Path, said: str) -> None:
    """Warns of a model folder, once in a process."""
    if folder not in TOLD:
        TOLD[folder] = said
        warnings.warn(f"{folder}: {said}", stacklevel=3)


def cache_folder() -> Path:
    """Returns where graphs are kept: `BERTSMITH_CACHE`, else `bertsmith` in the user's cache folder."""
    told = os.environ.get("BERTSMITH_CACHE")
    if told:
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertsmith"


def circumstances() -> list[Any]:
    """Returns what a compiled graph depends on besides the model: versions and the processor."""
    return [__version__, versions(), processor()]


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


@dataclass(frozen=True)
class FolderCard:
    """What a short request to an encoder needs to know of its folder.

    `graph` is empty where measuring has found torch faster; `runtime` is the library that runs it, in `precision`.
    `warning` is what was told of the folder when it was loaded whole, empty for nothing.
    """

    graph: str
    runtime: str
    precision: str
    pooling: str
    prompt: str
    max_length: int
    warning: str


def card_file(folder: Path, asked: str, threads: int) -> Path:
    """Returns where the card of a model folder is, or would be, for what was asked: `auto` depends on the threads.

    The name tells size, time and number of every file, so that a change makes another card; contents are not read.
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
        return FolderCard(**parse_json(file))
    except (OSError, ValueError, TypeError):
        return None


def load_quick(folder: str | Path, asked: str, load: Callable[[], Embed]) -> Any:
    """Loads an encoder for short requests; the whole pipeline where torch is faster, or the folder is not on this disk.

    `asked` is the engine, precision and device that were asked for, since each has an answer of its own.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        return load()
    threads = _threads()
    file = card_file(path, asked, threads)
    card = read_card(file)
    whole: Embed | None = None
    if card is None:
        whole = load()
        card = _card_of(whole, path)
        # 卡片只省下一次载入：缓存只读时，下次照样完整地载入
        if card.graph:
            with contextlib.suppress(RunFolderError):
                write_text(file, json.dumps(asdict(card)))
    if not card.graph:
        return whole or load()
    if card.warning:
        # 完整的流水线载入时会说；只凭卡片回答的，也要说
        tell_once(path, card.warning)
    place, runtime = cache_folder() / card.graph, RUNTIMES[card.runtime]
    try:
        graph = runtime.open(place, card.precision, threads)
    except Exception:
        # 卡片在、图却没了或坏了：完整地载入一次，图就会重新做好
        whole = load()
        graph = runtime.open(place, card.precision, threads)
    return QuickEmbed(card, graph, load_tokenizer(path), load, whole)


class QuickEmbed:
    """`Embed` that answers short requests by itself; everything else is that of the whole pipeline."""

    def __init__(
        self,
        card: FolderCard,
        graph: Graph,
        tokenizer: Tokenizer,
        load: Callable[[], Embed],
        whole: Embed | None = None,
    ) -> None:
        self.tokenizer, self.pooling, self.max_length = tokenizer, card.pooling, card.max_length
        self._prompt, self._graph, self._load, self._whole = card.prompt, graph, load, whole

    def __call__(self, texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
        """Embeds texts; see `Embed.__call__`."""
        if isinstance(texts, str):
            vector: NDArray[np.float32] = self([texts], **options)[0]
            return vector
        # None 就是没有说：照样不必载入整条流水线
        options = {name: value for name, value in options.items() if value is not None}
        normalize = options.get("normalize", True)
        if not 0 < len(texts) <= FEW_TEXTS or options.keys() - {"normalize"}:
            return self.whole(texts, **options)
        if not all(isinstance(text, str) for text in texts):
            return self.whole(texts, **options)
        rows: list[list[int]] = self.tokenizer(
            [self._prompt + text for text in texts] if self._prompt else texts, max_length=self.max_length
        )["input_ids"]
        lengths = [len(row) for row in rows]
        if sum(lengths) > FEW_TOKENS or min(lengths) == 0:
            return self.whole(texts, **options)
        vectors = pooled(self._states(rows, max(lengths)), lengths, self.pooling)
        if normalize:
            vectors /= np.maximum(np.sqrt((vectors * vectors).sum(1, keepdims=True)), _LEAST_LENGTH)
        return vectors

    @property
    def whole(self) -> Embed:
        """The whole pipeline, loaded when it is first needed."""
        if self._whole is None:
            self._whole = self._load()
        return self._whole

    def __getattr__(self, name: str) -> Any:
        """Returns what only the whole pipeline has."""
        # 复制与序列化会查各种下划线方法：不能为此载入模型
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.whole, name)

    def _states(self, rows: list[list[int]], longest: int) -> NDArray[np.float32]:
        """Runs the graph; returns [N, S, H]."""
        ids = np.zeros((len(rows), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return self._graph.run({name: given[name] for name in self._graph.inputs})["last_hidden_state"]


def pooled(states: NDArray[np.float32], lengths: Sequence[int], pooling: str) -> NDArray[np.float32]:
    """Returns [N, H], one vector of the states [N, S, H] of each text, whose padding is on the right."""
    reads = {"mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "max": lambda rows: rows.max(0)}
    if pooling not in reads:
        raise InputError(f"pooling {pooling!r} is not read off a graph; use {', '.join(reads)}")
    vectors = np.stack([reads[pooling](rows[:length]) for rows, length in zip(states, lengths, strict=True)])
    return vectors.astype(np.float32, copy=False)


def _card_of(whole: Embed, folder: Path) -> FolderCard:
    graph = vars(whole.engine.model.backbone).get("forward") if hasattr(whole.engine, "model") else None
    is_plain = whole.pooling in ("mean", "cls", "max") and not whole.config.is_decoder and not whole.dims
    name, runtime, precision = (graph.name, graph.kind, graph.precision) if graph and is_plain else ("", "", "")
    how = (whole.pooling, whole.prompt_text(), whole.max_length)
    return FolderCard(name, runtime, precision, *how, warning=TOLD.get(folder, ""))


def _threads() -> int:
    """Returns how many threads a request takes: torch's number where torch is there, else what it would have."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdigit() and int(told) else available_cores()
