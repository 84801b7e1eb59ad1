"""Batches through a compiled graph: ONNX Runtime or OpenVINO behind the same pipelines.

For a dozen tokens the time is in starting forty small operations and in reading the weights: a graph starts fewer and
reads them better. On some processors it also computes long batches faster. So a backbone hands short batches, long ones
or all to a graph. Heads and pooling stay the model's own: every pipeline works, with the same results to rounding.

A graph is made once (some ten seconds) and kept with what `auto` has measured, see `bertsmith.inference.graph_cache`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.batch import AttentionMask, RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.files import atomic_path, held, parse_json, write_json
from bertsmith.inference.graph_cache import EngineKind, cache_folder, circumstances, digest_of
from bertsmith.inference.runtimes import FEW_TOKENS, RUNTIMES, Graph, is_installed
from bertsmith.model import Backbone, BackboneOutput

STEP = 4
"""Lengths of rectangles are multiples of it: a library prepares itself for each shape that it sees, in milliseconds."""
RECTANGLE, SIMILAR, FEW_MORE = 512, 1.3, 4
"""Tokens of a rectangle; how many times as long as its shortest sequence the longest may be, and tokens more: smaller
rectangles are slower by up to a tenth, and with other lengths up to a fifth is padding."""
ALIKE = {"float32": 0.9999, "bf16": 0.995}
"""The least cosine similarity with the backbone's own states, in float32, at which a graph is used."""
_SHORT, _LONG = (12,), (30, 31, 32, 33) * 8
"""Lengths of the batches on which `auto` measures: a request, and a pass over many texts."""
_FEWEST_ROUNDS, _MOST_SECONDS = 3, 0.15
"""Of what is timed: calls at least, and the time in which more are made."""
_log = logging.getLogger("bertsmith.engines")


@dataclass(frozen=True)
class EngineChoice:
    """What computes short batches, and what computes all others."""

    short: str = "torch"
    long: str = "torch"


def graphs_of(
    backbone: Backbone, kind: EngineKind, precision: str, at_once: int = 1
) -> tuple[dict[str, CompiledForward], Path]:
    """Returns the graphs that may compute for a float32 backbone on the CPU, by engine, and where a verdict is kept.

    A graph computes `at_once` batches at the same time at most; they divide torch's threads.

    With `auto` these are all installed engines, or those that it took before; one that lacks the precision computes in
    float32, and one that computes something else is left out with a warning.

    Raises:
        ConfigError: a package of the engine is not installed.
        CheckpointError: the engine computes something else than the backbone.
        InputError: the weights do not fit into an ONNX file.
        RunFolderError: a graph is not in the cache, and cannot be kept there.
    """
    weights, threads = _digest(backbone), torch.get_num_threads()
    verdict = cache_folder() / "engines" / f"{digest_of(circumstances(), weights, precision, threads, at_once)}.json"
    if kind == "auto":
        choice = read_choice(verdict)
        wanted = {choice.short, choice.long} if choice else RUNTIMES
        # 不会这种精度的引擎用 float32：只会更准，快不快由测量说了算
        kinds = [name for name in RUNTIMES if name in wanted and is_installed(name)]
    else:
        runtime = RUNTIMES[kind]
        if not is_installed(kind):
            raise ConfigError(
                f"engine {kind} needs {', '.join(runtime.packages)}; pip install 'bertsmith[{runtime.extra}]'"
            )
        kinds = [kind]
    found = {}
    # 导出要好几秒：几个引擎共用一份
    with tempfile.TemporaryDirectory(prefix="bertsmith-") as place:
        for name in kinds:
            runs_in = precision if precision in RUNTIMES[name].precisions else "float32"
            graph_name = digest_of(name, circumstances(), weights)
            try:
                graph = _opened(backbone, name, graph_name, runs_in, (threads, at_once), Path(place) / "plain.onnx")
            except (CheckpointError, InputError) as error:
                if kind != "auto":
                    raise
                warnings.warn(f"{error}; it is left out", stacklevel=2)
                continue
            found[name] = CompiledForward(backbone, graph, graph_name, name, runs_in)
    return found, verdict


def use_graphs(
    backbone: Backbone, graphs: Mapping[str, CompiledForward], kind: EngineKind, verdict: Path, at_once: int = 1
) -> EngineChoice:
    """Lets graphs compute batches of a backbone; for `auto`, where they are faster."""
    if kind == "auto":
        choice = read_choice(verdict) or _measured(backbone, graphs, verdict, at_once)
    else:
        choice = EngineChoice(kind, kind)
    # 只换这一个实例的 forward：类和别的模型不受影响；没有图的批次仍走原来的路
    if choice.long in graphs:
        least = 0 if choice.short == choice.long else FEW_TOKENS + 1
        vars(backbone)["forward"] = graphs[choice.long].over(backbone.forward, least, math.inf)
    if choice.short in graphs and choice.short != choice.long:
        vars(backbone)["forward"] = graphs[choice.short].over(backbone.forward, 0, FEW_TOKENS)
    return choice


def read_choice(verdict: Path) -> EngineChoice | None:
    """Returns what `auto` measured before; None where there is nothing, or it is damaged."""
    try:
        choice = EngineChoice(**parse_json(verdict))
    except (OSError, ValueError, TypeError):
        return None
    return choice if {choice.short, choice.long} <= {"torch", *RUNTIMES} else None


def _measured(backbone: Backbone, graphs: Mapping[str, CompiledForward], verdict: Path, at_once: int) -> EngineChoice:
    """Returns the fastest engine for short and for long batches; keeps the answer if the cache can be written."""
    found, cpu, threads = [], torch.device("cpu"), torch.get_num_threads()
    for lengths, share in ((_SHORT, threads), (_LONG, threads // at_once)):
        batch = random_batch(backbone, lengths, cpu)
        # 没有图就没有可选的：不必量
        forwards: dict[str, Callable[[RaggedBatch], object]] = {"torch": backbone, **graphs} if graphs else {}
        # 短请求独占全部核心；长的几批并排，各用一份
        torch.set_num_threads(share)
        try:
            seconds = {name: seconds_of(partial(forward, batch), cpu) for name, forward in forwards.items()}
        finally:
            torch.set_num_threads(threads)
        found.append(min(seconds, key=lambda name: seconds[name], default="torch"))
    choice = EngineChoice(*found)
    with contextlib.suppress(RunFolderError):
        write_json(verdict, asdict(choice))
    return choice


class CompiledForward:
    """A backbone's forward: batches through the graph, and by the forward before where the graph cannot."""

    def __init__(self, backbone: Backbone, graph: Graph, name: str, kind: str, precision: str) -> None:
        self.own = backbone.forward
        self.graph, self.name, self.kind, self.precision = graph, name, kind, precision
        self.least, self.most = 0.0, math.inf
        self.limit = backbone.config.position_limit
        self.mask = backbone.config.mask
        self.pieces = backbone.config.vocab_size
        self.segments = backbone.config.type_vocab_size

    def over(self, own: Any, least: float, most: float) -> CompiledForward:
        """Takes batches of so many tokens from another forward."""
        self.own, self.least, self.most = own, least, most
        return self

    def __call__(self, batch: RaggedBatch, *, mask: AttentionMask | None = None, **asked: Any) -> BackboneOutput:
        """Encodes a batch, see `Backbone`; what the graph does not give, the model's own forward does."""
        fits = self.least <= batch.num_tokens <= self.most and batch.max_seqlen <= self.limit
        if not fits or any(asked.values()) or mask is not None or torch.is_grad_enabled() or not self._in_range(batch):
            # 超出范围的编号也交给原来的路：它会说清楚哪个编号不对
            output: BackboneOutput = self.own(batch, mask=mask, **asked)
            return output
        named = {name: torch.from_numpy(values) for name, values in self._computed(batch).items()}
        states = named["last_hidden_state"]
        cls = states.index_select(0, self.mask.summary_positions(batch))
        return BackboneOutput(states, cls, named.get("pooler_output"), batch)

    def _in_range(self, batch: RaggedBatch) -> bool:
        ids, types = batch.input_ids, batch.token_type_ids
        return bool(ids.min() >= 0 and ids.max() < self.pieces and types.min() >= 0 and types.max() < self.segments)

    def _computed(self, batch: RaggedBatch) -> dict[str, NDArray[np.float32]]:
        """Runs rectangles of sequences of similar length; returns [T, H], and [N, H] of what a sequence has once."""
        ids, types = batch.input_ids.numpy(), batch.token_type_ids.numpy()
        starts, lengths = batch.cu_seqlens.numpy()[:-1], np.diff(batch.cu_seqlens.numpy())
        found: dict[str, NDArray[np.float32]] = {}
        for rows in _rectangles(lengths):
            # 每种新的长度都要现编译一次：取整到四，服务器里混杂的批次就少编译许多次
            places = np.arange(min(self.limit, -(-lengths[rows[-1]] // STEP) * STEP))
            real = places < lengths[rows, None]
            # 填充处读的是这条序列的开头：编号合法就行，掩码会把它挡在外面
            read = starts[rows, None] + np.where(real, places, 0)
            given = {"input_ids": ids[read], "attention_mask": real.astype(np.int64), "token_type_ids": types[read]}
            for name, values in self.graph.run({each: given[each] for each in self.graph.inputs}).items():
                per_token = values.ndim == 3
                if name not in found:
                    found[name] = np.empty((len(ids) if per_token else len(lengths), values.shape[-1]), np.float32)
                found[name][read[real] if per_token else rows] = values[real] if per_token else values
        return found


def _rectangles(lengths: NDArray[Any]) -> Iterator[NDArray[np.intp]]:
    """Groups sequences of similar length; yields their numbers, the longest of a group last."""
    order = lengths.argsort(kind="stable")
    begin = 0
    for end in range(1, len(order) + 1):
        longest = lengths[order[end]] if end < len(order) else math.inf
        if (end + 1 - begin) * longest > RECTANGLE or longest > SIMILAR * lengths[order[begin]] + FEW_MORE:
            yield order[begin:end]
            begin = end


def _digest(backbone: Backbone) -> str:
    weights = hashlib.blake2b(digest_size=16)
    for name, tensor in backbone.state_dict().items():
        weights.update(name.encode())
        weights.update(memoryview(tensor.detach().contiguous().numpy()).cast("B"))
    return digest_of(asdict(backbone.config), weights.hexdigest())


def _opened(backbone: Backbone, kind: str, name: str, precision: str, cores: tuple[int, int], plain: Path) -> Graph:
    from bertsmith.model.graph import write_backbone

    folder, runtime = cache_folder() / name, RUNTIMES[kind]
    checked = folder / f"checked-{precision}"
    if checked.exists():
        # 核对过的图只读就够：缓存可以在只读的镜像里
        with contextlib.suppress(Exception):
            return runtime.open(folder, precision, *cores)
    # 两个进程同时要同一张图：后到的等先到的做好，而不是各做一份、互相清掉半成品
    with held(folder):
        try:
            graph = runtime.open(folder, precision, *cores)
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            # 没有设置日志的程序里，警告级的一行会到 stderr：几秒的等待要有个说法
            _log.warning("making the graph of %s, once for this model and machine: some ten seconds", kind)
            with atomic_path(folder) as temporary:
                temporary.mkdir()
                if not plain.exists():
                    write_backbone(backbone, plain)
                runtime.prepare(plain, temporary)
            graph = runtime.open(folder, precision, *cores)
        if not checked.exists():
            _check(backbone, kind, graph, precision)
            checked.touch()
    return graph


@torch.inference_mode()
def _check(backbone: Backbone, kind: str, graph: Graph, precision: str) -> None:
    """Makes sure that a graph computes what a float32 backbone does."""
    batch = random_batch(backbone, (1, *_SHORT, *_LONG), torch.device("cpu"))
    own, theirs = backbone(batch), CompiledForward(backbone, graph, "", kind, precision)(batch)
    alike = float(torch.cosine_similarity(own.mean, theirs.mean, dim=-1).min())
    # 写成「不满足」：NaN 与任何数比较都为假
    if not alike >= ALIKE[precision]:
        raise CheckpointError(
            f"engine {kind} gives vectors with a cosine of {alike:.4f} to the model's own in {precision};"
            f" {ALIKE[precision]} is allowed; use --engine torch"
        )


def random_batch(encoder: Backbone, lengths: Any, device: torch.device) -> RaggedBatch:
    """Returns sequences of random ids, always the same ones, of lengths that the model reads."""
    longest = encoder.config.position_limit
    sizes = np.minimum(np.asarray(lengths, dtype=np.int64), longest)
    ids = np.random.default_rng(0).integers(0, encoder.config.vocab_size, int(sizes.sum()))
    return RaggedBatch.from_flat(ids, sizes).to(device)


@torch.inference_mode()
def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Returns the time of a call that computes on a device, the best of several."""
    taken: list[float] = []
    # 第一次要打包权重、编译内核，不计时；之后取最好的一次，别的程序的干扰只会让时间变长
    while len(taken) <= _FEWEST_ROUNDS or sum(taken[1:]) < _MOST_SECONDS:
        begun = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begun)
    return min(taken[1:])
